//! A relay in a process of its own, between any store and any broker.

use std::sync::Arc;
use std::time::Duration;

use outbox::kafka::{KafkaConfig, KafkaPublisher};
use outbox::mysql::{MySqlConfig, MySqlStore};
use outbox::postgres::{PostgresConfig, PostgresStore};
use outbox::rabbitmq::{RabbitMqConfig, RabbitMqPublisher, Routing};
use outbox::sqlite::{SqliteConfig, SqliteStore};
use outbox::sqs::{SqsConfig, SqsPublisher};
use outbox::{Limits, Publisher, Relay, Router, Store, Timing};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::process::{Process, Role};
use super::sqs;

/// A relay process.
pub(crate) type RelayProcess = Process<RelaySettings>;

/// How a relay process is to work; what is not named here has its default.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RelaySettings {
    pub(crate) store: StoreAt,
    pub(crate) broker: BrokerAt,
    pub(crate) window_events: usize,
    pub(crate) lease: Duration,
}

/// A database with an outbox: its URL.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum StoreAt {
    Postgres(String),
    /// MySQL or MariaDB.
    MySql(String),
    Sqlite(String),
}

/// A broker: `host:port` or URL.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum BrokerAt {
    Kafka(String),
    RabbitMq(String),
    Sqs(String),
}

impl Role for RelaySettings {
    const TEST: &str = "relay_process";

    async fn serve(self, shutdown: oneshot::Receiver<()>) {
        Relay::new(self.store.store(), self.broker.publisher())
            .with_router(self.broker.router())
            .with_limits(Limits::default().with_window(self.window_events))
            .with_timing(Timing::default().with_lease(self.lease))
            .run(async { _ = shutdown.await })
            .await
            .unwrap();
    }
}

impl StoreAt {
    fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Postgres(url) => {
                Arc::new(PostgresStore::new(&PostgresConfig::from_url(url).unwrap()).unwrap())
            }
            Self::MySql(url) => {
                Arc::new(MySqlStore::new(&MySqlConfig::from_url(url).unwrap()).unwrap())
            }
            Self::Sqlite(url) => {
                Arc::new(SqliteStore::new(&SqliteConfig::from_url(url).unwrap()).unwrap())
            }
        }
    }
}

impl BrokerAt {
    fn publisher(&self) -> Arc<dyn Publisher> {
        match self {
            Self::Kafka(bootstrap) => {
                Arc::new(KafkaPublisher::new(&KafkaConfig::new(bootstrap)).unwrap())
            }
            Self::RabbitMq(url) => {
                let config = RabbitMqConfig::new(url).with_routing(Routing::Queue);
                Arc::new(RabbitMqPublisher::new(&config).unwrap())
            }
            Self::Sqs(endpoint) => {
                let config = SqsConfig::new().with_require_fifo(true);
                Arc::new(SqsPublisher::new(&sqs::sdk(endpoint), &config).unwrap())
            }
        }
    }

    /// Names a topic or a queue for each aggregate type.
    pub(crate) fn router(&self) -> Router {
        match self {
            Self::Kafka(_) | Self::RabbitMq(_) => Router::default(),
            // There a name has no dots, except before `fifo`.
            Self::Sqs(_) => Router::new("{aggregate_type}.fifo").unwrap(),
        }
    }
}
