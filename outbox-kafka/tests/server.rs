//! On a real broker: what it refuses, and what it does when it dies or stands still.

#![allow(clippy::unwrap_used)] // A test.

mod common;

use std::collections::HashSet;
use std::time::Duration;

use common::{
    Row, bootstrap, class, create_topic, failure, numbered, publish, publisher, random, settled,
    stored, verdicts,
};
use outbox_core::{Batch, FailureClass, Message, Publisher, Verdict};
use outbox_kafka::{KafkaConfig, KafkaPublisher};
use xtask::services::Kafka;

const PERMANENT: Option<FailureClass> = Some(FailureClass::Permanent);
const REFUSED: Option<FailureClass> = Some(FailureClass::Refused);
const UNSENT: Option<FailureClass> = Some(FailureClass::Unsent);
const UNAVAILABLE: Option<FailureClass> = Some(FailureClass::Unavailable);

/// The payloads of a topic with one partition, in the log's order.
async fn texts(bootstrap: &str, topic: &str) -> Vec<String> {
    stored(bootstrap, topic).await.iter().map(|stored| stored.text().to_owned()).collect()
}

fn is_confirmed(verdict: &Option<Verdict>) -> bool {
    *verdict == Some(Verdict::Confirmed)
}

/// `count` messages of one key; the one at `large` has 3,000 bytes.
fn with_large(topic: &str, count: usize, large: usize) -> Vec<Message> {
    let mut messages = numbered(topic, "a", count);
    messages[large] = Row { payload: Some(&[b'x'; 3_000]), ..Row::default() }.to(topic);
    messages
}

/// `KeyOrder::Prefix` under a refusal by the broker, with five requests in flight: behind a message that may come again
/// nothing of its key is in the log, and no neighbour of the bad one is given up. B071, B168, H050, H134
#[tokio::test]
async fn nothing_is_delivered_behind_a_refused_batch() {
    let bootstrap = bootstrap();
    let config = KafkaConfig::new(&bootstrap).with_property("batch.num.messages", "10");
    let publisher = KafkaPublisher::new(&config).unwrap();
    for large in [0, 1, 25, 250, 499] {
        let topic = random("refused-batch");
        create_topic(&bootstrap, &topic, 1, &[("max.message.bytes", "2000")]).await;
        let mut open = with_large(&topic, 500, large);
        let (mut tries, mut refused) = (0, 0);
        while !open.is_empty() {
            tries += 1;
            // After the refusal the topic gets one message of a key in a call.
            assert!(tries < 600, "it does not end");
            let verdicts = publish(&publisher, open.clone()).await;
            let first_open = verdicts
                .iter()
                .position(|verdict| !is_confirmed(verdict) && class(verdict) != PERMANENT);
            if let Some(first) = first_open {
                let behind = verdicts[first..].iter().position(is_confirmed);
                assert_eq!(behind, None, "try {tries}: confirmed behind {first}");
            }
            if let Some(first) = first_open.filter(|first| class(&verdicts[*first]) != UNSENT) {
                let log: HashSet<String> = texts(&bootstrap, &topic).await.into_iter().collect();
                let text = |message: &Message| {
                    String::from_utf8(message.payload().unwrap().to_vec()).unwrap()
                };
                // What is open may have been written, but only as a prefix of what is open.
                let written: Vec<bool> =
                    open[first..].iter().map(|message| log.contains(&text(message))).collect();
                let prefix = written.iter().take_while(|written| **written).count();
                assert!(!written[prefix..].contains(&true), "try {tries}: {written:?}");
            }
            refused += verdicts.iter().filter(|verdict| class(verdict) == PERMANENT).count();
            let mut verdicts = verdicts.iter();
            open.retain(|_| [UNAVAILABLE, UNSENT].contains(&class(verdicts.next().unwrap())));
        }
        assert_eq!(refused, 1, "the bad one, and no other");
        let mut log = texts(&bootstrap, &topic).await;
        let mut seen = HashSet::new();
        log.retain(|text| seen.insert(text.clone()));
        let expected: Vec<String> =
            (0..500).filter(|at| *at != large).map(|at| at.to_string()).collect();
        assert_eq!(log, expected, "first deliveries are in order");
    }
}

/// H136: the topic allows no message older than an hour; the record is named, so it is given up alone.
#[tokio::test]
async fn a_timestamp_that_the_topic_refuses_is_permanent() {
    let bootstrap = bootstrap();
    let topic = random("old");
    create_topic(&bootstrap, &topic, 1, &[("message.timestamp.before.max.ms", "3600000")]).await;
    let verdicts = publish(&publisher(&bootstrap), numbered(&topic, "a", 1)).await;
    assert_eq!(class(&verdicts[0]), PERMANENT);
    assert!(failure(&verdicts[0]).reason.contains("message.timestamp"), "{verdicts:?}");
}

/// B164, H133
#[tokio::test]
async fn a_missing_topic_refuses_until_it_is_made() {
    let bootstrap = bootstrap();
    let topic = random("missing");
    let publisher = publisher(&bootstrap);
    let first = publish(&publisher, numbered(&topic, "a", 2)).await;
    assert_eq!([class(&first[0]), class(&first[1])], [REFUSED; 2]);
    assert!(failure(&first[0]).reason.contains(&topic), "{first:?}");
    create_topic(&bootstrap, &topic, 6, &[]).await;
    let deadline = std::time::Instant::now() + common::LIMIT;
    loop {
        let again = publish(&publisher, numbered(&topic, "a", 2)).await;
        if again.iter().all(is_confirmed) {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{again:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The broker is killed under load: the producer goes on by itself, nothing is lost, and first appearances are in order. What
/// was in flight may be there twice: a broker that is killed can forget which of it had been written already.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_killed_under_load_gets_everything_in_order() {
    let kafka = Kafka::start();
    kafka.create_topic("t", 1);
    let publisher = publisher(&kafka.bootstrap());
    publish(&publisher, numbered("t", "warm", 1)).await;
    let batches: Vec<Batch> =
        (0..20).map(|call| Batch::new(numbered("t", &call.to_string(), 500))).collect();
    let load = async {
        for calls in batches.chunks(4) {
            let calls = calls.iter().map(|batch| async {
                // The relay's deadline: the call is dropped, the batch stays.
                let _ = tokio::time::timeout(
                    Duration::from_millis(50),
                    publisher.publish(batch.clone()),
                )
                .await;
            });
            for call in calls {
                call.await;
            }
        }
    };
    let fault = async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        tokio::task::block_in_place(|| {
            kafka.kill9();
            kafka.start_again();
        });
    };
    tokio::join!(load, fault);
    for batch in &batches {
        settled(batch).await;
        let verdicts = verdicts(batch);
        // A topic that a starting broker does not know yet refuses for a while (B164).
        for verdict in &verdicts {
            assert!(is_confirmed(verdict) || class(verdict) == REFUSED, "{verdict:?}");
        }
    }
    let log = stored(&kafka.bootstrap(), "t").await;
    for (call, batch) in batches.iter().enumerate() {
        let key = call.to_string().into_bytes();
        let mut seen = std::collections::HashSet::new();
        let found: Vec<&str> = log
            .iter()
            .filter(|stored| stored.key.as_deref() == Some(&key))
            .map(common::Stored::text)
            .filter(|text| seen.insert(*text))
            .collect();
        let confirmed = verdicts(batch).iter().filter(|verdict| is_confirmed(verdict)).count();
        let expected: Vec<String> = (0..confirmed).map(|at| at.to_string()).collect();
        assert_eq!(found, expected, "call {call}");
    }
    let confirmed: usize = batches
        .iter()
        .map(|batch| verdicts(batch).iter().filter(|verdict| is_confirmed(verdict)).count())
        .sum();
    assert!(log.len() - 1 - confirmed <= 20 * 500, "no more than everything that was in flight");
}

/// A broker that stands still past the call's deadline confirms late; what was abandoned is written once at most, and what is
/// published again comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_broker_confirms_late_and_takes_nothing_twice() {
    let kafka = Kafka::start();
    kafka.create_topic("t", 1);
    let publisher = publisher(&kafka.bootstrap());
    publish(&publisher, numbered("t", "warm", 1)).await;

    kafka.freeze();
    let late = Batch::new(numbered("t", "late", 100));
    let call = publisher.publish(late.clone());
    assert!(tokio::time::timeout(Duration::from_secs(2), call).await.is_err());
    assert_eq!(late.open(), 100);
    kafka.thaw();
    settled(&late).await;
    assert!(verdicts(&late).iter().all(is_confirmed));

    kafka.freeze();
    let given_up = Batch::new(numbered("t", "given-up", 100));
    let call = publisher.publish(given_up.clone());
    assert!(tokio::time::timeout(Duration::from_millis(500), call).await.is_err());
    publisher.abandon().await;
    kafka.thaw();
    let again = publish(&publisher, numbered("t", "again", 100)).await;
    assert!(again.iter().all(is_confirmed));

    let log = stored(&kafka.bootstrap(), "t").await;
    let count = |key: &str| {
        log.iter().filter(|stored| stored.key.as_deref() == Some(key.as_bytes())).count()
    };
    assert_eq!((count("late"), count("again")), (100, 100));
    assert!(count("given-up") <= 100);
    assert_eq!(given_up.open(), 100);
}
