//! A topic that the broker denies.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use outbox_core::memory::MemoryStore;
use outbox_core::{
    Batch, Event, FailureClass, KeyOrder, Message, NewEvent, Publisher, Relay, RetryPolicies,
    RetryPolicy, Router, Verdict, Writer as _, async_trait,
};
use outbox_kafka::{KafkaConfig, KafkaPublisher, SaslMechanism};

use crate::common::{LIMIT, class, failure, publish, stored};
use crate::{BROKER, REFUSED, sasl, tls, topic};

/// Two topics under load, and one of them loses its right to be written: the other one flows, and the denied one flows again
/// when it has the right. B171, H045
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_denied_stops_no_other_topic() {
    let (good, denied) = (topic("good"), topic("denied"));
    let publisher = KafkaPublisher::new(&config()).unwrap();
    let (mut sender, mut refused) = (Load::new(&publisher, &good, &denied), 0);
    sender.round().await;
    assert_eq!((sender.good.next, sender.denied.next), (100, 100), "both flow");

    BROKER.deny_write(&denied);
    let started = Instant::now();
    while refused < 50 {
        assert!(started.elapsed() < LIMIT, "the topic is not refused");
        refused += usize::from(sender.round().await == REFUSED);
    }
    // It broke the producer once. From now on the other topic is not held up: every message of every round is taken.
    let before = sender.good.next;
    let started = Instant::now();
    for _ in 0..200 {
        assert_eq!(sender.round().await, REFUSED);
    }
    assert_eq!(sender.good.next, before + 200 * 100, "not one message had to be sent again");
    assert!(started.elapsed() < LIMIT / 2, "at speed: {:?}", started.elapsed());
    let text = sender.last.take().unwrap();
    assert!(text.contains(&denied) && text.contains("grant this user Write"), "{text}");

    BROKER.allow_write(&denied);
    let flowing = sender.denied.next + 200;
    let deadline = Instant::now() + 2 * LIMIT;
    while sender.denied.next < flowing {
        assert!(Instant::now() < deadline, "the topic does not flow again");
        sender.round().await;
    }
    for flow in [&sender.good, &sender.denied] {
        let mut seen = std::collections::HashSet::new();
        let log = stored(&BROKER.bootstrap(), &flow.topic).await;
        let first: Vec<&str> =
            log.iter().map(crate::common::Stored::text).filter(|text| seen.insert(*text)).collect();
        let expected: Vec<String> = (0..flow.next).map(|at| at.to_string()).collect();
        assert_eq!(first[..flow.next], expected, "first deliveries are in order");
    }
}

/// Sends to two topics in one call, as the relay does: what is not confirmed comes again, in order.
struct Load<'a> {
    publisher: &'a KafkaPublisher,
    good: Flow,
    denied: Flow,
    /// Why the denied topic was last refused.
    last: Option<String>,
}

/// One aggregate's messages to one topic.
struct Flow {
    topic: String,
    next: usize,
}

impl<'a> Load<'a> {
    fn new(publisher: &'a KafkaPublisher, good: &str, denied: &str) -> Self {
        let flow = |topic: &str| Flow { topic: topic.to_owned(), next: 0 };
        Self { publisher, good: flow(good), denied: flow(denied), last: None }
    }

    /// Sends the next hundred of each; returns the verdict on the first one for the denied topic.
    async fn round(&mut self) -> Option<FailureClass> {
        let mut messages = numbered_from(&self.denied, "denied");
        messages.extend(numbered_from(&self.good, "good"));
        let verdicts = publish(self.publisher, messages).await;
        let (denied, good) = verdicts.split_at(100);
        for (flow, verdicts) in [(&mut self.denied, denied), (&mut self.good, good)] {
            let confirmed = |verdict: &&Option<Verdict>| **verdict == Some(Verdict::Confirmed);
            let prefix = verdicts.iter().take_while(confirmed).count();
            assert_eq!(verdicts.iter().filter(confirmed).count(), prefix, "a prefix: {verdicts:?}");
            flow.next += prefix;
        }
        let first = class(&denied[0]);
        if first == REFUSED {
            self.last = Some(failure(&denied[0]).reason.to_string());
        }
        first
    }
}

fn numbered_from(flow: &Flow, key: &str) -> Vec<outbox_core::Message> {
    let message = |at: usize| {
        let payload = at.to_string();
        crate::common::Row {
            aggregate_id: Some(key),
            payload: Some(payload.as_bytes()),
            ..crate::common::Row::default()
        }
        .to(&flow.topic)
    };
    (flow.next..flow.next + 100).map(message).collect()
}

/// The relay before two topics, of which one is denied: the events of the other are delivered; those of the denied one wait in
/// their order, without a counted attempt or a dead letter though a single one would be enough, and arrive when the right is
/// back. B171, H045
#[tokio::test(flavor = "multi_thread")]
async fn events_of_a_denied_topic_wait_and_no_other_does() {
    const EVENTS: usize = 300;
    const AGGREGATES: usize = 10;
    let (good, denied) = (topic("good"), topic("denied"));
    BROKER.deny_write(&denied);
    let store = MemoryStore::new();
    let mut transaction = store.begin();
    for n in 0..EVENTS {
        for topic in [&good, &denied] {
            let aggregate = (n % AGGREGATES).to_string();
            let event = NewEvent::json(topic.as_str(), aggregate, "Created.v1", &n).unwrap();
            store.append(&mut transaction, &[event]).await.unwrap();
        }
    }
    transaction.commit();
    let publisher = Arc::new(Counting {
        publisher: KafkaPublisher::new(&config()).unwrap(),
        topic: denied.clone(),
        retries: AtomicUsize::new(0),
    });
    let policy = RetryPolicy::default()
        .with_max_attempts(1)
        .with_delays(Duration::from_millis(50), Duration::from_millis(200));
    let relay = Relay::new(Arc::new(store.clone()), publisher.clone())
        .with_router(Router::new("{aggregate_type}").unwrap())
        .with_retry(RetryPolicies::new(policy));
    let watching = async {
        let of_good = |event: &Event| event.aggregate_type() == good;
        let waits = |event: &Event| event.holds_aggregate();
        let deadline = Instant::now() + LIMIT;
        loop {
            let pending = store.pending();
            let heads = pending.iter().filter(|event| waits(event)).count();
            let retries = publisher.retries.load(Ordering::Relaxed);
            if !pending.iter().any(of_good) && heads == AGGREGATES && retries >= 5 * AGGREGATES {
                break;
            }
            assert!(
                Instant::now() < deadline,
                "{} wait, {heads} heads, {retries} retries",
                pending.len()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let pending = store.pending();
        assert_eq!(pending.len(), EVENTS, "all of the denied topic");
        for (at, event) in pending.iter().enumerate() {
            let head = at < AGGREGATES;
            assert_eq!((event.attempts(), waits(event)), (u32::from(head), head), "{at}");
        }
        let reason = store.last_error(pending[0].id()).unwrap();
        assert!(reason.contains("grant this user Write"), "{reason}");
        BROKER.allow_write(&denied);
        store.wait_until_nothing_pending(2 * LIMIT).await;
    };
    relay.run(watching).await.unwrap();
    assert!(store.dead().is_empty(), "{:?}", store.dead());
    for topic in [&good, &denied] {
        let log = stored(&BROKER.bootstrap(), topic).await;
        let mut seen = HashSet::new();
        let mut last = HashMap::new();
        for number in log.iter().map(|stored| stored.text().parse::<usize>().unwrap()) {
            if seen.insert(number) {
                let before = last.insert(number % AGGREGATES, number);
                assert!(before.is_none_or(|before| before < number), "{before:?} {number}");
            }
        }
        assert_eq!(seen.len(), EVENTS, "each of them");
    }
}

/// Counts the messages to one topic that come again.
#[derive(Debug)]
struct Counting {
    publisher: KafkaPublisher,
    topic: String,
    retries: AtomicUsize,
}

#[async_trait]
impl Publisher for Counting {
    async fn publish(&self, batch: Batch) {
        let again =
            |message: &&Message| **message.destination() == *self.topic && message.attempts() > 0;
        let again = batch.messages().iter().filter(again).count();
        self.retries.fetch_add(again, Ordering::Relaxed);
        self.publisher.publish(batch).await;
    }

    async fn abandon(&self) {
        self.publisher.abandon().await;
    }

    fn key_order(&self) -> KeyOrder {
        self.publisher.key_order()
    }
}

fn config() -> KafkaConfig {
    KafkaConfig::new(BROKER.sasl_tls()).with_tls(tls()).with_sasl(sasl(SaslMechanism::ScramSha512))
}
