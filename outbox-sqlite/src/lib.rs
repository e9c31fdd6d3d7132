//! SQLite as the outbox's store: the embedded default, no server needed.
//!
//! [`Schema`] creates the tables in the application's own database file, [`SqliteOutbox`] appends events in its
//! transactions, [`SqliteStore`] hands them to the relay, [`SqliteInbox`] makes a consumer's effects happen once, and
//! [`SqliteAdministration`] and [`Archive`] are for operators. Several processes may use one file, on a local disk.
//!
//! # The file
//!
//! - SQLite has one writer at a time: begin transactions that write with [`SqliteOutbox::begin`] (`begin immediate`)
//!   and keep them short. The lock has no queue: a process with many writing tasks gives them a pool of one connection,
//!   where they wait in order. A commit is never later than another whose positions are higher, so the relay needs no
//!   knowledge of open transactions.
//! - With [`Journal::Wal`] three files belong together (`-wal`, `-shm`): a copy of the main file alone loses commits.
//!   Copy with `vacuum into` or the backup API. A reader that stays open keeps the log from being folded back, so that
//!   it grows; the relay's own reads are one statement each.
//! - A copy carries the pending events and the identity of the original: see [`Schema`].

mod admin;
mod archive;
mod config;
mod error;
mod inbox;
mod row;
mod schema;
mod sql;
mod store;
mod writer;

pub use admin::SqliteAdministration;
pub use archive::Archive;
pub use config::{Journal, Keep, SqliteConfig};
pub use inbox::SqliteInbox;
pub use outbox_core::{
    Administration, BlockedHead, DeadLetter, DeadLetterFilter, Drift, EventRecord, EventState,
    Page, Retention, Upkeep,
};
pub use schema::Schema;
/// The driver in the version whose transactions [`SqliteOutbox`] takes.
pub use sqlx;
pub use store::SqliteStore;
pub use writer::SqliteOutbox;
