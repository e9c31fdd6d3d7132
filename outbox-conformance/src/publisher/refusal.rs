//! Failures, each with its class, and who is not hurt by them.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::{Batch, FailureClass};

use super::PublisherHarness;
use super::message::{
    Draft, PATIENCE, batch, batch_of, call, check, class, confirmed, is_confirmed, publish,
};
use crate::support::{SOON, eventually, falls_away};

/// A message that the broker refuses gets a verdict of that class, and is not at the broker. H045
pub async fn each_failure_has_its_class(harness: &dyn PublisherHarness) {
    let classes = harness.faults().refuses;
    if classes.is_empty() {
        return falls_away("each_failure_has_its_class", NO_REFUSALS);
    }
    let publisher = harness.publisher().await;
    for wanted in classes {
        let batch = batch_of(harness, &["a"]);
        harness.refuse(0, batch.messages()[0].id(), wanted).await;
        publish(&*publisher, &batch).await;
        assert_eq!(class(&batch, 0), Some(wanted), "{:?}", batch.verdict(0));
        check(harness, &[&batch]).await;
        confirmed(&*publisher, &batch_of(harness, &["a"])).await;
    }
}

/// One refused message, at whatever index, leaves those of other keys alone. H050
pub async fn a_refused_message_does_not_hurt_its_neighbours(harness: &dyn PublisherHarness) {
    const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];
    let rule = "a_refused_message_does_not_hurt_its_neighbours";
    // An unavailable broker is unavailable to the neighbours too.
    let mut classes = harness.faults().refuses;
    classes.retain(|class| *class != FailureClass::Unavailable);
    if classes.is_empty() {
        return falls_away(rule, NO_REFUSALS);
    }
    let publisher = harness.publisher().await;
    for wanted in classes {
        for failing in 0..KEYS.len() {
            let batch = batch_of(harness, &KEYS);
            harness.refuse(failing, batch.messages()[failing].id(), wanted).await;
            publish(&*publisher, &batch).await;
            for index in 0..KEYS.len() {
                let (verdict, good) = (batch.verdict(index), index != failing);
                assert_eq!(
                    is_confirmed(&batch, index),
                    good,
                    "{index} with {failing} {wanted:?}: {verdict:?}"
                );
            }
            check(harness, &[&batch]).await;
        }
    }
}

/// Too large a message is refused for good, at whatever index; the others arrive, those of its key too. H050
pub async fn a_message_that_is_too_large_is_refused_for_good(harness: &dyn PublisherHarness) {
    let Some(bytes) = harness.faults().too_large else {
        return falls_away(
            "a_message_that_is_too_large_is_refused_for_good",
            "nothing is too large",
        );
    };
    let publisher = harness.publisher().await;
    for large in 0..3 {
        let mut drafts: Vec<Draft> = ["a", "b", "c", "a", "b", "c"].map(Draft::of_key).to_vec();
        drafts[large].payload = Some(vec![b'x'; bytes]);
        if publisher.key_order() == outbox_core::KeyOrder::Unordered {
            drafts.truncate(3);
        }
        let batch = batch(harness, &drafts);
        publish(&*publisher, &batch).await;
        assert_eq!(
            class(&batch, large),
            Some(FailureClass::Permanent),
            "{:?}",
            batch.verdict(large)
        );
        for index in (0..batch.len()).filter(|index| *index != large) {
            assert!(is_confirmed(&batch, index), "{index}: {:?}", batch.verdict(index));
        }
        check(harness, &[&batch]).await;
    }
}

/// A destination that is missing or not permitted refuses its messages; those to others arrive. H045
pub async fn a_destination_that_refuses_is_no_outage(harness: &dyn PublisherHarness) {
    let Some(refused) = harness.faults().refused_destination else {
        let rule = "a_destination_that_refuses_is_no_outage";
        return falls_away(rule, "the harness has no destination that refuses");
    };
    let publisher = harness.publisher().await;
    let good: Arc<str> = harness.destination();
    let drafts = ["a", "b", "c", "d"].map(Draft::of_key);
    let to = |index: usize| if index.is_multiple_of(2) { &good } else { &refused };
    let messages = drafts.iter().enumerate().map(|(index, draft)| draft.to(to(index)));
    let batch = Batch::new(messages.collect());
    publish(&*publisher, &batch).await;
    for index in 0..batch.len() {
        let (verdict, is_good) = (batch.verdict(index), index.is_multiple_of(2));
        assert_eq!(is_confirmed(&batch, index), is_good, "message {index}: {verdict:?}");
        let expected = (!is_good).then_some(FailureClass::Refused);
        assert_eq!(class(&batch, index), expected, "message {index}: {verdict:?}");
    }
    check(harness, &[&batch]).await;
}

/// While the broker cannot be reached nothing is confirmed, and no failure is counted against an event. H044
pub async fn an_outage_is_nobodys_fault(harness: &dyn PublisherHarness) {
    if !harness.faults().outage {
        return falls_away("an_outage_is_nobodys_fault", NO_OUTAGE);
    }
    let publisher = harness.publisher().await;
    confirmed(&*publisher, &batch_of(harness, &["before"])).await;
    harness.outage(true).await;
    let batch = batch_of(harness, &["a", "b", "c"]);
    let ended = tokio::time::timeout(PATIENCE, publisher.publish(batch.clone())).await;
    if batch.open() > 0 || ended.is_err() {
        publisher.abandon().await;
    }
    for index in 0..batch.len() {
        let fair = [None, Some(FailureClass::Unavailable), Some(FailureClass::Unsent)];
        assert!(!is_confirmed(&batch, index), "message {index} was confirmed by nobody");
        assert!(
            fair.contains(&class(&batch, index)),
            "message {index}: {:?}",
            batch.verdict(index)
        );
    }
    harness.outage(false).await;
    check(harness, &[&batch]).await;
}

/// After each of several outages the same publisher confirms again. H048
pub async fn it_works_again_after_each_outage(harness: &dyn PublisherHarness) {
    if !harness.faults().outage {
        return falls_away("it_works_again_after_each_outage", NO_OUTAGE);
    }
    let publisher = harness.publisher().await;
    for _ in 0..3 {
        confirmed(&*publisher, &batch_of(harness, &["a"])).await;
        harness.outage(true).await;
        let lost = batch_of(harness, &["a"]);
        let _ = tokio::time::timeout(Duration::from_secs(1), publisher.publish(lost.clone())).await;
        if lost.open() > 0 {
            publisher.abandon().await;
        }
        harness.outage(false).await;
        eventually("a message is confirmed again", || async {
            let batch = batch_of(harness, &["a"]);
            let _ = tokio::time::timeout(SOON, publisher.publish(batch.clone())).await;
            if batch.open() > 0 {
                publisher.abandon().await;
            }
            is_confirmed(&batch, 0).then_some(())
        })
        .await;
    }
}

/// A broker that does not answer confirms nothing, and its messages are not refused as if it had. H046, H066
pub async fn silence_is_no_confirmation(harness: &dyn PublisherHarness) {
    if !harness.faults().silence {
        return falls_away("silence_is_no_confirmation", NO_SILENCE);
    }
    let publisher = harness.publisher().await;
    confirmed(&*publisher, &batch_of(harness, &["before"])).await;
    harness.silence(true).await;
    let batch = batch_of(harness, &["a", "b", "c"]);
    let publishing = call(&publisher, &batch);
    let _ = tokio::time::timeout(Duration::from_secs(3), publishing).await;
    let fair = [None, Some(FailureClass::Unavailable), Some(FailureClass::Unsent)];
    for index in 0..batch.len() {
        assert!(!is_confirmed(&batch, index), "message {index} was confirmed by nobody");
        assert!(
            fair.contains(&class(&batch, index)),
            "message {index}: {:?}",
            batch.verdict(index)
        );
    }
    publisher.abandon().await;
    harness.silence(false).await;
    check(harness, &[&batch]).await;
}

/// A call returns at its deadline, also when the broker never answers. H026
pub async fn a_call_ends_at_its_deadline(harness: &dyn PublisherHarness) {
    let rule = "a_call_ends_at_its_deadline";
    let faults = harness.faults();
    let Some(deadline) = faults.deadline else {
        return falls_away(rule, "the publisher has no deadline of its own: the relay's counts");
    };
    if !faults.silence {
        return falls_away(rule, NO_SILENCE);
    }
    let publisher = harness.publisher().await;
    harness.silence(true).await;
    let batch = batch_of(harness, &["a"]);
    let margin = deadline + Duration::from_secs(5);
    let ended = tokio::time::timeout(margin, publisher.publish(batch.clone())).await;
    assert!(
        ended.is_ok(),
        "the call runs on {margin:?} after it began, its deadline is {deadline:?}"
    );
    assert!(!is_confirmed(&batch, 0), "nobody confirmed it");
    publisher.abandon().await;
    harness.silence(false).await;
}

const NO_REFUSALS: &str = "the harness cannot have a message refused";
pub(super) const NO_OUTAGE: &str = "the harness cannot cause an outage";
pub(super) const NO_SILENCE: &str = "the harness cannot silence its broker";
