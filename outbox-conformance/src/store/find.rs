//! What an operator is told about one event.

use std::time::{Duration, SystemTime};

use outbox_core::{DeadLetterFilter, Due, Event, EventRecord, EventState, NewEvent, Page};

use super::administration::AdministrationHarness;
use super::owner::{HOUR, Owner, commit, event};
use crate::support::falls_away;

/// An event that waits for its turn is pending, and told with all that names it; one behind an event that waits is, too.
pub async fn a_pending_event_is_found_as_pending(harness: &dyn AdministrationHarness) {
    let owner = Owner::new(harness).await;
    let unordered = NewEvent::builder("order", "", "Gone").unordered().build();
    let events =
        [event("it's \u{e4}"), event("it's \u{e4}"), unordered.expect("within the limits")];
    commit(harness, &events).await;
    let claimed = owner.events().await;
    for expected in &claimed {
        let found = found(harness, expected).await;
        assert_eq!((&found.id, found.position), (expected.id(), expected.position()));
        assert_eq!(found.aggregate_type, expected.aggregate_type());
        assert_eq!(found.aggregate_id.as_deref(), expected.aggregate_id());
        assert_eq!(found.event_type, expected.event_type());
        assert_eq!((found.attempts, found.created_at), (0, expected.created_at()));
        assert_eq!(found.state, EventState::Pending);
    }
    owner.retry(&claimed[0], Some(HOUR)).await;
    assert_eq!(found(harness, &claimed[1]).await.state, EventState::Pending);
}

/// An event that was written with a due time is scheduled for then.
pub async fn a_scheduled_event_is_found_as_scheduled(harness: &dyn AdministrationHarness) {
    if !harness.store().capabilities().scheduled {
        return falls_away("a_scheduled_event_is_found_as_scheduled", "no event is scheduled");
    }
    // In whole milliseconds, which every clock here has.
    let time = SystemTime::UNIX_EPOCH + Duration::from_millis(4_000_000_000_123);
    let builder = NewEvent::builder("order", "a", "Created").payload("{}").due(Due::At(time));
    let scheduled = builder.build().expect("within the limits");
    commit(harness, std::slice::from_ref(&scheduled)).await;
    let found = harness.administration().find(scheduled.id()).await.expect("it can be read");
    assert_eq!(states(&found), [EventState::Scheduled { due_at: time }]);
}

/// An event that failed is retrying, with its attempts, when it is due, and why.
pub async fn an_event_that_failed_is_found_as_retrying(harness: &dyn AdministrationHarness) {
    let owner = Owner::new(harness).await;
    commit(harness, &[event("a")]).await;
    let event = owner.events().await.remove(0);
    owner
        .settle(|it| {
            it.retries.push(outbox_core::Retry::new(event.receipt(), 7, Some(HOUR), "no\nroute"));
        })
        .await;
    let found = found(harness, &event).await;
    let EventState::Retrying { due_at, reason } = &found.state else {
        panic!("{found:?} is retrying");
    };
    assert_eq!((found.attempts, reason.as_str()), (7, "no\nroute"));
    let wait = due_at.duration_since(event.created_at()).expect("it is due later");
    assert!(wait >= HOUR && wait < 2 * HOUR, "{wait:?}");
}

/// An event that waits until an operator decides is blocked, and retrying when he has.
pub async fn a_blocked_head_is_found_as_blocked(harness: &dyn AdministrationHarness) {
    let owner = Owner::new(harness).await;
    commit(harness, &[event("a")]).await;
    let event = owner.events().await.remove(0);
    owner.retry(&event, None).await;
    let blocked = found(harness, &event).await;
    assert_eq!(blocked.state, EventState::Blocked { reason: "not now".to_owned() });
    let admin = harness.administration();
    assert!(admin.unblock(event.position()).await.expect("unblock works"));
    assert_eq!(found(harness, &event).await.state.as_str(), "retrying");
}

/// An event that was given up is dead, under the name of its dead letter; when it is requeued it is retrying.
pub async fn an_event_that_was_given_up_is_found_as_dead(harness: &dyn AdministrationHarness) {
    let owner = Owner::new(harness).await;
    commit(harness, &[event("a")]).await;
    let event = owner.events().await.remove(0);
    owner.bury(&event).await;
    let dead = found(harness, &event).await;
    let admin = harness.administration();
    let letters = admin.dead_letters(&DeadLetterFilter::default(), Page::default()).await;
    let letter = letters.expect("the list can be read").remove(0);
    let (entry, died_at) = (letter.entry, letter.died_at);
    assert_eq!(dead.state, EventState::Dead { entry, reason: "given up".to_owned(), died_at });
    assert_eq!((dead.attempts, dead.position), (3, event.position()));
    assert!(admin.requeue(entry).await.expect("requeue works"));
    let again = found(harness, &event).await;
    let EventState::Retrying { reason, .. } = &again.state else { panic!("{again:?} is retrying") };
    assert_eq!((again.attempts, reason.as_str()), (1, "given up"));
}

/// An event that was delivered is in the archive with where it went, or nowhere if there is none; others are as they were.
pub async fn a_delivered_event_is_found_in_the_archive(harness: &dyn AdministrationHarness) {
    let owner = Owner::new(harness).await;
    commit(harness, &[event("a"), event("b")]).await;
    let events = owner.events().await;
    owner.deliver(&events[0]).await;
    let records = harness.administration().find(events[0].id()).await.expect("it can be read");
    if harness.archives() {
        let [EventState::Delivered { destination, settled_at }] = &states(&records)[..] else {
            panic!("{records:?} is delivered");
        };
        assert_eq!(destination, "destination");
        let took = settled_at.duration_since(events[0].created_at()).expect("it was later");
        assert!(took < HOUR, "{took:?}");
        assert_eq!(records[0].position, events[0].position());
    } else {
        assert_eq!(records, []);
    }
    assert_eq!(found(harness, &events[1]).await.state, EventState::Pending);
}

/// The one record of an event.
async fn found(harness: &dyn AdministrationHarness, event: &Event) -> EventRecord {
    let mut found = harness.administration().find(event.id()).await.expect("it can be read");
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

fn states(records: &[EventRecord]) -> Vec<EventState> {
    records.iter().map(|record| record.state.clone()).collect()
}
