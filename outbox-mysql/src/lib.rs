//! MySQL (8.0.21 and later) and MariaDB (10.11 and later) as the outbox's database, through sqlx.
//!
//! | file | what is there |
//! |---|---|
//! | `config.rs` | [`MySqlConfig`]: every setting, with unit and default |
//! | `schema.rs` | [`Schema`]: the tables as printable SQL, `migrate`, `check`, `adopt` |
//! | `drift.rs` | what `check` compares, column by column |
//! | `writer.rs` | [`MySqlOutbox`]: `append` in the application's own transaction |
//! | `store.rs` | [`MySqlStore`]: leases, claim, settle and probe for the relay |
//! | `row.rs` | how a row of a claim becomes an event |
//! | `dead.rs` | [`DeadLetters`]: what was given up, for operators |
//! | `inbox.rs` | [`MySqlInbox`]: the consumer's side |
//! | `sql.rs` | every statement, in the order in which an event meets it; `sql/ddl.rs` the tables, `sql/catalog.rs` what is there |
//! | `database.rs` | how a statement is run: deadline, session settings, deadlocks |
//! | `error.rs` | which error number means what for the caller |
//!
//! Without TLS a password of `caching_sha2_password` needs sqlx's feature `mysql-rsa`, which a program adds itself: the crate behind
//! it has an open advisory (RUSTSEC-2023-0071). With TLS it is not needed.

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

pub use config::{InvalidConfig, Keep, MySqlConfig, PayloadType};
pub use dead::DeadLetters;
pub use inbox::MySqlInbox;
pub use outbox_core::{BlockedHead, DeadLetter, DeadLetterFilter, Drift};
pub use schema::Schema;
pub use store::MySqlStore;
pub use writer::MySqlOutbox;
