//! Who waits, who holds whom, and when a wait ends.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use outbox_core::{Due, Event, EventId, NewEvent};

use super::StoreHarness;
use super::owner::{HOUR, Owner, commit, event, event_of, ids_of};
use crate::support::{eventually, falls_away};

const SHORT: Duration = Duration::from_millis(300);

/// Of three events of an aggregate, the second waits: the first still comes, the third does not. H021, H022, B014
pub async fn only_what_is_behind_a_waiting_event_is_held(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    let events = [event("a"), event("a"), event("a")];
    commit(harness, &events).await;
    let claimed = owner.events().await;
    owner.retry(&claimed[1], Some(HOUR)).await;
    assert_eq!(owner.ids().await, ids_of(&events[..1]));
    owner.deliver(&claimed[1]).await;
    assert_eq!(owner.ids().await, ids_of(&[events[0].clone(), events[2].clone()]));
}

/// A retry holds the later events of its aggregate, those that come later too, and nobody else's. H022, B015
pub async fn a_retry_holds_its_aggregate_and_no_other(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    let failing = [event("a"), event("a")];
    commit(harness, &failing).await;
    owner.retry(&owner.events().await[0], Some(HOUR)).await;
    let others: Vec<NewEvent> = (0..40).map(|n| event(&format!("other-{n}"))).collect();
    commit(harness, &others).await;
    commit(harness, &[event("a")]).await;
    assert_eq!(owner.ids().await, ids_of(&others));
}

/// The same id under another aggregate type is another aggregate; ids are compared byte for byte. H010
pub async fn an_aggregate_is_its_type_and_its_id(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    commit(harness, &[event_of("order", "a")]).await;
    owner.retry(&owner.events().await[0], Some(HOUR)).await;
    let others = [
        event_of("invoice", "a"),
        event_of("Order", "a"),
        event_of("order", "A"),
        event_of("order", "a "),
        event_of("order", ""),
        event_of("order", "\u{e4}"),
    ];
    commit(harness, &others).await;
    commit(harness, &[event_of("order", "a")]).await;
    assert_eq!(owner.ids().await, ids_of(&others));
}

/// An event without an aggregate id that waits holds no other one.
pub async fn an_unordered_event_holds_nobody(harness: &dyn StoreHarness) {
    let unordered = || {
        let builder = NewEvent::builder("order", "", "Created").payload("{}").unordered();
        builder.build().expect("within the limits")
    };
    let owner = Owner::new(harness).await;
    commit(harness, &[unordered()]).await;
    owner.retry(&owner.events().await[0], Some(HOUR)).await;
    // So many that some are in its lane.
    let mut others: Vec<NewEvent> = (0..100).map(|_| unordered()).collect();
    others.push(event(""));
    commit(harness, &others).await;
    assert_eq!(owner.ids().await, ids_of(&others));
}

/// An event with a future due time does not come, and the later ones of its aggregate do. B045
pub async fn a_scheduled_event_holds_nobody(harness: &dyn StoreHarness) {
    if !harness.store().capabilities().scheduled {
        return falls_away("a_scheduled_event_holds_nobody", NOT_SCHEDULED);
    }
    let owner = Owner::new(harness).await;
    let later = event("a");
    commit(harness, &[scheduled("a", Due::After(HOUR)), later.clone()]).await;
    assert_eq!(owner.ids().await, [later.id().clone()]);
}

/// A retry without a delay never comes by itself and holds its aggregate; an operator's requeue ends that.
pub async fn a_blocked_head_holds_until_it_is_requeued(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    let (head, next, other) = (event("a"), event("a"), event("b"));
    commit(harness, &[head.clone(), next.clone(), other.clone()]).await;
    owner.retry(&owner.events().await[0], None).await;
    assert_eq!(owner.ids().await, [other.id().clone()], "the aggregate is blocked");
    let Some(requeued) = harness.requeue(head.id()).await else {
        return falls_away("a_blocked_head_holds_until_it_is_requeued", NO_REQUEUE);
    };
    assert!(requeued, "the blocked head is found");
    let claimed = owner.events().await;
    assert_eq!(super::owner::ids(&claimed), ids_of(&[head, other.clone()]));
    owner.deliver(&claimed[0]).await;
    assert_eq!(owner.ids().await, ids_of(&[next, other]));
}

/// Due events come from at or below the lane's `read`, and not when they are excluded; who is behind them stays held.
pub async fn due_events_come_from_what_was_read_and_not_excluded(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    commit(harness, &[event("a"), event("a")]).await;
    let head = owner.events().await.remove(0);
    owner.retry(&head, Some(Duration::ZERO)).await;
    eventually("a retry without delay comes", || come(&owner, head.id())).await;

    let mut request = owner.everything();
    for cursor in &mut request.lanes {
        cursor.read = head.position() - 1;
    }
    assert!(owner.claim(&request).await.events.is_empty(), "it lies behind `read`");
    for cursor in &mut request.lanes {
        cursor.read = head.position();
        cursor.from = head.position();
    }
    let due = owner.claim(&request).await.events;
    assert_eq!(super::owner::ids(&due), [head.id().clone()], "`from` is for fresh rows only");
    assert!(due[0].is_waiting() && due[0].holds_aggregate());
    assert_eq!(due[0].attempts(), 1);
    let excluding = owner.everything().excluding(vec![head.position()]);
    assert!(owner.claim(&excluding).await.events.is_empty(), "excluded, it still holds");
}

/// Of two waiting events of an aggregate the later one does not come before the first is settled, due or not.
pub async fn a_due_event_waits_behind_an_earlier_waiting_one(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    commit(harness, &[event("a"), event("a"), event("b")]).await;
    let claimed = owner.events().await;
    owner.retry(&claimed[0], Some(HOUR)).await;
    owner.retry(&claimed[1], Some(Duration::ZERO)).await;
    owner.retry(&claimed[2], Some(Duration::ZERO)).await;
    let due =
        eventually("the other aggregate's retry comes", || come(&owner, claimed[2].id())).await;
    assert_eq!(super::owner::ids(&due), [claimed[2].id().clone()]);
    owner.deliver(&claimed[0]).await;
    assert_eq!(owner.ids().await, super::owner::ids(&claimed[1..]));
}

/// A retry comes when its delay is over by the store's clock: not before, and soon after. H004
pub async fn a_retry_comes_when_the_stores_clock_says_so(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    commit(harness, &[event("a")]).await;
    let event = owner.events().await.remove(0);
    let before = clock(&owner).await;
    owner.retry(&event, Some(SHORT)).await;
    eventually("a retry comes when it is due", || come(&owner, event.id())).await;
    let waited = clock(&owner).await.duration_since(before).unwrap_or_default();
    assert!(waited >= SHORT, "it came {waited:?} after the settle, its delay was {SHORT:?}");
}

/// A scheduled event comes at its time by the store's clock, given as a delay or as a time. H004
pub async fn a_scheduled_event_comes_when_the_stores_clock_says_so(harness: &dyn StoreHarness) {
    if !harness.store().capabilities().scheduled {
        return falls_away("a_scheduled_event_comes_when_the_stores_clock_says_so", NOT_SCHEDULED);
    }
    let owner = Owner::new(harness).await;
    let before = clock(&owner).await;
    let past = scheduled("past", Due::At(before - HOUR));
    let future = scheduled("future", Due::At(before + HOUR));
    let soon = scheduled("soon", Due::After(SHORT));
    commit(harness, &[future.clone(), soon.clone(), past.clone()]).await;
    let claimed = eventually("a scheduled event comes", || come(&owner, soon.id())).await;
    let waited = clock(&owner).await.duration_since(before).unwrap_or_default();
    assert!(waited >= SHORT, "it came {waited:?} after the start, it was due after {SHORT:?}");
    assert_eq!(super::owner::ids(&claimed), ids_of(&[soon, past]));
    assert!(claimed.iter().all(|event| event.is_waiting() && !event.holds_aggregate()));
}

pub(super) const NO_REQUEUE: &str = "the table has no requeue";
const NOT_SCHEDULED: &str = "the store has no scheduled events";

fn scheduled(aggregate: &str, due: Due) -> NewEvent {
    let builder = NewEvent::builder("order", aggregate, "Created").payload("{}").due(due);
    builder.build().expect("within the limits")
}

/// What a claim gives, once the event is among it.
async fn come(owner: &Owner, id: &EventId) -> Option<Vec<Event>> {
    let events = owner.events().await;
    events.iter().any(|event| event.id() == id).then_some(events)
}

/// The store's clock, or ours when it has none to tell.
async fn clock(owner: &Owner) -> SystemTime {
    match owner.claim(&owner.everything()).await.now_micros {
        0 => SystemTime::now(),
        micros => UNIX_EPOCH + Duration::from_micros(micros.unsigned_abs()),
    }
}
