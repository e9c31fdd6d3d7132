//! Brokers, messages and a reader for the tests of this crate.
#![allow(dead_code, clippy::unwrap_used, unreachable_pub)]

use std::time::{Duration, Instant};

pub use outbox_conformance::messages::*;
use outbox_core::{Batch, Message, Publisher};
use outbox_kafka::{KafkaConfig, KafkaPublisher};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers, Message as _};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

/// Time for anything that must happen; a busy machine needs a part of it.
pub const LIMIT: Duration = Duration::from_secs(30);

pub type Mock = MockCluster<'static, DefaultProducerContext>;

/// The shared broker's `host:port`.
pub fn bootstrap() -> String {
    std::env::var("OUTBOX_TEST_KAFKA_BOOTSTRAP").expect(
        "OUTBOX_TEST_KAFKA_BOOTSTRAP is not set: run `cargo xtask test`, or start the servers with \
         `cargo xtask services start` and set the variables that it prints",
    )
}

/// A name that nobody else uses.
pub fn random(prefix: &str) -> String {
    format!("{prefix}.{}", uuid::Uuid::new_v4().simple())
}

/// librdkafka's mock cluster with one topic `t` of this many partitions.
pub fn mock(brokers: i32, partitions: i32) -> Mock {
    let mock = MockCluster::new(brokers).unwrap();
    mock.create_topic("t", partitions, 1).unwrap();
    mock
}

/// A publisher that counts its queue often, for [`queued`].
pub fn publisher(bootstrap: &str) -> KafkaPublisher {
    KafkaPublisher::new(&config(bootstrap)).unwrap()
}

pub fn config(bootstrap: &str) -> KafkaConfig {
    KafkaConfig::new(bootstrap).with_property("statistics.interval.ms", "20")
}

/// `count` messages of one key with the payloads `0`, `1`, …
pub fn numbered(topic: &str, key: &str, count: usize) -> Vec<Message> {
    let number = |at: usize| {
        let payload = at.to_string();
        Row { aggregate_id: Some(key), payload: Some(payload.as_bytes()), ..Row::default() }
            .to(topic)
    };
    (0..count).map(number).collect()
}

/// Waits, within [`LIMIT`], until every message has a verdict.
pub async fn settled(batch: &Batch) {
    tokio::time::timeout(LIMIT, batch.all_settled()).await.expect("all messages get a verdict");
}

/// Waits, within [`LIMIT`], until so many messages are in the client's queue or on their way to the broker. The client
/// counts them at each `statistics.interval.ms`.
pub async fn queued(publisher: &dyn Publisher, messages: usize) {
    let deadline = Instant::now() + LIMIT;
    while !publisher.stats().contains(&("queue_messages", messages as f64)) {
        assert!(Instant::now() < deadline, "{messages} in {:?}", publisher.stats());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Runs a call until so many of its messages are queued, then drops it.
pub async fn publish_until_queued(publisher: &KafkaPublisher, batch: &Batch, messages: usize) {
    tokio::select! {
        () = publisher.publish(batch.clone()) => panic!("the call is over: {batch:?}"),
        () = queued(publisher, messages) => {}
    }
}

/// Creates a topic on a real broker.
pub async fn create_topic(bootstrap: &str, name: &str, partitions: i32, config: &[(&str, &str)]) {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", bootstrap).create().unwrap();
    let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
    topic.config = config.to_vec();
    let made = admin.create_topics([&topic], &AdminOptions::new()).await.unwrap();
    made[0].as_ref().unwrap();
}

/// A message as it stands in the broker's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub partition: i32,
    pub key: Option<Vec<u8>>,
    pub payload: Option<Vec<u8>>,
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    pub timestamp_ms: Option<i64>,
}

impl Stored {
    pub fn text(&self) -> &str {
        std::str::from_utf8(self.payload.as_deref().unwrap()).unwrap()
    }

    fn new(message: &BorrowedMessage<'_>) -> Self {
        let headers = message.headers().map(|headers| {
            let pair = |header: rdkafka::message::Header<'_, &[u8]>| {
                (header.key.to_owned(), header.value.map(<[u8]>::to_vec))
            };
            headers.iter().map(pair).collect()
        });
        Self {
            partition: message.partition(),
            key: message.key().map(<[u8]>::to_vec),
            payload: message.payload().map(<[u8]>::to_vec),
            headers: headers.unwrap_or_default(),
            timestamp_ms: message.timestamp().to_millis(),
        }
    }
}

/// Everything in a topic, partition by partition.
pub async fn stored(bootstrap: &str, topic: &str) -> Vec<Stored> {
    let (bootstrap, topic) = (bootstrap.to_owned(), topic.to_owned());
    tokio::task::spawn_blocking(move || read(&bootstrap, &topic)).await.unwrap()
}

fn read(bootstrap: &str, topic: &str) -> Vec<Stored> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("group.id", random("reader"))
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .create()
        .unwrap();
    let metadata = consumer.fetch_metadata(Some(topic), LIMIT).unwrap();
    let mut unread = metadata.topics()[0].partitions().len();
    assert!(unread > 0, "topic {topic} is there");
    let mut assignment = TopicPartitionList::new();
    for partition in 0..unread as i32 {
        assignment.add_partition_offset(topic, partition, Offset::Beginning).unwrap();
    }
    consumer.assign(&assignment).unwrap();
    let mut all = Vec::new();
    while unread > 0 {
        match consumer.poll(LIMIT).expect("each partition has an end") {
            Ok(message) => all.push(Stored::new(&message)),
            Err(KafkaError::PartitionEOF(_)) => unread -= 1,
            // The brokers are on their way up.
            Err(error) if error.rdkafka_error_code().is_some_and(is_passing) => {}
            Err(error) => panic!("{error}"),
        }
    }
    all.sort_by_key(|stored| stored.partition);
    all
}

fn is_passing(code: RDKafkaErrorCode) -> bool {
    matches!(code, RDKafkaErrorCode::BrokerTransportFailure | RDKafkaErrorCode::AllBrokersDown)
}
