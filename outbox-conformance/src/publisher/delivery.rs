//! What happens when nothing goes wrong.

use outbox_core::Batch;

use super::PublisherHarness;
use super::message::{
    Draft, batch, batch_of, by_key, check, confirmed, ids, publish, received_ids,
};

/// When a call returns every message has a verdict, and what is confirmed is at the broker, once. H066
pub async fn every_message_gets_its_verdict(harness: &dyn PublisherHarness) {
    let publisher = harness.publisher().await;
    let mut drafts: Vec<Draft> = (0..50).map(|n| Draft::of_key(format!("key-{n}"))).collect();
    drafts.extend((0..50).map(|_| Draft { payload: Some(b"{}".to_vec()), ..Draft::default() }));
    let batch = batch(harness, &drafts);
    confirmed(&*publisher, &batch).await;
    let mut received = received_ids(harness).await;
    let mut expected = ids(&batch);
    received.sort();
    expected.sort();
    assert_eq!(received, expected);
}

/// A batch without messages is done at once.
pub async fn an_empty_batch_returns(harness: &dyn PublisherHarness) {
    let publisher = harness.publisher().await;
    publish(&*publisher, &Batch::new(Vec::new())).await;
}

/// Four calls at the same time do not get in each other's way. H017
pub async fn calls_overlap(harness: &dyn PublisherHarness) {
    let publisher = harness.publisher().await;
    let mut batches = Vec::new();
    for call in 0..4 {
        let keys: Vec<String> = (0..50).map(|n| format!("{call}-{n}")).collect();
        batches.push(batch_of(harness, &keys.iter().map(String::as_str).collect::<Vec<_>>()));
    }
    futures_util::future::join_all(batches.iter().map(|batch| confirmed(&*publisher, batch))).await;
    check(harness, &batches.iter().collect::<Vec<_>>()).await;
    assert_eq!(by_key(&harness.received().await).len(), 200);
}

/// The check passes while the broker can be reached, and sends nothing.
pub async fn a_reachable_broker_passes_the_check(harness: &dyn PublisherHarness) {
    let publisher = harness.publisher().await;
    publisher.check().await.expect("the broker can be reached");
    assert!(harness.received().await.is_empty());
}
