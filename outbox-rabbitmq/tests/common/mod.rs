//! Brokers, messages and a reader for the tests of this crate.
#![allow(dead_code, clippy::unwrap_used, unreachable_pub)]

pub mod proxy;

use std::time::Duration;

use lapin::message::BasicGetMessage;
use lapin::options::{
    BasicAckOptions, BasicGetOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
pub use outbox_conformance::messages::*;
use outbox_core::{FailureClass, Message, Verdict};
use outbox_rabbitmq::{RabbitMqConfig, RabbitMqPublisher};

/// Time for anything that must happen; a busy machine needs a part of it.
pub const LIMIT: Duration = Duration::from_secs(30);

pub const CONFIRMED: Option<FailureClass> = None;
pub const REFUSED: Option<FailureClass> = Some(FailureClass::Refused);
pub const PERMANENT: Option<FailureClass> = Some(FailureClass::Permanent);
pub const UNAVAILABLE: Option<FailureClass> = Some(FailureClass::Unavailable);

/// The shared broker's URL.
pub fn shared() -> String {
    std::env::var("OUTBOX_TEST_RABBITMQ_URL").expect(
        "OUTBOX_TEST_RABBITMQ_URL is not set: run `cargo xtask test`, or start the servers with \
         `cargo xtask services start` and set the variables that it prints",
    )
}

/// `host:port` of a URL.
pub fn address(url: &str) -> String {
    let uri: lapin::uri::AMQPUri = url.parse().unwrap();
    format!("{}:{}", uri.authority.host, uri.authority.port)
}

/// The same URL by way of `address`.
pub fn through(url: &str, by: &str) -> String {
    url.replace(&address(url), by)
}

/// A name that nobody else uses.
pub fn random(prefix: &str) -> String {
    format!("{prefix}.{}", uuid::Uuid::new_v4().simple())
}

/// A publisher to queues through the default exchange.
pub fn to_queues(url: &str) -> RabbitMqConfig {
    RabbitMqConfig::new(url).with_routing(outbox_rabbitmq::Routing::Queue)
}

pub fn publisher(config: &RabbitMqConfig) -> RabbitMqPublisher {
    RabbitMqPublisher::new(config).unwrap()
}

/// The test's own connection to a broker.
pub struct Broker {
    _connection: Connection,
    pub channel: Channel,
}

impl Broker {
    pub async fn connect(url: &str) -> Self {
        let connection = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        Self { _connection: connection, channel }
    }

    /// A durable queue that goes away by itself when nobody uses it.
    pub async fn queue(&self, name: &str, arguments: &[(&str, AMQPValue)]) {
        let mut table = FieldTable::default();
        table.insert("x-expires".into(), AMQPValue::LongInt(600_000));
        for (name, value) in arguments {
            table.insert((*name).into(), value.clone());
        }
        let options = QueueDeclareOptions { durable: true, ..Default::default() };
        self.channel.queue_declare(name.into(), options, table).await.unwrap();
    }

    pub async fn topic_exchange(&self, name: &str) {
        let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
        let declared = self.channel.exchange_declare(
            name.into(),
            ExchangeKind::Topic,
            options,
            FieldTable::default(),
        );
        declared.await.unwrap();
    }

    pub async fn bind(&self, queue: &str, exchange: &str, key: &str) {
        let options = QueueBindOptions::default();
        let table = FieldTable::default();
        let bound =
            self.channel.queue_bind(queue.into(), exchange.into(), key.into(), options, table);
        bound.await.unwrap();
    }

    /// Takes everything out of a queue.
    pub async fn take(&self, queue: &str) -> Vec<BasicGetMessage> {
        let mut all = Vec::new();
        while let Some(message) =
            self.channel.basic_get(queue.into(), BasicGetOptions::default()).await.unwrap()
        {
            message.acker.ack(BasicAckOptions::default()).await.unwrap();
            all.push(message);
        }
        all
    }

    /// The ids of what is taken out of a queue, sorted.
    pub async fn take_ids(&self, queue: &str) -> Vec<String> {
        let mut ids: Vec<String> = self.take(queue).await.iter().map(id).collect();
        ids.sort();
        ids
    }
}

pub fn id(message: &BasicGetMessage) -> String {
    message.properties.message_id().as_ref().unwrap().to_string()
}

/// `count` messages, each with a key of its own.
pub fn messages(destination: &str, count: usize) -> Vec<Message> {
    let message = |at: usize| {
        let key = format!("key-{at}");
        Row { aggregate_id: Some(&key), ..Row::default() }.to(destination)
    };
    (0..count).map(message).collect()
}

pub fn ids(messages: &[Message]) -> Vec<String> {
    let mut ids: Vec<String> = messages.iter().map(|message| message.id().to_string()).collect();
    ids.sort();
    ids
}

pub fn classes(verdicts: &[Option<Verdict>]) -> Vec<Option<FailureClass>> {
    verdicts.iter().map(class).collect()
}
