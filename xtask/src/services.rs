//! Real servers on this machine, without containers: PostgreSQL 15 and 18, pgbouncer, MySQL 9, MariaDB,
//! Apache Kafka, RabbitMQ 3 and 4, ElasticMQ.
//!
//! Two ways to use them:
//!
//! - **Shared**: [`start`] brings up one of each on fixed loopback ports and tells where they are
//!   ([`Variable`]). They outlive the command, and every test of the workspace uses them side by side.
//! - **Private**: [`Postgres::start`], [`MySql::start`], [`MariaDb::start`], [`Kafka::start`], [`SecureKafka::start`],
//!   [`RabbitMq::start`] and [`ElasticMq::start`] give a test a server of its own on a free port, to be stopped,
//!   killed, frozen and started again. It ends with its value, and also when the
//!   test's process is killed.
//!
//! Everything listens on 127.0.0.1 only. Downloads are cached in `$OUTBOX_CACHE_DIR`, or
//! `$HOME/.cache/outbox`. Data lives in its subfolder `services`, except for root with a cache that
//! other users cannot enter (`/root`): PostgreSQL refuses to run as root, its user `postgres` must
//! reach the data, and so they go to `/var/cache/outbox-services`.
//!
//! All functions block; in an async test call them before the work starts or by `spawn_blocking`.

mod elasticmq;
mod folders;
mod install;
mod kafka;
mod kafka_secure;
mod kafka_wire;
mod mysql;
mod pgbouncer;
mod ports;
mod postgres;
mod process;
mod rabbitmq;
mod shared;
mod tls;

pub use elasticmq::ElasticMq;
pub use folders::cache;
pub use install::install;
pub use kafka::Kafka;
pub use kafka_secure::SecureKafka;
pub use mysql::{MariaDb, MySql};
pub use postgres::{Postgres, PostgresVersion};
pub use rabbitmq::{RabbitMq, RabbitMqVersion};
pub use shared::{Status, Variable, start, status, stop, variables};
