//! Numbers of the events of each aggregate, from a writer that draws them.

use std::time::UNIX_EPOCH;

use outbox_core::{Due, Event, NewEvent, Watermark, headers};

use super::owner::{Owner, event, event_of};
use super::{StoreHarness, WriterTransaction};
use crate::support::falls_away;

const NO_NUMBERS: &str = "the writer does not number events";
const ONE_WRITER: &str = "the store has one writer at a time";

/// Each aggregate counts from 1, in the order of the slice and across calls, and the event's own headers stay. H204
pub async fn numbers_rise_by_one_in_each_aggregate(harness: &dyn StoreHarness) {
    let Some(mut transaction) = harness.begin_numbered().await else {
        return falls_away("numbers_rise_by_one_in_each_aggregate", NO_NUMBERS);
    };
    let own = NewEvent::builder("order", "b", "Created").header("x", "y").build();
    append(&mut *transaction, &[event("b"), event("a"), event("b")]).await;
    append(&mut *transaction, &[event("a"), own.expect("within the limits")]).await;
    transaction.commit().await;
    number(harness, &[event("a")]).await;
    let events = Owner::new(harness).await.events().await;
    let found: Vec<_> = events.iter().map(numbered).collect();
    let expected = [("b", 1), ("a", 1), ("b", 2), ("a", 2), ("b", 3), ("a", 3)];
    assert_eq!(found, expected.map(|(key, number)| (key.to_owned(), Some(number))));
    let mut names = Vec::new();
    let json = events[4].headers().expect("it has headers");
    headers::for_each(json, &mut |name, value| names.push(format!("{name}={value}")))
        .expect("flat");
    names.sort();
    assert_eq!(names, ["outbox-sequence=3", "x=y"]);
}

/// Who appends to an aggregate of an open transaction waits for its end: numbers, positions and commits have one order. H204
pub async fn numbers_follow_the_order_of_commits(harness: &dyn StoreHarness) {
    const RULE: &str = "numbers_follow_the_order_of_commits";
    if harness.store().capabilities().watermark == Watermark::CommitOrder {
        return falls_away(RULE, ONE_WRITER);
    }
    for (key, commits) in [("committed", true), ("rolled back", false)] {
        let (Some(mut first), Some(mut second)) =
            (harness.begin_numbered().await, harness.begin_numbered().await)
        else {
            return falls_away(RULE, NO_NUMBERS);
        };
        append(&mut *first, &[first_of(key)]).await;
        let waits = async {
            append(&mut *second, &[event(key)]).await;
            second.commit().await;
        };
        let ends = async {
            // Either order is right; with this one the wait is seen.
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            if commits {
                first.commit().await;
            } else {
                first.rollback().await;
            }
        };
        futures_util::future::join(waits, ends).await;
    }
    let events = Owner::new(harness).await.events().await;
    assert_eq!(numbers_of(&events, "committed"), [1, 2]);
    assert_eq!(events[0].event_type(), "First", "the one that began");
    assert_eq!(numbers_of(&events, "rolled back"), [1]);
}

/// Many that append to the same aggregates in opposite orders all get through, and leave no number out. H204
pub async fn writers_of_the_same_aggregates_do_not_lock_each_other_out(harness: &dyn StoreHarness) {
    const RULE: &str = "writers_of_the_same_aggregates_do_not_lock_each_other_out";
    const TIMES: u64 = 15;
    if harness.store().capabilities().watermark == Watermark::CommitOrder {
        return falls_away(RULE, ONE_WRITER);
    }
    let Some(transaction) = harness.begin_numbered().await else {
        return falls_away(RULE, NO_NUMBERS);
    };
    transaction.rollback().await;
    let writers = [["a", "b"], ["b", "a"], ["a", "b"]].map(|keys| async move {
        for _ in 0..TIMES {
            number(harness, &keys.map(event)).await;
        }
    });
    futures_util::future::join_all(writers).await;
    let events = Owner::new(harness).await.events().await;
    for key in ["a", "b"] {
        assert_eq!(numbers_of(&events, key), (1..=3 * TIMES).collect::<Vec<_>>(), "{key}");
    }
}

/// What was rolled back, dropped, or taken back to a savepoint has used no number. H204
pub async fn a_rollback_takes_its_numbers_back(harness: &dyn StoreHarness) {
    let savepoints = harness.store().capabilities().savepoints;
    for drops in [false, true] {
        let Some(mut transaction) = harness.begin_numbered().await else {
            return falls_away("a_rollback_takes_its_numbers_back", NO_NUMBERS);
        };
        append(&mut *transaction, &[event("a"), event("a"), event("b")]).await;
        if drops {
            drop(transaction);
        } else {
            transaction.rollback().await;
        }
    }
    let mut transaction = harness.begin_numbered().await.expect("it numbers");
    append(&mut *transaction, &[event("a")]).await;
    if savepoints {
        transaction.savepoint().await;
        append(&mut *transaction, &[event("a"), event("b")]).await;
        transaction.rollback_to_savepoint().await;
    }
    append(&mut *transaction, &[event("a"), event("b")]).await;
    transaction.commit().await;
    let events = Owner::new(harness).await.events().await;
    assert_eq!(numbers_of(&events, "a"), [1, 2]);
    assert_eq!(numbers_of(&events, "b"), [1]);
}

/// Aggregates that differ in one byte, or in their type, count for themselves. H010, H204
pub async fn aggregates_are_numbered_bytewise(harness: &dyn StoreHarness) {
    let near =
        ["a", "A", "a ", " a", "\u{e4}", "a\u{308}", "\u{df}", "ss", "'", "\\", "1", "01", ""];
    let long = "x".repeat(255);
    let names = near.into_iter().filter(|name| !name.is_empty());
    let events: Vec<NewEvent> = near
        .into_iter()
        .chain([long.as_str()])
        .map(event)
        .chain(names.map(|name| event_of(name, "of this type")))
        .collect();
    let Some(transaction) = harness.begin_numbered().await else {
        return falls_away("aggregates_are_numbered_bytewise", NO_NUMBERS);
    };
    transaction.rollback().await;
    number(harness, &events).await;
    for event in Owner::new(harness).await.events().await {
        let (kind, (key, number)) = (event.aggregate_type(), numbered(&event));
        assert_eq!(number, Some(1), "{kind:?} {key:?}");
    }
}

/// An event that has no place in the order of an aggregate has no number and uses none. H204
pub async fn unordered_and_scheduled_events_have_no_number(harness: &dyn StoreHarness) {
    let Some(mut transaction) = harness.begin_numbered().await else {
        return falls_away("unordered_and_scheduled_events_have_no_number", NO_NUMBERS);
    };
    let unordered = NewEvent::builder("order", "", "Created").unordered().build();
    let mut events = vec![unordered.expect("within the limits")];
    if harness.store().capabilities().scheduled {
        let due = Due::At(UNIX_EPOCH);
        let scheduled = NewEvent::builder("order", "a", "Created").due(due).build();
        events.push(scheduled.expect("within the limits"));
    }
    events.push(event("a"));
    append(&mut *transaction, &events).await;
    transaction.commit().await;
    let claimed = Owner::new(harness).await.events().await;
    assert_eq!(claimed.len(), events.len(), "{claimed:?}");
    for event in claimed {
        let is_plain = event.aggregate_id().is_some() && !event.is_waiting();
        assert_eq!(numbered(&event).1, is_plain.then_some(1), "{event:?}");
    }
}

fn first_of(key: &str) -> NewEvent {
    NewEvent::builder("order", key, "First").payload("{}").build().expect("within the limits")
}

async fn append(transaction: &mut dyn WriterTransaction, events: &[NewEvent]) {
    transaction.append(events).await.expect("append works");
}

/// Commits these events, numbered.
async fn number(harness: &dyn StoreHarness, events: &[NewEvent]) {
    let mut transaction = harness.begin_numbered().await.expect("it numbers");
    append(&mut *transaction, events).await;
    transaction.commit().await;
}

/// The key of an event, and its number.
fn numbered(event: &Event) -> (String, Option<u64>) {
    let mut number = None;
    if let Some(json) = event.headers() {
        let mut each = |name: &str, value: &str| {
            if name == headers::SEQUENCE {
                number = Some(value.parse().expect("a number"));
            }
        };
        headers::for_each(json, &mut each).expect("flat");
    }
    (event.aggregate_id().unwrap_or_default().to_owned(), number)
}

/// The numbers of this aggregate, in the order of the positions.
fn numbers_of(events: &[Event], key: &str) -> Vec<u64> {
    let of_key = events.iter().map(numbered).filter(|(found, _)| found == key);
    of_key.map(|(_, number)| number.expect("it is numbered")).collect()
}
