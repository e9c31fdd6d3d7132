//! A transactional outbox: events leave with the transaction that wrote them, in order per aggregate, at least once.
//!
//! This crate has no code of its own. It gives the [core](outbox_core) and, behind features of the same names, the
//! adapters for databases and brokers.

pub use outbox_core::*;

#[cfg(feature = "kafka")]
pub use outbox_kafka as kafka;
#[cfg(feature = "postgres")]
pub use outbox_postgres as postgres;
#[cfg(feature = "sqlite")]
pub use outbox_sqlite as sqlite;
