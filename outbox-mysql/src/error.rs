//! What an error of the database means for the caller: one table, by error number.

use outbox_core::{StoreError, StoreErrorKind};
use sqlx::mysql::MySqlDatabaseError;

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
        // The server is going down, has cut the session, or is read-only: behind an address that moved, a replica.
        sqlx::Error::Database(_) => {
            matches!(
                number(error),
                Some(
                    1053 | 1077 | 1079 | 1153 | 1158
                        ..=1161 | 1290 | 1792 | 1836 | 1927 | 3032 | 3169 | 4031
                )
            )
        }
        sqlx::Error::RowNotFound => false,
        _ => true,
    }
}

/// Whether the statement lost against another transaction, which undid the whole transaction.
pub(crate) fn is_deadlock(error: &sqlx::Error) -> bool {
    // MariaDB reports a row that has changed since its snapshot (1020) where MySQL reports nothing.
    matches!(number(error), Some(1020 | 1213))
}

/// Whether a unique key has that value already. It undoes the statement, not the transaction.
pub(crate) fn is_duplicate(error: &sqlx::Error) -> bool {
    number(error) == Some(1062)
}

/// Whether a row names a parent that is not there.
pub(crate) fn is_foreign_key_violation(error: &sqlx::Error) -> bool {
    matches!(number(error), Some(1216 | 1452))
}

fn number(error: &sqlx::Error) -> Option<u16> {
    let error = error.as_database_error()?;
    error.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number)
}

fn classify(error: &sqlx::Error) -> (StoreErrorKind, &'static str) {
    use StoreErrorKind::{Misconfigured, Unavailable};
    match error {
        sqlx::Error::Database(_) => by_number(number(error).unwrap_or_default()),
        sqlx::Error::Tls(_) => (Misconfigured, TLS),
        // So rustls reports a certificate that it does not trust.
        sqlx::Error::Io(io) if io.kind() == std::io::ErrorKind::InvalidData => (Misconfigured, TLS),
        sqlx::Error::Configuration(error) if error.to_string().contains("RSA") => {
            (Misconfigured, RSA)
        }
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

const TLS: &str = "TLS failed: look at ssl-mode and ssl-ca";
const RSA: &str = "the password may not go over a connection without TLS: use TLS, or build with the feature mysql-rsa of sqlx";

/// By the numbers of the MySQL error reference, which MariaDB shares.
///
/// What is not known to be the server's own state is `Rejected`: a trigger signals whatever number it likes, and the one row
/// that it refuses must not stand for an outage.
fn by_number(number: u16) -> (StoreErrorKind, &'static str) {
    use StoreErrorKind::{Misconfigured, Rejected, Unavailable};
    match number {
        // Nothing was written; the same statement works when it is repeated.
        1020 | 1213 | 1402 | 1613 | 1614 | 3101 => {
            (Unavailable, "the transaction lost against another one")
        }
        1205 | 3572 => {
            (Unavailable, "somebody holds a lock on its rows for longer than the lock timeout")
        }
        1099 | 1100 | 1206 | 1223 | 1689 => (Unavailable, "the server is short of locks"),
        // Time limits of the relay's own statements.
        1317 | 1969 | 3024 => (Unavailable, "the statement ran into its time limit"),
        1290 | 1792 | 1836 | 1874 => (
            Unavailable,
            "the server is read-only: a replica, or read_only is on; connect to the primary",
        ),
        1040 | 1135 | 1203 | 1226 | 1637 => (Unavailable, "the server is short of connections"),
        // Below 1000 are the numbers of its files and its memory.
        1..=999
        | 1004
        | 1014..=1018
        | 1021
        | 1023..=1026
        | 1028
        | 1037..=1039
        | 1041
        | 1114
        | 3015
        | 3019
        | 3044 => (Unavailable, "the server is short of memory or disk"),
        // The server is going down or not ready, has cut the session, cannot commit, or the prepared statement is gone; from
        // 9000 on the numbers of a proxy in between.
        0
        | 1030
        | 1042
        | 1043
        | 1047
        | 1053
        | 1077..=1081
        | 1105
        | 1152
        | 1154..=1161
        | 1180
        | 1181
        | 1184
        | 1243
        | 1296
        | 1297
        | 1461
        | 1598
        | 1615
        | 1927
        | 3032
        | 3100
        | 3168
        | 3169
        | 4031
        | 9000..=9999 => (Unavailable, ""),
        1153 => (Rejected, "it is larger than max_allowed_packet of the server"),
        1044 | 1142 | 1143 | 1227 | 1370 => {
            (Misconfigured, "the user lacks a right: see docs/schema-mysql.md for the grants")
        }
        1045 | 1130 | 1251 | 1698 | 1820 | 1862 | 3118 | 3159 | 4151 => (
            Misconfigured,
            "the server refuses the user, its password, or a connection without TLS",
        ),
        1049 => (Misconfigured, "the database does not exist"),
        1146 => {
            (Misconfigured, "the table does not exist: run migrate, or look at database and table")
        }
        1054 | 1136 | 1176 | 1364 | 3105 => {
            (Misconfigured, "the table is not as this version expects it: run the schema check")
        }
        1064 | 1149 | 1193 | 1231 | 1267 | 1305 => {
            (Misconfigured, "the server does not understand the statement")
        }
        1661..=1667 | 4056 => (Misconfigured, "binlog_format of the server must be ROW"),
        // A damaged page: the relay narrows down to the row.
        1034 | 1194 | 1712 | 1815 => (Rejected, "the server reports damaged data"),
        1643 | 1644 => (Rejected, "a trigger refused it"),
        _ => (Rejected, "the server refuses the data"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_says_what_the_caller_can_do() {
        use StoreErrorKind::{Misconfigured, Rejected, Unavailable};
        for (number, kind) in [
            (1205, Unavailable),
            (1213, Unavailable),
            (1290, Unavailable),
            (1040, Unavailable),
            (3024, Unavailable),
            (1969, Unavailable),
            (0, Unavailable),
            (1062, Rejected),
            (1366, Rejected),
            (1406, Rejected),
            (1644, Rejected),
            (1153, Rejected),
            (1045, Misconfigured),
            (1049, Misconfigured),
            (1142, Misconfigured),
            (1146, Misconfigured),
            (1064, Misconfigured),
        ] {
            assert_eq!(by_number(number).0, kind, "{number}");
        }
    }

    /// Triggers signal, meet errors of their own statements, and have numbers that nobody else has.
    #[test]
    fn whatever_a_trigger_signals_is_about_the_row() {
        for number in [1172, 1242, 1329, 1339, 1415, 1456, 1643, 1644, 3140, 4035, 30_001, 65_535] {
            assert_eq!(by_number(number).0, StoreErrorKind::Rejected, "{number}");
        }
    }

    #[test]
    fn the_state_of_the_server_or_a_proxy_is_no_rows_fault() {
        for number in [
            3, 28, 1026, 1030, 1047, 1105, 1135, 1180, 1297, 1637, 1874, 3032, 3100, 3101, 3168,
            3572, 9001,
        ] {
            assert_eq!(by_number(number).0, StoreErrorKind::Unavailable, "{number}");
        }
    }
}
