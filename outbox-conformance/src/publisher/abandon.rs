//! Calls and publishers that are dropped, and messages that are given up.

use std::time::Duration;

use outbox_core::Batch;

use super::PublisherHarness;
use super::message::{batch_of, call, check, confirmed, ids, is_confirmed, received_ids};
use super::refusal::NO_SILENCE;
use crate::support::{SOON, falls_away};

/// What may be on the wire when messages are abandoned lands within this time.
const ON_THE_WIRE: Duration = Duration::from_millis(500);

/// How long a rule watches that nothing more comes.
const WATCHED: Duration = Duration::from_secs(2);

/// A call that is dropped, at any point, keeps its verdicts; nothing of it is sent twice. H036, H059
pub async fn a_dropped_call_keeps_what_was_confirmed(harness: &dyn PublisherHarness) {
    let publisher = harness.publisher().await;
    let mut random = fastrand::Rng::with_seed(7);
    let mut batches = Vec::new();
    for round in 0..30 {
        let keys: Vec<String> = (0..50).map(|n| format!("{round}-{n}")).collect();
        let batch = batch_of(harness, &keys.iter().map(String::as_str).collect::<Vec<_>>());
        let after = Duration::from_micros(random.u64(0..5_000));
        let _ = tokio::time::timeout(after, publisher.publish(batch.clone())).await;
        let confirmed: Vec<usize> = (0..50).filter(|index| is_confirmed(&batch, *index)).collect();
        publisher.abandon().await;
        assert!(confirmed.iter().all(|index| is_confirmed(&batch, *index)), "verdicts stand");
        batches.push(batch);
    }
    tokio::time::sleep(ON_THE_WIRE).await;
    check(harness, &batches.iter().collect::<Vec<_>>()).await;
    confirmed(&*publisher, &batch_of(harness, &["after"])).await;
}

/// Messages of a dropped call are confirmed when the broker answers at last. H046
pub async fn verdicts_come_after_the_call_was_dropped(harness: &dyn PublisherHarness) {
    let rule = "verdicts_come_after_the_call_was_dropped";
    if !harness.faults().slow {
        return falls_away(rule, "the harness cannot slow its broker down");
    }
    let publisher = harness.publisher().await;
    confirmed(&*publisher, &batch_of(harness, &["before"])).await;
    harness.slow(Duration::from_secs(1)).await;
    let batch = batch_of(harness, &["a", "b", "c"]);
    let dropped =
        tokio::time::timeout(Duration::from_millis(200), publisher.publish(batch.clone()));
    assert!(dropped.await.is_err(), "the broker answers after a second");
    assert!(tokio::time::timeout(SOON, batch.all_settled()).await.is_ok(), "{batch:?} stays open");
    harness.slow(Duration::ZERO).await;
    assert!((0..3).all(|index| is_confirmed(&batch, index)), "all arrived");
    check(harness, &[&batch]).await;
}

/// Once `abandon` has returned, no message without a verdict is sent any more, and the publisher works on. H024
pub async fn nothing_is_sent_after_abandon(harness: &dyn PublisherHarness) {
    if !harness.faults().silence {
        return falls_away("nothing_is_sent_after_abandon", NO_SILENCE);
    }
    let publisher = harness.publisher().await;
    confirmed(&*publisher, &batch_of(harness, &["before"])).await;
    harness.silence(true).await;
    let batch = batch_of(harness, &["a", "a", "b"]);
    let publishing = call(&publisher, &batch);
    harness.under_way(&*publisher, &batch).await;
    let bounded = tokio::time::timeout(SOON, publisher.abandon()).await;
    assert!(bounded.is_ok(), "abandon returns within {SOON:?}, also from a broker that is silent");
    let open = batch.open();
    harness.silence(false).await;
    let ended = tokio::time::timeout(SOON, publishing).await;
    ended.expect("a call whose messages were abandoned ends").expect("publish does not panic");
    no_more_comes(harness, &batch).await;
    assert_eq!(batch.open(), open, "what was abandoned gets no verdict later");
    confirmed(&*publisher, &batch_of(harness, &["after"])).await;
}

/// Dropping a publisher with open messages neither hangs nor leaves them to be sent later.
pub async fn a_publisher_can_be_dropped_with_open_messages(harness: &dyn PublisherHarness) {
    let rule = "a_publisher_can_be_dropped_with_open_messages";
    if !harness.faults().silence {
        return falls_away(rule, NO_SILENCE);
    }
    let publisher = harness.publisher().await;
    harness.silence(true).await;
    let batch = batch_of(harness, &["a", "b"]);
    let publishing = call(&publisher, &batch);
    harness.under_way(&*publisher, &batch).await;
    publishing.abort();
    let _ = publishing.await;
    let dropped = tokio::task::spawn_blocking(move || drop(publisher));
    let bounded = tokio::time::timeout(SOON, dropped).await;
    bounded.expect("dropping the publisher does not hang").expect("nor does it panic");
    harness.silence(false).await;
    no_more_comes(harness, &batch).await;
}

/// Watches for a while that what the broker holds of `batch` stays as it is.
async fn no_more_comes(harness: &dyn PublisherHarness, batch: &Batch) {
    tokio::time::sleep(ON_THE_WIRE).await;
    let of_batch = async || {
        let mut received = received_ids(harness).await;
        received.retain(|id| ids(batch).contains(id));
        received
    };
    let before = of_batch().await;
    tokio::time::sleep(WATCHED).await;
    assert_eq!(of_batch().await, before, "a message came after it was abandoned");
}
