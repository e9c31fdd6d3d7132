//! Kafka as a test sees it: topics, and everything that is in them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::{Offset, TopicPartitionList};

use super::checker::{Arrival, Content};

/// Of each topic.
pub(crate) const PARTITIONS: i32 = 6;
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// Time without any message after which reading has failed.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);

/// Creates topics whose messages carry the time at which the broker took them: that is how the checker finds the fault
/// behind a repeat.
pub(crate) async fn create_topics(bootstrap: &str, topics: &[String]) {
    let admin: AdminClient<DefaultClientContext> = config(bootstrap).create().unwrap();
    let topics: Vec<NewTopic<'_>> = topics
        .iter()
        .map(|name| {
            NewTopic::new(name, PARTITIONS, TopicReplication::Fixed(1))
                .set("message.timestamp.type", "LogAppendTime")
        })
        .collect();
    let options = AdminOptions::new().operation_timeout(Some(ANSWER_LIMIT));
    for result in admin.create_topics(&topics, &options).await.unwrap() {
        result.unwrap();
    }
}

/// Reads everything that the topics hold at the time of the call, from their beginning, as it is on the wire. Blocks.
pub(crate) fn read_all(bootstrap: &str, topics: &[String]) -> Vec<Arrival> {
    read_all_as(bootstrap, topics, content)
}

/// As [`read_all`], with what a consumer makes of a message.
pub(crate) fn read_all_as(
    bootstrap: &str,
    topics: &[String],
    content: fn(&BorrowedMessage<'_>) -> Content,
) -> Vec<Arrival> {
    let consumer: BaseConsumer =
        config(bootstrap).set("group.id", "reader").set("check.crcs", "true").create().unwrap();
    let mut ends = HashMap::new();
    let mut assignment = TopicPartitionList::new();
    for topic in topics {
        for partition in 0..PARTITIONS {
            let (low, high) = watermarks(&consumer, topic, partition);
            assert_eq!(low, 0, "{topic}[{partition}] has lost its beginning");
            if high > 0 {
                ends.insert((topic.clone(), partition), high);
                assignment.add_partition_offset(topic, partition, Offset::Beginning).unwrap();
            }
        }
    }
    consumer.assign(&assignment).unwrap();
    let mut arrivals = Vec::new();
    let mut heard = Instant::now();
    while !ends.is_empty() {
        assert!(heard.elapsed() < SILENCE_LIMIT, "kafka gives no more, missing up to {ends:?}");
        let Some(message) = consumer.poll(Duration::from_millis(200)) else { continue };
        let message = message.unwrap();
        heard = Instant::now();
        let place = (message.topic().to_owned(), message.partition());
        let Some(end) = ends.get(&place).copied() else { continue };
        if message.offset() < end {
            arrivals.push(Arrival {
                partition: message.partition(),
                offset: message.offset(),
                at_ms: message.timestamp().to_millis().expect("the topic stamps each message"),
                content: content(&message),
            });
        }
        if message.offset() + 1 >= end {
            ends.remove(&place);
        }
    }
    arrivals
}

/// A broker that was down has no leader for its partitions at first.
fn watermarks(consumer: &BaseConsumer, topic: &str, partition: i32) -> (i64, i64) {
    let start = Instant::now();
    loop {
        match consumer.fetch_watermarks(topic, partition, ANSWER_LIMIT) {
            Ok(watermarks) => return watermarks,
            Err(error) if start.elapsed() > ANSWER_LIMIT => panic!("{topic}[{partition}]: {error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

pub(crate) fn config(bootstrap: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap);
    config
}

fn content(message: &BorrowedMessage<'_>) -> Content {
    let headers = message.headers().into_iter().flat_map(Headers::iter);
    Content {
        topic: message.topic().to_owned(),
        key: message.key().map(Into::into),
        payload: message.payload().map(Into::into),
        headers: headers.map(|h| (h.key.to_owned(), h.value.map(Into::into))).collect(),
    }
}
