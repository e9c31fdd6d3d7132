//! PostgreSQL (15 and later) as the outbox's database, through sqlx.
//!
//! | file | what is there |
//! |---|---|
//! | `config.rs` | [`PostgresConfig`]: every setting, with unit and default |
//! | `schema.rs` | [`Schema`]: the tables as printable SQL, `migrate`, `check`, `adopt` |
//! | `drift.rs` | what `check` compares, column by column |
//! | `writer.rs` | [`PostgresOutbox`]: `append` in the application's own transaction |
//! | `store.rs` | [`PostgresStore`]: leases, claim, settle and probe for the relay |
//! | `row.rs` | how a row of a claim becomes an event |
//! | `dead.rs` | [`DeadLetters`]: what was given up, for operators |
//! | `inbox.rs` | [`PostgresInbox`]: the consumer's side |
//! | `sql.rs` | every statement, in the order in which an event meets it; `sql/ddl.rs` the tables, `sql/catalog.rs` what is there |
//! | `database.rs` | how a statement is run: deadline, no session state behind a pooler |
//! | `error.rs` | which SQLSTATE means what for the caller |
//!
//! The reasons for the indexes and the storage settings stand in `docs/adr/0002-postgres-indexes-and-autovacuum.md`.

mod config;
mod database;
mod dead;
mod drift;
mod error;
mod inbox;
mod row;
mod schema;
mod sql;
mod store;
mod writer;

pub use config::{InvalidConfig, Keep, PayloadType, PostgresConfig};
pub use dead::{BlockedHead, DeadLetter, DeadLetterFilter, DeadLetters};
pub use drift::Drift;
pub use inbox::PostgresInbox;
pub use schema::Schema;
pub use store::PostgresStore;
pub use writer::PostgresOutbox;
