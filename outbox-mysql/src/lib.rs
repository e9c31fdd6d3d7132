//! MySQL (8.0.21 and later) and MariaDB (10.11 and later) as the outbox's database, through sqlx.
//!
//! An application appends events in the transactions of its own pool; a relay publishes them:
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use outbox_core::memory::MemoryPublisher;
//! use outbox_core::{NewEvent, Relay};
//! use outbox_mysql::{MySqlConfig, MySqlOutbox, MySqlStore, Schema};
//! use serde_json::json;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let url = "mysql://shop:secret@localhost/shop";
//! let config = MySqlConfig::from_url(url)?;
//! // Creates what is missing; any number of processes may do so at once.
//! Schema::new(&config)?.migrate().await?;
//!
//! // The event is written if, and only if, the change is.
//! let pool = sqlx::MySqlPool::connect(url).await?;
//! let outbox = MySqlOutbox::new(&config)?;
//! let mut tx = outbox.begin(&pool).await?;
//! sqlx::query("update orders set state = 'paid' where id = 7").execute(&mut *tx).await?;
//! let event = NewEvent::json("order", "7", "OrderPaid", &json!({ "cents": 1250 }))?;
//! outbox.append(&mut tx, &[event]).await?;
//! outbox.commit(tx).await?;
//!
//! // In this process or in another: any number of relays share the table.
//! let publisher = Arc::new(MemoryPublisher::new());
//! Relay::new(Arc::new(MySqlStore::new(&config)?), publisher).run(std::future::pending()).await?;
//! # Ok(()) }
//! ```
//!
//! Whoever consumes what the relay publishes sees an event again now and then: [`MySqlInbox`] makes its effect happen
//! once. [`MySqlAdministration`] is for operators. Sessions, open writers, rights and what is refused: `docs/schema-mysql.md`.
//!
//! # How it is built
//!
//! | file | what is there |
//! |---|---|
//! | `config.rs` | [`MySqlConfig`]: every setting, with unit and default |
//! | `schema.rs` | [`Schema`]: the tables as printable SQL, `migrate`, `check`, `adopt` |
//! | `drift.rs` | what `check` compares, column by column |
//! | `writer.rs` | [`MySqlOutbox`]: `append` in the application's own transaction |
//! | `store.rs` | [`MySqlStore`]: leases, claim, settle and probe for the relay |
//! | `row.rs` | how a row of a claim becomes an event |
//! | `admin.rs` | [`MySqlAdministration`]: dead letters, blocked heads, where an event is |
//! | `archive.rs` | [`Archive`]: upkeep of what was delivered, for operators |
//! | `inbox.rs` | [`MySqlInbox`]: the consumer's side |
//! | `sql.rs` | every statement, in the order in which an event meets it; `sql/ddl.rs` the tables, `sql/catalog.rs` what is there |
//! | `database.rs` | how a statement is run: deadline, session settings, deadlocks |
//! | `error.rs` | which error number means what for the caller |
//!
//! Without TLS a password of `caching_sha2_password` needs sqlx's feature `mysql-rsa`, which a program adds itself: the crate behind
//! it has an open advisory (RUSTSEC-2023-0071). With TLS it is not needed.

mod admin;
mod archive;
mod config;
mod database;
mod drift;
mod error;
mod inbox;
mod row;
mod schema;
mod sql;
mod store;
mod writer;

pub use admin::MySqlAdministration;
pub use archive::Archive;
pub use config::{Keep, MySqlConfig, PayloadType};
pub use inbox::MySqlInbox;
pub use outbox_core::{
    Administration, BlockedHead, DeadLetter, DeadLetterFilter, Drift, EventRecord, EventState,
    Page, Period, Retention, Upkeep,
};
pub use schema::Schema;
/// The driver in the version whose transactions [`MySqlOutbox`] takes.
pub use sqlx;
pub use store::MySqlStore;
pub use writer::MySqlOutbox;
