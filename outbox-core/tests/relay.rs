//! The relay at work on the memory backend, on tokio's paused clock.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_core::memory::{Fault, FaultRule, MemoryPublisher, MemoryStore};
use outbox_core::{
    Batch, Exhausted, Failure, FailureClass, KeyOrder, Limits, NewEvent, Pipeline, Publisher,
    Relay, RetryPolicies, RetryPolicy, Store as _, Worker, Writer as _, async_trait,
};

const LONG: Duration = Duration::from_secs(600);

fn relay(store: &MemoryStore, publisher: &MemoryPublisher) -> Relay {
    Relay::new(Arc::new(store.clone()), Arc::new(publisher.clone())).with_virtual_time()
}

async fn append(store: &MemoryStore, aggregate: &str, types: &[&str]) {
    let mut transaction = store.begin();
    let events: Vec<NewEvent> = types
        .iter()
        .map(|event_type| NewEvent::builder("order", aggregate, *event_type).build().unwrap())
        .collect();
    store.append(&mut transaction, &events).await.unwrap();
    transaction.commit();
}

fn types(publisher: &MemoryPublisher) -> Vec<String> {
    publisher.messages().iter().map(|message| message.event_type().to_owned()).collect()
}

async fn until_done(store: &MemoryStore) {
    store.wait_until_nothing_pending(LONG).await;
}

#[tokio::test(start_paused = true)]
async fn what_commits_is_published_in_order_and_what_is_rolled_back_never() {
    let (store, publisher) = (MemoryStore::new(), MemoryPublisher::new());
    append(&store, "a", &["1", "2"]).await;
    let mut rolled_back = store.begin();
    let event = NewEvent::builder("order", "a", "never").build().unwrap();
    store.append(&mut rolled_back, &[event]).await.unwrap();
    drop(rolled_back);
    append(&store, "a", &["3"]).await;
    relay(&store, &publisher).run(until_done(&store)).await.unwrap();
    assert_eq!(types(&publisher), ["1", "2", "3"]);
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_events_are_published_once_each() {
    let (store, publisher) =
        (MemoryStore::new(), MemoryPublisher::with_key_order(KeyOrder::Prefix));
    for batch in 0..100 {
        for aggregate in 0..10 {
            let types: Vec<String> = (0..10).map(|n| (batch * 10 + n).to_string()).collect();
            let types: Vec<&str> = types.iter().map(String::as_str).collect();
            append(&store, &format!("a{aggregate}"), &types).await;
        }
    }
    relay(&store, &publisher).run(until_done(&store)).await.unwrap();
    let messages = publisher.messages();
    assert_eq!(messages.len(), 10_000);
    for aggregate in 0..10 {
        let key = format!("a{aggregate}");
        let seen: Vec<u32> = messages
            .iter()
            .filter(|message| message.key() == Some(key.as_bytes()))
            .map(|message| message.event_type().parse().unwrap())
            .collect();
        assert_eq!(seen, (0..1000).collect::<Vec<u32>>());
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_holds_its_aggregate_and_no_other() {
    let (store, publisher) =
        (MemoryStore::new(), MemoryPublisher::with_key_order(KeyOrder::Prefix));
    append(&store, "a", &["bad", "behind"]).await;
    append(&store, "b", &["other"]).await;
    publisher.script(FaultRule::on_type("bad", refuse(FailureClass::Transient)).times(2));
    relay(&store, &publisher).run(until_done(&store)).await.unwrap();
    assert_eq!(types(&publisher), ["other", "bad", "behind"]);
}

/// B066
#[tokio::test(start_paused = true)]
async fn a_permanent_failure_is_dead_lettered_and_its_aggregate_goes_on() {
    let (store, publisher) =
        (MemoryStore::new(), MemoryPublisher::with_key_order(KeyOrder::Prefix));
    append(&store, "a", &["before", "bad", "behind"]).await;
    publisher.script(FaultRule::on_type("bad", refuse(FailureClass::Permanent)));
    relay(&store, &publisher).run(until_done(&store)).await.unwrap();
    assert_eq!(types(&publisher), ["before", "behind"]);
    assert_eq!(store.dead().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_outage_counts_against_no_event() {
    let (store, publisher) =
        (MemoryStore::new(), MemoryPublisher::with_key_order(KeyOrder::Prefix));
    for n in 0..100 {
        append(&store, &format!("a{n}"), &["x"]).await;
    }
    publisher.outage(true);
    let back = publisher.clone();
    let heal = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(1800)).await;
        back.outage(false);
    });
    let healed = async {
        heal.await.unwrap();
        until_done(&store).await;
    };
    relay(&store, &publisher).run(healed).await.unwrap();
    assert_eq!(publisher.messages().len(), 100);
    assert!(publisher.messages().iter().all(|message| message.attempts() == 0));
    assert!(store.dead().is_empty());
}

#[tokio::test(start_paused = true)]
async fn under_hold_a_failed_event_blocks_its_aggregate_until_requeued() {
    let (store, publisher) =
        (MemoryStore::new(), MemoryPublisher::with_key_order(KeyOrder::Prefix));
    append(&store, "a", &["bad", "behind"]).await;
    append(&store, "b", &["other"]).await;
    publisher.script(FaultRule::on_type("bad", refuse(FailureClass::Permanent)).times(1));
    let hold = RetryPolicies::new(RetryPolicy::default().with_exhausted(Exhausted::Hold));
    let relay = relay(&store, &publisher).with_retry(hold);
    let operator = async {
        publisher.wait_for(1, LONG).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(types(&publisher), ["other"]);
        let blocked = store.pending()[0].id().clone();
        assert!(store.requeue(&blocked));
        until_done(&store).await;
    };
    relay.run(operator).await.unwrap();
    assert_eq!(types(&publisher), ["other", "bad", "behind"]);
}

fn refuse(class: FailureClass) -> Fault {
    Fault::Refuse(Failure::new(class, "x"))
}

#[tokio::test(start_paused = true)]
async fn an_aggregate_that_stands_still_does_not_fill_the_window() {
    let store = MemoryStore::new();
    let publisher = MemoryPublisher::with_key_order(KeyOrder::Prefix);
    publisher.script(FaultRule::on_type("silent", Fault::Silent).times(1));
    append(&store, "stuck", &["silent"]).await;
    append(&store, "stuck", &["behind"; 300]).await;
    for n in 0..300 {
        append(&store, &format!("free-{n}"), &["free"]).await;
    }
    let relay = relay(&store, &publisher).with_limits(Limits::default().with_window(100));
    let free_ones = async {
        publisher.wait_for(250, Duration::from_secs(10)).await;
    };
    relay.run(free_ones).await.unwrap();
    assert!(types(&publisher).iter().all(|event_type| event_type == "free"));
}

/// Three owners of every lane die one after another, so that whoever comes next is careful.
async fn three_owners_die(store: &MemoryStore) {
    let lease = Duration::from_secs(1);
    for _ in 0..3 {
        let worker = Worker::new(Pipeline::new("default").unwrap(), "mortal");
        store.join(&worker).await.unwrap();
        store.heartbeat(&worker, lease).await.unwrap();
        store.acquire(&worker, 16).await.unwrap();
        tokio::time::advance(lease * 2).await;
    }
}

#[tokio::test(start_paused = true)]
async fn in_a_careful_lane_too_an_outage_kills_no_event() {
    let store = MemoryStore::new();
    let publisher = MemoryPublisher::with_key_order(KeyOrder::Prefix);
    three_owners_die(&store).await;
    append(&store, "a", &["1", "2"]).await;
    append(&store, "b", &["3"]).await;
    publisher.outage(true);
    let healed = async {
        tokio::time::sleep(Duration::from_secs(3600)).await;
        publisher.outage(false);
        until_done(&store).await;
    };
    relay(&store, &publisher).run(healed).await.unwrap();
    assert_eq!(publisher.messages().len(), 3);
    assert!(store.dead().is_empty());
}

/// A publisher that keeps the batch of its first call for ever, and says nothing.
#[derive(Debug)]
struct Forgetful {
    inner: MemoryPublisher,
    kept: Mutex<Option<Batch>>,
}

#[async_trait]
impl Publisher for Forgetful {
    async fn publish(&self, batch: Batch) {
        let first = self.kept.lock().unwrap().is_none();
        if first {
            *self.kept.lock().unwrap() = Some(batch);
            std::future::pending::<()>().await;
        } else {
            self.inner.publish(batch).await;
        }
    }

    async fn abandon(&self) {
        self.inner.abandon().await;
    }

    fn key_order(&self) -> KeyOrder {
        KeyOrder::Prefix
    }
}

#[tokio::test(start_paused = true)]
async fn messages_that_their_publisher_forgot_are_abandoned_in_the_end() {
    let store = MemoryStore::new();
    let inner = MemoryPublisher::with_key_order(KeyOrder::Prefix);
    let publisher = Arc::new(Forgetful { inner: inner.clone(), kept: Mutex::default() });
    append(&store, "a", &["1", "2"]).await;
    let relay = Relay::new(Arc::new(store.clone()), publisher).with_virtual_time();
    relay.run(until_done(&store)).await.unwrap();
    assert_eq!(types(&inner), ["1", "2"]);
}
