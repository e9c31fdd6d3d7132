//! What a caller can do about an error of SQLite.

use outbox_core::{StoreError, StoreErrorKind};

/// Turns an error of sqlx into ours; `what` says what was attempted, where.
pub(crate) fn failed(what: impl Into<String>) -> impl FnOnce(sqlx::Error) -> StoreError {
    let what = what.into();
    move |source| {
        let (kind, way_out) = classify(&source);
        StoreError::new(kind, format!("cannot {what}{way_out}")).with_source(source)
    }
}

/// SQLite's primary result codes, <https://www.sqlite.org/rescode.html>.
fn classify(error: &sqlx::Error) -> (StoreErrorKind, &'static str) {
    use StoreErrorKind::{Misconfigured, Rejected, Unavailable};
    match error {
        sqlx::Error::Database(database) => {
            let code = database.code().and_then(|code| code.parse::<i32>().ok()).unwrap_or(1);
            match code & 0xff {
                // BUSY (also as BUSY_RECOVERY 261 and BUSY_SNAPSHOT 517) and LOCKED
                5 | 6 => (Unavailable, ": another connection is writing"),
                13 => (Unavailable, ": the disk is full"),
                // CONSTRAINT, MISMATCH, TOOBIG, RANGE
                19 | 20 | 18 | 25 => (Rejected, ""),
                // ERROR: whatever a function in a trigger finds in its row; or a statement that does not fit the tables.
                1 if fits_no_table(database.message()) => (Misconfigured, ""),
                1 => (Rejected, ""),
                // CORRUPT: a damaged page, so that a settle is narrowed down to the row.
                11 => (Rejected, ": the file is damaged"),
                // ABORT, NOMEM, INTERRUPT, IOERR, PROTOCOL, SCHEMA
                4 | 7 | 9 | 10 | 15 | 17 => (Unavailable, ""),
                14 => {
                    (Misconfigured, ": check that the file is there, or create it with `migrate`")
                }
                8 => (Misconfigured, ": the file or its folder cannot be written to"),
                _ => (Misconfigured, ""),
            }
        }
        sqlx::Error::Io(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => (Unavailable, ""),
        _ => (Misconfigured, ""),
    }
}

/// SQLite has one code for both, and no language but English.
fn fits_no_table(message: &str) -> bool {
    ["no such ", "table ", "near ", "ambiguous column", "unrecognized token", "incomplete input"]
        .iter()
        .any(|start| message.starts_with(start))
}
