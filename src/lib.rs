//! A transactional outbox: events leave with the transaction that wrote them, in order per aggregate, at least once.
//!
//! An application writes its change and the [event](NewEvent) that tells of it in *one* transaction of its own
//! database, through a [`Writer`]. A [`Relay`] reads committed events from the table, a [`Store`], hands them to a
//! broker, a [`Publisher`], and removes them once the broker has confirmed them. A consumer recognises the rare
//! duplicate by an [`Inbox`] in its own transaction.
//!
//! ```text
//! your transaction ──append──▶ outbox table ──claim──▶ relay ──publish──▶ broker ──▶ consumer (inbox)
//!                                   ▲                    │
//!                                   └──────settle────────┘
//! ```
//!
//! # At a glance
//!
//! Everything below runs in memory; with a database, other types stand in the first three lines.
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use outbox::memory::{MemoryPublisher, MemoryStore};
//! use outbox::{NewEvent, Relay, Writer as _};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = MemoryStore::new();
//! let publisher = MemoryPublisher::new();
//!
//! let mut transaction = store.begin();
//! // change the order here, in the same transaction
//! let event = NewEvent::json("order", "order-1", "OrderPlaced.v1", &"two pies")?;
//! store.append(&mut transaction, &[event]).await?;
//! transaction.commit();
//!
//! let delivered = async { publisher.wait_for(1, Duration::from_secs(5)).await; };
//! Relay::new(Arc::new(store), Arc::new(publisher.clone())).run(delivered).await?;
//!
//! let message = &publisher.messages()[0];
//! assert_eq!(message.destination().as_ref(), "outbox.event.order");
//! assert_eq!(message.key(), Some(&b"order-1"[..]));
//! assert_eq!(message.payload(), Some(&br#""two pies""#[..]));
//! # Ok(()) }
//! ```
//!
//! The example `quickstart` does the same on a SQLite file, with a consumer: `cargo run --example quickstart`.
//!
//! # Features
//!
//! | feature | gives | needs |
//! |---|---|---|
//! | none | the core, and everything in memory ([`memory`]) | nothing |
//! | `sqlite` | `outbox::sqlite`: the embedded default | a file |
//! | `postgres` | `outbox::postgres` | PostgreSQL |
//! | `mysql` | `outbox::mysql` | MySQL or MariaDB |
//! | `kafka` | `outbox::kafka` | Kafka; builds librdkafka with cmake |
//! | `rabbitmq` | `outbox::rabbitmq` | RabbitMQ |
//! | `sqs` | `outbox::sqs` | Amazon SQS |
//! | `opentelemetry` | a new event carries the trace context of the current span | |
//!
//! This crate has no code of its own: it gives the core and, behind these features, the adapters.

pub use outbox_core::*;

#[cfg(feature = "kafka")]
pub use outbox_kafka as kafka;
#[cfg(feature = "mysql")]
pub use outbox_mysql as mysql;
#[cfg(feature = "postgres")]
pub use outbox_postgres as postgres;
#[cfg(feature = "rabbitmq")]
pub use outbox_rabbitmq as rabbitmq;
#[cfg(feature = "sqlite")]
pub use outbox_sqlite as sqlite;
#[cfg(feature = "sqs")]
pub use outbox_sqs as sqs;

/// The program in the README compiles.
#[cfg(all(doctest, feature = "postgres", feature = "kafka"))]
#[doc = include_str!("../README.md")]
mod readme {}

/// The program in the page on Kafka compiles.
#[cfg(all(doctest, feature = "kafka"))]
#[doc = include_str!("../docs/kafka.md")]
mod kafka_page {}

/// The program in the page on RabbitMQ compiles.
#[cfg(all(doctest, feature = "rabbitmq"))]
#[doc = include_str!("../docs/rabbitmq.md")]
mod rabbitmq_page {}

/// The program in the page on dead letters compiles.
#[cfg(all(doctest, feature = "postgres"))]
#[doc = include_str!("../docs/dead-letters.md")]
mod dead_letters {}

/// The program in the page on PostgreSQL's tables compiles.
#[cfg(all(doctest, feature = "postgres"))]
#[doc = include_str!("../docs/schema.md")]
mod schema_page {}

/// The program in the page on MySQL's tables compiles.
#[cfg(all(doctest, feature = "mysql"))]
#[doc = include_str!("../docs/schema-mysql.md")]
mod schema_mysql_page {}

/// The programs in the page on the inbox compile.
#[cfg(all(doctest, feature = "postgres"))]
#[doc = include_str!("../docs/inbox.md")]
mod inbox_page {}

/// The program in the page on Amazon SQS compiles.
#[cfg(all(doctest, feature = "sqs"))]
#[doc = include_str!("../docs/sqs.md")]
mod sqs_page {}
