//! What is special about the memory backend; that it keeps the contracts is the conformance kit's to show.

use std::time::Duration;

use super::{Fault, FaultRule, MemoryPublisher, MemoryStore};
use crate::testing::event_of;
use crate::{
    Batch, Capabilities, ClaimRequest, Claimed, Due, Failure, FailureClass, Inbox, KeyOrder,
    LaneCursor, Message, NewEvent, Pipeline, Position, Publisher, Store, Verdict, Watermark,
    Writer,
};

fn event(aggregate: &str) -> NewEvent {
    NewEvent::builder("order", aggregate, "Created").build().unwrap()
}

async fn claim(store: &MemoryStore) -> Claimed {
    let lanes = (0..MemoryStore::DEFAULT_LANES)
        .map(|lane| LaneCursor::new(lane, 0, Position::MAX, 100))
        .collect();
    let pipeline = Pipeline::new("test").unwrap();
    store.claim(&ClaimRequest::new(pipeline, lanes, 100, usize::MAX)).await.unwrap()
}

#[tokio::test]
async fn a_transaction_shows_what_it_appended_and_a_savepoint_takes_it_back() {
    let store = MemoryStore::new();
    let mut transaction = store.begin();
    store.append(&mut transaction, &[event("a")]).await.unwrap();
    let savepoint = transaction.savepoint();
    store.append(&mut transaction, &[event("b")]).await.unwrap();
    transaction.rollback_to(savepoint);
    let appended = transaction.appended();
    assert_eq!(appended.len(), 1);
    assert_eq!(appended[0].aggregate_id(), Some("a"));
    store.assert_nothing_pending();
    transaction.commit();
    assert_eq!(store.pending()[0].id(), appended[0].id());
}

#[tokio::test]
async fn the_snapshot_of_a_claim_misses_a_writer_until_it_has_ended() {
    let store = MemoryStore::new();
    let mut late = store.begin();
    store.append(&mut late, &[event("a")]).await.unwrap();
    let writer = store.probe(0).await.unwrap().writers.pop().unwrap();
    let id = writer.transaction.unwrap();
    assert!(claim(&store).await.snapshot.unwrap().misses(id));
    late.commit();
    assert!(!claim(&store).await.snapshot.unwrap().misses(id));
    assert_eq!(store.probe(0).await.unwrap().writers, []);
}

#[tokio::test]
async fn commit_order_draws_positions_at_the_commit() {
    let capabilities = Capabilities::default().with_watermark(Watermark::CommitOrder);
    let store = MemoryStore::with_capabilities(16, capabilities);
    let (mut early, mut late) = (store.begin(), store.begin());
    store.append(&mut late, &[event("late")]).await.unwrap();
    store.append(&mut early, &[event("early")]).await.unwrap();
    early.commit();
    let top = store.probe(0).await.unwrap().top;
    late.commit();
    let last = store.pending().pop().unwrap();
    assert_eq!(last.aggregate_id(), Some("late"));
    assert!(last.position() > top);
}

#[tokio::test(start_paused = true)]
async fn the_clock_moves_with_tokios() {
    let store = MemoryStore::new();
    let mut transaction = store.begin();
    let due = NewEvent::builder("order", "a", "Created")
        .due(Due::After(Duration::from_secs(3600)))
        .build()
        .unwrap();
    store.append(&mut transaction, &[due]).await.unwrap();
    transaction.commit();
    let before = store.now();
    assert_eq!(claim(&store).await.events.len(), 0);
    tokio::time::advance(Duration::from_secs(3600)).await;
    assert_eq!(claim(&store).await.events.len(), 1);
    assert_eq!(store.now().duration_since(before).unwrap(), Duration::from_secs(3600));
}

#[tokio::test]
#[should_panic(expected = "1 events are still pending, the first: Event { lane: ")]
async fn a_pending_event_is_named() {
    let store = MemoryStore::new();
    let mut transaction = store.begin();
    store.append(&mut transaction, &[event("a")]).await.unwrap();
    transaction.commit();
    store.assert_nothing_pending();
}

#[tokio::test]
async fn a_mark_waits_for_the_transaction_that_set_the_same_one() {
    let store = MemoryStore::new();
    let mut first = store.begin();
    assert!(store.first_seen(&mut first, "billing", "1").await.unwrap());
    let second = tokio::spawn({
        let store = store.clone();
        async move {
            let mut transaction = store.begin();
            store.first_seen(&mut transaction, "billing", "1").await.unwrap()
        }
    });
    tokio::task::yield_now().await;
    first.rollback();
    assert!(second.await.unwrap());
}

fn batch(aggregates: &[&str]) -> Batch {
    let events = aggregates.iter().zip(1..).map(|(key, at)| event_of(at, 0, Some(key)));
    Batch::new(events.map(|event| Message::new(event, "t".into())).collect())
}

fn positions(publisher: &MemoryPublisher) -> Vec<Position> {
    publisher.messages().iter().map(|message| message.event().position()).collect()
}

fn class(batch: &Batch, index: usize) -> Option<FailureClass> {
    match batch.verdict(index) {
        Some(Verdict::Failed(failure)) => Some(failure.class),
        _ => None,
    }
}

fn transient() -> Fault {
    Fault::Refuse(Failure::new(FailureClass::Transient, "x"))
}

#[tokio::test]
async fn prefix_sends_nothing_of_a_key_behind_a_failure_and_unordered_does() {
    for (order, sent) in [(KeyOrder::Prefix, vec![1, 3]), (KeyOrder::Unordered, vec![1, 3, 4])] {
        let publisher = MemoryPublisher::with_key_order(order);
        publisher.script(FaultRule::on_nth(2, transient()));
        let batch = batch(&["b", "a", "b", "a"]);
        publisher.publish(batch.clone()).await;
        assert_eq!(positions(&publisher), sent);
        assert_eq!(class(&batch, 1), Some(FailureClass::Transient));
        let behind = (order == KeyOrder::Prefix).then_some(FailureClass::Unsent);
        assert_eq!(class(&batch, 3), behind);
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_message_is_confirmed_after_its_call_was_dropped_and_its_key_waits() {
    let publisher = MemoryPublisher::new();
    publisher.script(FaultRule::on_nth(1, Fault::Slow(Duration::from_secs(9))));
    let batch = batch(&["a", "b", "a"]);
    let call = publisher.publish(batch.clone());
    assert!(tokio::time::timeout(Duration::from_secs(1), call).await.is_err());
    assert_eq!(positions(&publisher), [2]);
    batch.all_settled().await;
    assert_eq!(positions(&publisher), [2, 1, 3]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_after_abandon() {
    let publisher = MemoryPublisher::new();
    publisher.script(FaultRule::on_nth(1, Fault::Slow(Duration::from_secs(9))));
    publisher.script(FaultRule::on_nth(2, Fault::Silent));
    let batch = batch(&["a", "b", "c"]);
    let call = tokio::spawn({
        let (publisher, batch) = (publisher.clone(), batch.clone());
        async move { publisher.publish(batch).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    publisher.abandon().await;
    call.await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(positions(&publisher), [3]);
    assert_eq!((batch.open(), publisher.abandoned(), publisher.calls()), (2, 1, 1));
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "1 of 2 messages were published within 5s: [Created event-1 to t]")]
async fn a_wait_that_fails_says_what_came() {
    let publisher = MemoryPublisher::new();
    publisher.publish(batch(&["a"])).await;
    publisher.wait_for(2, Duration::from_secs(5)).await;
}
