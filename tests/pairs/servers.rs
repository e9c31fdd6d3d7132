//! Servers of a test's own, to be frozen and restarted.

use tempfile::TempDir;
use tokio::task::block_in_place;
use xtask::services::{
    ElasticMq, Kafka, MariaDb, MySql, Postgres, PostgresVersion, RabbitMq, RabbitMqVersion,
};

use crate::support::checker::Arrival;
use crate::support::event_maker::content_of;
use crate::support::listener::Listener;
use crate::support::relay_process::BrokerAt;
use crate::support::{kafka, rabbitmq, sqs};

#[derive(Clone, Copy, Debug)]
pub(crate) enum StoreKind {
    Postgres,
    MySql,
    MariaDb,
    Sqlite,
}

/// A database server; SQLite has none, only a folder for its file.
pub(crate) enum StoreServer {
    Postgres(Postgres),
    MySql(MySql),
    MariaDb(MariaDb),
    Sqlite(TempDir),
}

impl StoreServer {
    pub(crate) fn start(kind: StoreKind) -> Self {
        match kind {
            StoreKind::Postgres => Self::Postgres(Postgres::start(PostgresVersion::V18)),
            StoreKind::MySql => Self::MySql(MySql::start()),
            StoreKind::MariaDb => Self::MariaDb(MariaDb::start()),
            StoreKind::Sqlite => Self::Sqlite(tempfile::tempdir().unwrap()),
        }
    }

    /// Of some database of it.
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Postgres(server) => server.url(),
            Self::MySql(server) => server.url(),
            Self::MariaDb(server) => server.url(),
            Self::Sqlite(folder) => format!("sqlite://{}/none", folder.path().display()),
        }
    }

    /// Kills the server and starts it again.
    pub(crate) fn crash(&self) {
        block_in_place(|| match self {
            Self::Postgres(server) => {
                server.kill9();
                server.start_again();
            }
            Self::MySql(server) => {
                server.kill9();
                server.start_again();
            }
            Self::MariaDb(server) => {
                server.kill9();
                server.start_again();
            }
            Self::Sqlite(_) => unreachable!("there is no server"),
        });
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum BrokerKind {
    Kafka,
    RabbitMq,
    Sqs,
}

pub(crate) enum Broker {
    Kafka(Kafka),
    RabbitMq(RabbitMq),
    Sqs(ElasticMq),
}

impl Broker {
    pub(crate) fn start(kind: BrokerKind) -> Self {
        match kind {
            BrokerKind::Kafka => Self::Kafka(Kafka::start()),
            BrokerKind::RabbitMq => Self::RabbitMq(RabbitMq::start(RabbitMqVersion::V4)),
            BrokerKind::Sqs => Self::Sqs(ElasticMq::start()),
        }
    }

    pub(crate) fn at(&self) -> BrokerAt {
        match self {
            Self::Kafka(broker) => BrokerAt::Kafka(broker.bootstrap()),
            Self::RabbitMq(broker) => BrokerAt::RabbitMq(broker.url()),
            Self::Sqs(broker) => BrokerAt::Sqs(broker.endpoint()),
        }
    }

    pub(crate) fn freeze(&self) {
        block_in_place(|| match self {
            Self::Kafka(broker) => broker.freeze(),
            Self::RabbitMq(broker) => broker.freeze(),
            Self::Sqs(broker) => broker.freeze(),
        });
    }

    pub(crate) fn thaw(&self) {
        block_in_place(|| match self {
            Self::Kafka(broker) => broker.thaw(),
            Self::RabbitMq(broker) => broker.thaw(),
            Self::Sqs(broker) => broker.thaw(),
        });
    }

    /// Creates the topic or queue of this name, and reads it.
    pub(crate) async fn listen(&self, name: &str) -> Reader {
        match self.at() {
            BrokerAt::Kafka(bootstrap) => {
                let topic = [name.to_owned()];
                kafka::create_topics(&bootstrap, &topic).await;
                Reader::Log { bootstrap, topic }
            }
            BrokerAt::RabbitMq(url) => Reader::Queue(rabbitmq::listen(&url, name).await),
            BrokerAt::Sqs(endpoint) => Reader::Queue(sqs::listen(&endpoint, name).await),
        }
    }
}

/// A consumer that remembers what came when.
pub(crate) enum Reader {
    /// Kafka remembers it by itself.
    Log {
        bootstrap: String,
        topic: [String; 1],
    },
    Queue(Listener),
}

impl Reader {
    /// What came, to the last message; nothing more may be sent.
    pub(crate) async fn finish(self) -> Vec<Arrival> {
        match self {
            Self::Log { bootstrap, topic } => block_in_place(|| {
                kafka::read_all_as(&bootstrap, &topic, |message| {
                    let topic = rdkafka::Message::topic(message);
                    content_of(outbox::kafka::received(message).unwrap(), topic)
                })
            }),
            Self::Queue(listener) => listener.finish().await,
        }
    }
}
