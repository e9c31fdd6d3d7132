//! The examples that need no server do what they say.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

#[expect(dead_code, reason = "its main only prints")]
#[path = "../examples/saga.rs"]
mod saga;
#[expect(dead_code, reason = "its main only prints")]
#[path = "../examples/versioned_events.rs"]
mod versioned_events;

/// Ten pieces, of which the two confirmed orders took three; the declined one gave its own back.
#[tokio::test]
async fn a_saga_ends_with_every_step_taken_once_or_undone() {
    let end = saga::run().await.unwrap();
    let state = |order: usize| (end.orders[order].0.as_str(), end.orders[order].1.as_str());
    assert_eq!(state(0), ("order-1", "confirmed"));
    assert_eq!(state(1), ("order-2", "cancelled"));
    assert_eq!(state(2), ("order-3", "confirmed"));
    assert_eq!(end.stock, 10 - 2 - 1);
    assert_eq!(end.charged, 1250 + 399);
}

#[tokio::test]
async fn a_consumer_reads_both_versions_of_an_event_as_the_newest() {
    let orders = versioned_events::run().await.unwrap();
    let read: Vec<_> = orders.iter().map(|order| (order.amount, order.currency.as_str())).collect();
    assert_eq!(read, [(1250, "EUR"), (80, "USD"), (399, "EUR")]);
}
