//! What an error of the database means for the caller: one table, by SQLSTATE.

use outbox_core::{StoreError, StoreErrorKind};
use sqlx::postgres::PgDatabaseError;

/// The error of `action` on `table`.
pub(crate) fn store_error(action: &str, table: &str, error: sqlx::Error) -> StoreError {
    let (kind, way_out) = classify(&error);
    let mut message = format!("cannot {action} {table}");
    if !way_out.is_empty() {
        message = format!("{message}: {way_out}");
    }
    StoreError::new(kind, message).with_source(error)
}

/// The error of `action` on `table` when there is no connection to do it on.
pub(crate) fn connect_error(action: &str, table: &str, error: sqlx::Error) -> StoreError {
    let (kind, way_out) = match &error {
        sqlx::Error::Io(io) if io.kind() != std::io::ErrorKind::InvalidData => (
            StoreErrorKind::Unavailable,
            "the server is down or out of reach: look at host and port of the url",
        ),
        sqlx::Error::PoolTimedOut => (
            StoreErrorKind::Unavailable,
            "every connection is in use, and none came free within connect_timeout: raise pool_size",
        ),
        other => match classify(other) {
            // There is no data yet that it could refuse.
            (StoreErrorKind::Rejected, _) => {
                (StoreErrorKind::Misconfigured, "the server refuses the connection")
            }
            known => known,
        },
    };
    let message = format!("no connection to {action} {table}: {way_out}");
    StoreError::new(kind, message.trim_end_matches(": ")).with_source(error)
}

/// Whether the connection that gave this error must not be used again.
pub(crate) fn spoils_connection(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(database) => matches!(
            database.code().as_deref(),
            // A replica after a switch-over; a plan or a prepared statement that the server no longer has; a session that the
            // server has ended.
            Some(
                "25006"
                    | "0A000"
                    | "26000"
                    | "42P05"
                    | "57P01"
                    | "57P02"
                    | "57P03"
                    | "57P05"
                    | "08P01"
            )
        ),
        sqlx::Error::RowNotFound => false,
        _ => true,
    }
}

fn classify(error: &sqlx::Error) -> (StoreErrorKind, &'static str) {
    use StoreErrorKind::{Misconfigured, Unavailable};
    match error {
        sqlx::Error::Database(database) => {
            let error = database.try_downcast_ref::<PgDatabaseError>();
            by_sqlstate(
                error.map_or("", PgDatabaseError::code),
                error.and_then(PgDatabaseError::routine).unwrap_or_default(),
            )
        }
        sqlx::Error::Tls(_) => (Misconfigured, TLS),
        // So rustls reports a certificate that it does not trust.
        sqlx::Error::Io(io) if io.kind() == std::io::ErrorKind::InvalidData => (Misconfigured, TLS),
        sqlx::Error::Configuration(_) => (Misconfigured, "a connect option is wrong"),
        sqlx::Error::ColumnNotFound(_)
        | sqlx::Error::ColumnIndexOutOfBounds { .. }
        | sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::TypeNotFound { .. }
        | sqlx::Error::Encode(_)
        | sqlx::Error::Decode(_) => {
            (Misconfigured, "the table is not as this version expects it: run the schema check")
        }
        _ => (Unavailable, ""),
    }
}

const TLS: &str = "TLS failed: look at sslmode and sslrootcert";

/// `routine` is the server's own function that gave the error: the text depends on the server's language.
///
/// What is not known to be the server's own state is `Rejected`: a trigger raises whatever code it likes, and the one row that it
/// refuses must not stand for an outage.
fn by_sqlstate(code: &str, routine: &str) -> (StoreErrorKind, &'static str) {
    use StoreErrorKind::{Misconfigured, Rejected, Unavailable};
    match code {
        "" => (Unavailable, ""),
        // Time limits of the relay's own statements; nothing was written.
        "57014" => (Unavailable, "the statement ran into its time limit"),
        "55P03" => {
            (Unavailable, "somebody holds a lock on its rows for longer than the lock timeout")
        }
        // The server is going down or coming up.
        "57P01" | "57P02" | "57P03" | "57P05" => {
            (Unavailable, "the server is shutting down or starting")
        }
        "25006" => (
            Unavailable,
            "the server is read-only: a replica, or default_transaction_read_only is on; connect to the primary",
        ),
        // The statement was prepared for a table that has changed since; a new connection prepares anew.
        "0A000" if routine == "RevalidateCachedQuery" => (Unavailable, UNPREPARED),
        "26000" | "42P05" => (Unavailable, UNPREPARED),
        "55000" if routine == "CheckCmdReplicaIdentity" => (
            Misconfigured,
            "a publication publishes deletes of the table, but it has no replica identity: give it its primary key as \
             one, or publish inserts only",
        ),
        "42P01" | "3F000" => {
            (Misconfigured, "the table does not exist: run migrate, or look at schema and table")
        }
        "42703" | "42804" | "42883" => {
            (Misconfigured, "the table is not as this version expects it: run the schema check")
        }
        "42501" => (Misconfigured, "the role lacks a right: see docs/schema.md for the grants"),
        "3D000" => (Misconfigured, "the database does not exist"),
        // A damaged page: a settle is narrowed down to the row. Claims come as far as the page and stop there until somebody
        // has mended it: nobody knows whose events are on it, so that to read on behind it would break their order.
        "XX001" | "XX002" => (Rejected, "the server reports damaged data"),
        "25P02" => (Rejected, "the transaction has failed already: roll it back"),
        _ => match code.get(..2).unwrap_or_default() {
            "28" => (Misconfigured, "the server refuses the role or its password"),
            "42" => (Misconfigured, "the server does not understand the statement"),
            // Nothing was written; the same statement works when it is repeated.
            "40" => (Unavailable, "the transaction lost against another one"),
            "53" => (Unavailable, "the server is short of connections, memory or disk"),
            // The connection, the session's transaction, an object in use, an operator, the system below, the server itself.
            "08" | "25" | "55" | "57" | "58" | "F0" | "XX" => (Unavailable, ""),
            "P0" => (Rejected, "a trigger refused it"),
            _ => (Rejected, "the server refuses the data"),
        },
    }
}

const UNPREPARED: &str =
    "the prepared statement is no longer valid; behind a transaction pooler set pooled";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_says_what_the_caller_can_do() {
        use StoreErrorKind::{Misconfigured, Rejected, Unavailable};
        for (code, kind) in [
            ("08006", Unavailable),
            ("40P01", Unavailable),
            ("53100", Unavailable),
            ("53300", Unavailable),
            ("55P03", Unavailable),
            ("57014", Unavailable),
            ("57P01", Unavailable),
            ("25P04", Unavailable),
            ("26000", Unavailable),
            ("40002", Unavailable),
            ("55006", Unavailable),
            ("58030", Unavailable),
            ("XX000", Unavailable),
            ("XX001", Rejected),
            ("22021", Rejected),
            ("22P02", Rejected),
            ("23505", Rejected),
            ("54000", Rejected),
            ("28P01", Misconfigured),
            ("3D000", Misconfigured),
            ("42501", Misconfigured),
            ("42P01", Misconfigured),
            ("", Unavailable),
        ] {
            assert_eq!(by_sqlstate(code, "").0, kind, "{code}");
        }
    }

    /// Triggers raise exceptions of PL/pgSQL, meet errors of their own statements, and have codes that nobody else has.
    #[test]
    fn whatever_a_trigger_raises_is_about_the_row() {
        for code in [
            "P0001", "P0002", "P0003", "P0004", "09000", "0A000", "20000", "21000", "27000",
            "38000", "39P01", "44000", "HV000", "U0001", "99999",
        ] {
            assert_eq!(by_sqlstate(code, "exec_stmt_raise").0, StoreErrorKind::Rejected, "{code}");
        }
    }

    #[test]
    fn a_plan_that_no_longer_fits_is_the_sessions_state() {
        let (kind, _) = by_sqlstate("0A000", "RevalidateCachedQuery");
        assert_eq!(kind, StoreErrorKind::Unavailable);
    }
}
