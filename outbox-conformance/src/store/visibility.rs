//! What a claim sees: committed events, and only those.

use std::time::Duration;

use outbox_core::{Event, Position, Watermark};

use super::StoreHarness;
use super::owner::{Owner, commit, event, ids_of, spread};
use crate::support::{eventually, falls_away};

/// An event that commits after one with a higher position is seen. H001, B001
pub async fn a_late_commit_is_seen(harness: &dyn StoreHarness) {
    if harness.store().capabilities().watermark == Watermark::CommitOrder {
        return falls_away("a_late_commit_is_seen", "the store has one writer at a time");
    }
    let owner = Owner::new(harness).await;
    let (late_event, early_event) = (event("late"), event("early"));
    let mut late = harness.begin().await;
    let mut early = harness.begin().await;
    late.append(std::slice::from_ref(&late_event)).await.expect("append works");
    early.append(std::slice::from_ref(&early_event)).await.expect("append works");
    early.commit().await;
    assert_eq!(owner.ids().await, [early_event.id().clone()], "the open one is not seen");
    late.commit().await;
    let seen = owner.ids().await;
    assert_eq!(seen.len(), 2, "both are seen");
    assert!(seen.contains(late_event.id()) && seen.contains(early_event.id()));
}

/// An event comes from wherever it stands, also where no table draws a position: at 0 and below, and at the highest of all.
pub async fn a_position_given_by_hand_is_read_like_any_other(harness: &dyn StoreHarness) {
    let rule = "a_position_given_by_hand_is_read_like_any_other";
    let owner = Owner::new(harness).await;
    let given = [Position::MIN + 1, -5, 0, Position::MAX];
    for position in given {
        if harness.insert_at(position).await.is_none() {
            return falls_away(rule, "the table takes no position");
        }
    }
    let events = owner.events().await;
    assert_eq!(events.iter().map(Event::position).collect::<Vec<_>>(), given);
    owner.retry(&events[0], Some(Duration::ZERO)).await;
    owner.retry(&events[1], None).await;
    match harness.requeue(events[1].id()).await {
        None => owner.retry(&events[1], Some(Duration::ZERO)).await,
        found => assert_eq!(found, Some(true), "an operator finds it"),
    }
    let all_again = || async { (owner.events().await.len() == given.len()).then_some(()) };
    eventually("what waited is due again", all_again).await;
    for event in events {
        owner.deliver(&event).await;
    }
    assert_eq!(owner.ids().await, []);
}

/// An event of a transaction that was rolled back, or dropped, is never seen. H011
pub async fn what_is_rolled_back_was_never_there(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    let mut rolled_back = harness.begin().await;
    rolled_back.append(&[event("a")]).await.expect("append works");
    rolled_back.rollback().await;
    let mut dropped = harness.begin().await;
    dropped.append(&[event("a")]).await.expect("append works");
    drop(dropped);
    let kept = event("a");
    commit(harness, std::slice::from_ref(&kept)).await;
    assert_eq!(owner.ids().await, [kept.id().clone()]);
}

/// What was appended behind a savepoint to which the transaction went back is never seen; the rest is. H011, B052
pub async fn a_savepoint_takes_back_its_part_only(harness: &dyn StoreHarness) {
    if !harness.store().capabilities().savepoints {
        return falls_away("a_savepoint_takes_back_its_part_only", "the store has no savepoints");
    }
    let owner = Owner::new(harness).await;
    let kept = [event("a"), event("a")];
    let mut transaction = harness.begin().await;
    transaction.append(&kept[..1]).await.expect("append works");
    transaction.savepoint().await;
    transaction.append(&[event("a"), event("b")]).await.expect("append works");
    transaction.rollback_to_savepoint().await;
    transaction.append(&kept[1..]).await.expect("append works");
    transaction.commit().await;
    assert_eq!(owner.ids().await, ids_of(&kept));
}

/// Claiming changes nothing: a second claim, and one through another store, give the same. H028
pub async fn a_claim_is_a_read(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    commit(harness, &spread(20)).await;
    let first = owner.events().await;
    assert_eq!(first.len(), 20);
    for store in [harness.store(), harness.second_store().await] {
        let mut again = store.claim(&owner.everything()).await.expect("claim works").events;
        again.sort_by_key(outbox_core::Event::position);
        let compared =
            |event: &outbox_core::Event| (event.receipt(), event.attempts(), event.is_waiting());
        assert_eq!(
            again.iter().map(compared).collect::<Vec<_>>(),
            first.iter().map(compared).collect::<Vec<_>>()
        );
    }
}

/// Events get rising positions in the order of the slice, and of the calls. H007, H008
pub async fn positions_rise_in_the_order_of_the_slice(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    let events = spread(200);
    let mut transaction = harness.begin().await;
    transaction.append(&events[..150]).await.expect("append works");
    transaction.append(&events[150..]).await.expect("append works");
    transaction.commit().await;
    let claimed = owner.events().await;
    assert_eq!(super::owner::ids(&claimed), ids_of(&events));
    assert!(claimed[0].position() >= 1, "positions begin at 1");
    assert!(claimed.windows(2).all(|pair| pair[0].position() < pair[1].position()));
}

/// Appending nothing does nothing, and leaves the transaction usable.
pub async fn an_empty_append_does_nothing(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    let kept = event("a");
    let mut transaction = harness.begin().await;
    transaction.append(&[]).await.expect("append works");
    transaction.append(std::slice::from_ref(&kept)).await.expect("append works");
    transaction.commit().await;
    assert_eq!(owner.ids().await, [kept.id().clone()]);
}
