//! In which order the messages of a key arrive.

use std::time::Duration;

use outbox_core::{Batch, FailureClass, KeyOrder};

use super::PublisherHarness;
use super::message::{
    batch_of, by_key, call, check, class, confirmed, ids, is_confirmed, publish, received_ids,
};
use crate::support::falls_away;

/// A thousand messages over fifty keys arrive in the order of each key, in calls as the relay makes them: with many
/// messages of a key for a publisher that keeps prefixes, else with one. H017
pub async fn a_thousand_messages_arrive_in_the_order_of_their_keys(harness: &dyn PublisherHarness) {
    let publisher = harness.publisher().await;
    let per_call = if publisher.key_order() == KeyOrder::Prefix { 250 } else { 50 };
    let keys: Vec<String> = (0..1_000).map(|n| format!("key-{}", n % 50)).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let batches: Vec<Batch> = keys.chunks(per_call).map(|keys| batch_of(harness, keys)).collect();
    for batch in &batches {
        confirmed(&*publisher, batch).await;
    }
    let sent: Vec<String> = batches.iter().flat_map(ids).collect();
    let received = by_key(&harness.received().await);
    assert_eq!(received.len(), 50);
    for (n, key) in keys[..50].iter().enumerate() {
        let expected: Vec<&String> = sent.iter().skip(n).step_by(50).collect();
        let found: Vec<&String> = received[&Some(key.as_bytes().to_vec())].iter().collect();
        assert_eq!(found, expected, "{key}");
    }
}

/// Behind a message that fails, at whatever index, nothing of its key is delivered; other keys are. Behind one that is refused
/// for good its key goes on. H017, H021
pub async fn nothing_of_a_key_is_sent_behind_a_failure(harness: &dyn PublisherHarness) {
    const KEYS: [&str; 9] = ["a", "b", "a", "c", "b", "a", "c", "a", "b"];
    let rule = "nothing_of_a_key_is_sent_behind_a_failure";
    let publisher = harness.publisher().await;
    let classes = harness.faults().refuses;
    if publisher.key_order() != KeyOrder::Prefix {
        return falls_away(rule, UNORDERED);
    }
    if classes.is_empty() {
        return falls_away(rule, "the harness cannot have a message refused");
    }
    for class_wanted in classes {
        for (failing, failing_key) in KEYS.iter().enumerate() {
            let batch = batch_of(harness, &KEYS);
            harness.refuse(failing, batch.messages()[failing].id(), class_wanted).await;
            publish(&*publisher, &batch).await;
            assert_eq!(class(&batch, failing), Some(class_wanted), "message {failing}");
            for (index, key) in KEYS.iter().enumerate().filter(|(index, _)| *index != failing) {
                let behind = index > failing && key == failing_key;
                let delivered = !behind || class_wanted == FailureClass::Permanent;
                let verdict = batch.verdict(index);
                assert_eq!(
                    is_confirmed(&batch, index),
                    delivered,
                    "{index} with {failing} {class_wanted:?}: {verdict:?}"
                );
            }
            check(harness, &[&batch]).await;
        }
    }
}

/// An outage that begins while a call runs leaves of each key a prefix of what the call carried: if it ends by itself, and
/// if the call is abandoned meanwhile. At least one call is cut in the middle, or no prefix was seen. H017
pub async fn an_outage_leaves_a_prefix_of_each_key(harness: &dyn PublisherHarness) {
    let rule = "an_outage_leaves_a_prefix_of_each_key";
    let publisher = harness.publisher().await;
    let faults = harness.faults();
    if publisher.key_order() != KeyOrder::Prefix {
        return falls_away(rule, UNORDERED);
    }
    if !faults.outage {
        return falls_away(rule, super::refusal::NO_OUTAGE);
    }
    let (mut batches, mut cut) = (Vec::new(), false);
    for round in 0..PASSING {
        let batch = batch_of_round(harness, round);
        let publishing = call(&publisher, &batch);
        tokio::time::sleep(Duration::from_millis(round * 3)).await;
        harness.outage(true).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        harness.outage(false).await;
        ended(publishing).await;
        if batch.open() > 0 {
            publisher.abandon().await;
        }
        cut |= is_cut(harness, &batch).await;
        batches.push(batch);
    }
    for round in PASSING..MOST {
        if cut || faults.whole_calls {
            break;
        }
        let batch = batch_of_round(harness, round);
        if faults.slow {
            harness.slow(ANSWER).await;
        }
        let publishing = call(&publisher, &batch);
        while batch.open() == batch.len() && !publishing.is_finished() {
            tokio::task::yield_now().await;
        }
        harness.outage(true).await;
        publisher.abandon().await;
        ended(publishing).await;
        if faults.slow {
            harness.slow(Duration::ZERO).await;
        }
        harness.outage(false).await;
        cut = is_cut(harness, &batch).await;
        batches.push(batch);
    }
    let outages = batches.len();
    assert_ne!(cut, faults.whole_calls, "{outages} outages: was a call cut, against whole calls");
    check(harness, &batches.iter().collect::<Vec<_>>()).await;
    let received = by_key(&harness.received().await);
    for (round, batch) in batches.iter().enumerate() {
        for key in 0..KEYS {
            let name = format!("{round}-{key}").into_bytes();
            let sent: Vec<String> = ids(batch).into_iter().skip(key).step_by(KEYS).collect();
            let found = received.get(&Some(name)).cloned().unwrap_or_default();
            assert_eq!(found, sent[..found.len()], "key {round}-{key}: a prefix in its order");
        }
    }
}

/// Outages that pass by themselves.
const PASSING: u64 = 4;
/// Outages at most, until one has cut a call.
const MOST: u64 = 24;
/// A broker that can be slowed down answers after this time, so that an outage finds a call under way.
const ANSWER: Duration = Duration::from_millis(20);
const KEYS: usize = 20;

fn batch_of_round(harness: &dyn PublisherHarness, round: u64) -> Batch {
    let keys: Vec<String> = (0..400).map(|n| format!("{round}-{}", n % KEYS)).collect();
    batch_of(harness, &keys.iter().map(String::as_str).collect::<Vec<_>>())
}

async fn ended(publishing: tokio::task::JoinHandle<()>) {
    tokio::time::timeout(super::message::PATIENCE, publishing)
        .await
        .expect("the call ends when the outage has ended, or its messages were abandoned")
        .expect("publish does not panic");
}

/// Whether the broker has a part of the batch, and not all of it.
async fn is_cut(harness: &dyn PublisherHarness, batch: &Batch) -> bool {
    let sent = ids(batch);
    let received = received_ids(harness).await;
    let found = received.iter().filter(|id| sent.contains(id)).count();
    0 < found && found < sent.len()
}

const UNORDERED: &str = "the publisher promises no order within a call";
