//! What a settle writes.

use std::time::Duration;

use outbox_core::{
    Dead, Event, EventId, MAX_REASON_BYTES, NewEvent, Retry, Settlements, StoreErrorKind,
};

use super::hold::NO_REQUEUE;
use super::owner::{HOUR, Owner, all, commit, dead, delivered, event, ids, ids_of, retry, spread};
use super::{DeadLetter, StoreHarness};
use crate::support::falls_away;

/// A lane that is lost keeps its rows as they are, while the settle of the others is written. H027, H060, B030
pub async fn a_settle_is_all_or_nothing_per_lane(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    if owner.lanes.len() < 2 {
        return falls_away("a_settle_is_all_or_nothing_per_lane", "the store has one lane");
    }
    commit(harness, &spread(200)).await;
    let events = owner.events().await;
    let (lost, lost_epoch) = owner.lanes[0];
    let mut settlements = owner.settlements();
    settlements.lanes[0] = (lost, lost_epoch - 1);
    for (n, event) in events.iter().enumerate() {
        match n % 3 {
            0 => settlements.delivered.push(delivered(event)),
            1 => settlements.retries.push(retry(event, Some(HOUR))),
            _ => settlements.dead.push(dead(event)),
        }
    }
    let settled = owner.store.settle(&settlements).await.expect("settle works");
    assert_eq!(settled.held, all(&owner.lanes[1..]), "all lanes but the lost one");
    assert_eq!(settled.missing, 0, "what is not held is not missing");
    let of_lost: Vec<Event> = events.iter().filter(|event| event.lane() == lost).cloned().collect();
    assert!(of_lost.len() >= 3, "200 aggregates reach every lane three times");
    let left = owner.events().await;
    assert_eq!(
        ids(&left),
        ids(&of_lost),
        "of the lost lane everything is left, of the others nothing"
    );
    assert!(left.iter().all(|event| event.attempts() == 0 && !event.is_waiting()));
    let buried = events.iter().skip(2).step_by(3).filter(|event| event.lane() != lost).count();
    assert_eq!(harness.dead().await.len(), buried);
}

/// Verdicts of all three kinds for events of every lane go in one settle. H064
pub async fn one_settle_writes_many_lanes(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    commit(harness, &spread(90)).await;
    let events = owner.events().await;
    let (sent, rest) = events.split_at(30);
    let (failed, rest) = rest.split_at(20);
    let (given_up, untouched) = rest.split_at(10);
    let settled = owner
        .settle(|it| {
            it.delivered.extend(sent.iter().map(delivered));
            it.retries.extend(failed.iter().map(|event| retry(event, Some(HOUR))));
            it.dead.extend(given_up.iter().map(dead));
        })
        .await;
    assert_eq!(settled.missing, 0);
    assert_eq!(owner.ids().await, ids(untouched), "only those that were named");
    let mut died: Vec<EventId> = harness.dead().await.into_iter().map(|letter| letter.id).collect();
    let mut expected = ids(given_up);
    died.sort();
    expected.sort();
    assert_eq!(died, expected);
}

/// Repeating a settle whose reply was lost changes nothing more. H061, B086
pub async fn settling_twice_changes_nothing_more(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    commit(harness, &spread(4)).await;
    let events = owner.events().await;
    let fill = |it: &mut Settlements| {
        it.delivered.push(delivered(&events[0]));
        it.retries.push(retry(&events[1], Some(Duration::ZERO)));
        it.dead.push(dead(&events[2]));
    };
    assert_eq!(owner.settle(fill).await.missing, 0);
    assert_eq!(owner.settle(fill).await.missing, 2, "the delivered and the dead one are gone");
    crate::support::eventually("the retry comes", || async {
        let left = owner.events().await;
        if left.len() < 2 {
            return None;
        }
        assert_eq!(ids(&left), [events[1].id().clone(), events[3].id().clone()]);
        assert_eq!(left[0].attempts(), 1, "attempts are absolute");
        Some(())
    })
    .await;
    assert_eq!(harness.dead().await.len(), 1);
}

/// Lane, position and id must all fit: positions can repeat after a restore, ids cannot. H015, H067
pub async fn a_settle_compares_lane_position_and_id(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    commit(harness, &spread(3)).await;
    let events = owner.events().await;
    let mut wrong = Vec::new();
    let mut other_id = events[0].receipt();
    other_id.id = EventId::generate();
    wrong.push(other_id);
    let mut other_position = events[1].receipt();
    other_position.position += 1_000;
    wrong.push(other_position);
    if let Some((lane, _)) = owner.lanes.iter().find(|(lane, _)| *lane != events[2].lane()) {
        let mut other_lane = events[2].receipt();
        other_lane.lane = *lane;
        wrong.push(other_lane);
    }
    for receipt in wrong {
        let mut verdict = delivered(&events[0]);
        verdict.receipt = receipt.clone();
        let sent = owner.settle(|it| it.delivered.push(verdict)).await;
        assert_eq!(sent.missing, 1, "delivered {receipt:?}");
        let mut verdict = retry(&events[0], Some(HOUR));
        verdict.receipt = receipt.clone();
        let failed = owner.settle(|it| it.retries.push(verdict)).await;
        assert_eq!(failed.missing, 1, "retry {receipt:?}");
        let mut verdict = dead(&events[0]);
        verdict.receipt = receipt.clone();
        let died = owner.settle(|it| it.dead.push(verdict)).await;
        assert_eq!(died.missing, 1, "dead {receipt:?}");
    }
    assert_eq!(owner.ids().await, ids(&events), "no row was touched");
    assert_eq!(harness.dead().await, []);
}

/// A dead event is in the dead-letter table with every byte, its attempts and the reason, and no longer pending. H053
pub async fn a_dead_letter_moves_whole(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    let full = NewEvent::builder("order", "it's \u{e4}", "Created.v1")
        .payload("{\"a\": 1}")
        .header("tenant", "a\"b")
        .build()
        .expect("within the limits");
    let bare =
        NewEvent::builder("order", "", "Gone").unordered().build().expect("within the limits");
    commit(harness, &[full, bare]).await;
    let events = owner.events().await;
    owner.settle(|it| it.dead.extend(events.iter().map(dead))).await;
    assert!(owner.events().await.is_empty());
    let mut letters = harness.dead().await;
    letters.sort_by_key(|letter| letter.event_type.clone());
    let expected = events.iter().map(|event| DeadLetter {
        id: event.id().clone(),
        aggregate_type: event.aggregate_type().to_owned(),
        aggregate_id: event.aggregate_id().map(str::to_owned),
        event_type: event.event_type().to_owned(),
        payload: event.payload().map(<[u8]>::to_vec),
        headers: event.headers().map(str::to_owned),
        attempts: 3,
        reason: "given up".to_owned(),
    });
    assert_eq!(letters, expected.collect::<Vec<_>>());
}

/// A dead event holds nobody any more. B018
pub async fn a_dead_event_lets_its_aggregate_go_on(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    let next = event("a");
    commit(harness, &[event("a"), next.clone()]).await;
    let head = owner.events().await.remove(0);
    owner.retry(&head, Some(HOUR)).await;
    assert!(owner.events().await.is_empty());
    owner.bury(&head).await;
    assert_eq!(owner.ids().await, [next.id().clone()]);
}

/// A requeued event comes again with its id and its attempts, and before the later ones of its aggregate. H055, B068
pub async fn a_requeued_event_keeps_its_id_and_holds_its_aggregate(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    let (head, next, other) = (event("a"), event("a"), event("b"));
    commit(harness, &[head.clone(), next.clone(), other.clone()]).await;
    owner.bury(&owner.events().await[0]).await;
    let Some(requeued) = harness.requeue(head.id()).await else {
        return falls_away("a_requeued_event_keeps_its_id_and_holds_its_aggregate", NO_REQUEUE);
    };
    assert!(requeued, "the dead letter is found");
    assert_eq!(harness.requeue(head.id()).await, Some(false), "a second requeue finds nothing");
    assert_eq!(harness.dead().await, []);
    let claimed = owner.events().await;
    let again = claimed.iter().find(|event| event.id() == head.id()).expect("it comes again");
    assert!(again.holds_aggregate() && again.attempts() >= 1, "it holds its aggregate");
    assert!(!claimed.iter().any(|event| event.id() == next.id()), "the next one is held");
    assert!(claimed.iter().any(|event| event.id() == other.id()), "other aggregates are not");
    owner.deliver(again).await;
    assert_eq!(owner.ids().await, ids_of(&[next, other]));
}

/// A row that cannot be read whole comes with a fault, can be given up, and the others come as always. H050
pub async fn one_bad_row_does_not_stop_the_others(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    let good = spread(10);
    commit(harness, &good[..5]).await;
    if harness.insert_bad_row().await.is_none() {
        return falls_away("one_bad_row_does_not_stop_the_others", "the table cannot hold one");
    }
    commit(harness, &good[5..]).await;
    let (bad, rest): (Vec<Event>, Vec<Event>) =
        owner.events().await.into_iter().partition(|event| event.fault().is_some());
    assert_eq!(ids(&rest), ids_of(&good));
    assert_eq!(bad.len(), 1, "the bad row comes, with its fault");
    owner.bury(&bad[0]).await;
    assert_eq!(owner.ids().await, ids_of(&good));
    assert_eq!(harness.dead().await.len(), 1);
}

/// A settle that the database refuses for one row's sake is `Rejected`, whatever the code, and nothing of it is written: so the
/// relay finds that row, and the others go on. H049
pub async fn one_refused_row_is_no_outage(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    commit(harness, &[event("refused"), event("a"), event("b")]).await;
    if harness.refuse_dead_letters("refused").await.is_none() {
        return falls_away("one_refused_row_is_no_outage", "nobody refuses single rows");
    }
    let events = owner.events().await;
    let mut settlements = owner.settlements();
    settlements.delivered.extend(events[1..].iter().map(delivered));
    let others = settlements.clone();
    settlements.dead.push(dead(&events[0]));
    let error = owner.store.settle(&settlements).await.expect_err("the row is refused");
    assert_eq!(error.kind(), StoreErrorKind::Rejected, "{error}");
    assert_eq!(owner.ids().await, ids(&events), "nothing of it was written");
    owner.store.settle(&others).await.expect("the others are not refused");
    assert_eq!(owner.ids().await, ids(&events[..1]));
}

/// The longest reason that the relay hands over is stored. H049, B062
pub async fn the_longest_reason_fits(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    commit(harness, &[event("a"), event("b")]).await;
    let events = owner.events().await;
    let piece = "'\u{20ac}\n\u{1f980}";
    let reason = piece.repeat(MAX_REASON_BYTES / piece.len());
    owner
        .settle(|it| {
            it.retries.push(Retry::new(events[0].receipt(), 1, Some(HOUR), reason.clone()));
            it.dead.push(Dead::new(events[1].receipt(), 1, reason.clone()));
        })
        .await;
    assert_eq!(harness.dead().await[0].reason, reason);
}

/// Counts of a backlog stop at the cap, and are right below it. H042
pub async fn backlog_counts_stop_at_the_cap(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    let backlog = |cap| owner.store.backlog(&owner.worker.pipeline, cap);
    let Some(empty) = backlog(100).await.expect("backlog works") else {
        return falls_away("backlog_counts_stop_at_the_cap", "the store has no figures");
    };
    assert_eq!((empty.pending, empty.oldest, empty.blocked, empty.dead), (0, None, 0, 0));
    commit(harness, &spread(20)).await;
    let events = owner.events().await;
    owner
        .settle(|it| {
            it.retries.extend(events[..3].iter().map(|event| retry(event, None)));
            it.dead.extend(events[3..7].iter().map(dead));
        })
        .await;
    let found = backlog(100).await.expect("backlog works").expect("figures");
    assert_eq!((found.pending, found.blocked, found.dead), (16, 3, 4));
    assert!(found.oldest.is_some_and(|age| age < HOUR), "{:?}", found.oldest);
    let capped = backlog(2).await.expect("backlog works").expect("figures");
    assert_eq!((capped.pending, capped.blocked, capped.dead), (2, 2, 2));
}
