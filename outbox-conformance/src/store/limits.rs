//! How much a claim gives, and what it says about the rest.

use std::collections::BTreeMap;

use outbox_core::{
    ClaimRequest, Claimed, Event, LaneId, LaneRead, NewEvent, Pipeline, Position, TypeFilter,
};

use super::StoreHarness;
use super::owner::{Owner, commit, event, event_of, ids, ids_of, spread};

/// Within a lane fresh rows come in position order. H008, B017
pub async fn events_of_a_lane_rise(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    commit(harness, &spread(100)).await;
    commit(harness, &spread(100)).await;
    let mut last: BTreeMap<LaneId, Position> = BTreeMap::new();
    let claimed = owner.claim(&owner.everything()).await.events;
    assert_eq!(claimed.len(), 200);
    for event in claimed {
        let before = last.insert(event.lane(), event.position());
        assert!(before < Some(event.position()), "{event:?} came after {before:?}");
    }
}

/// All events of an aggregate are in one lane, one that the store has. H009
pub async fn an_aggregate_has_one_lane(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    commit(harness, &spread(50)).await;
    commit(harness, &spread(50)).await;
    let mut lanes = BTreeMap::new();
    for event in owner.events().await {
        let aggregate = event.aggregate_id().map(str::to_owned);
        let lane = *lanes.entry(aggregate).or_insert(event.lane());
        assert_eq!(lane, event.lane(), "{event:?}");
        assert!(owner.lanes.iter().any(|(owned, _)| *owned == lane), "{event:?} is in no lane");
    }
    assert_eq!(lanes.len(), 50);
}

/// No lane gives more fresh rows than its `take`, and those are its first ones.
pub async fn a_lane_gives_no_more_than_take(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    commit(harness, &spread(100)).await;
    let everything = owner.events().await;
    let mut request = owner.everything();
    request.lanes.iter_mut().for_each(|cursor| cursor.take = 2);
    let claimed = owner.claim(&request).await;
    for (lane, _) in &owner.lanes {
        let of_lane = |events: &[Event]| -> Vec<Position> {
            let mine = events.iter().filter(|event| event.lane() == *lane);
            mine.map(Event::position).collect()
        };
        let expected: Vec<Position> = of_lane(&everything).into_iter().take(2).collect();
        assert_eq!(of_lane(&claimed.events), expected, "lane {lane}");
    }
    check_reads(&request, &claimed, &everything);
}

/// A claim gives no more fresh rows than `limit`, and no more due rows. H018, H034
pub async fn a_claim_gives_no_more_than_limit(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    commit(harness, &spread(40)).await;
    let everything = owner.events().await;
    let mut request = owner.everything();
    for limit in [1, 7, 39] {
        request.limit = limit;
        let claimed = owner.claim(&request).await;
        assert_eq!(claimed.events.len(), limit as usize);
        check_reads(&request, &claimed, &everything);
    }
    owner
        .settle(|it| {
            it.retries.extend(
                everything[..20]
                    .iter()
                    .map(|event| super::owner::retry(event, Some(std::time::Duration::ZERO))),
            );
        })
        .await;
    request.limit = 7;
    crate::support::eventually("due rows come", || async {
        let claimed = owner.claim(&request).await;
        let due = claimed.events.iter().filter(|event| event.is_waiting()).count();
        let fresh = claimed.events.len() - due;
        assert!(due <= 7 && fresh <= 7, "{due} due and {fresh} fresh rows came");
        (due == 7 && fresh == 7).then_some(())
    })
    .await;
}

/// A claim stops adding rows at its budget in bytes. H034
pub async fn a_claim_stops_at_its_bytes(harness: &dyn StoreHarness) {
    const PAYLOAD: usize = 10_000;
    let owner = Owner::new(harness).await;
    commit(harness, &large(10, PAYLOAD)).await;
    let everything = owner.events().await;
    let mut request = owner.everything();
    request.bytes = 35_000;
    let claimed = owner.claim(&request).await;
    let bytes: usize =
        claimed.events.iter().filter_map(|event| event.payload().map(<[u8]>::len)).sum();
    assert!(
        bytes <= request.bytes,
        "{bytes} bytes of payload came, {} were allowed",
        request.bytes
    );
    assert!(claimed.events.len() >= 2, "the budget is used");
    check_reads(&request, &claimed, &everything);
}

/// A row that is larger than the budget comes alone, so that it comes at all.
pub async fn the_first_row_always_comes(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    commit(harness, &large(3, 10_000)).await;
    let everything = owner.events().await;
    let mut request = owner.everything();
    request.bytes = 1;
    let claimed = owner.claim(&request).await;
    assert_eq!(claimed.events.len(), 1);
    check_reads(&request, &claimed, &everything);
}

/// Excluded rows neither come nor count against a limit.
pub async fn what_is_excluded_neither_comes_nor_counts(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    let events: Vec<NewEvent> = (0..30).map(|_| event("a")).collect();
    commit(harness, &events).await;
    let everything = owner.events().await;
    let known: Vec<Position> = everything[..20].iter().map(Event::position).collect();
    let mut request = owner.everything().excluding(known);
    request.limit = 5;
    request.lanes.iter_mut().for_each(|cursor| cursor.take = 5);
    let claimed = owner.claim(&request).await;
    assert_eq!(ids(&claimed.events), ids(&everything[20..25]));
    check_reads(&request, &claimed, &everything);
}

/// Reads say for each lane of the request, in its order, how far it was looked at, and never too much.
pub async fn reads_are_truthful(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    commit(harness, &spread(60)).await;
    commit(harness, &large(5, 5_000)).await;
    let everything = owner.events().await;
    let whole = owner.claim(&owner.everything()).await;
    assert!(
        whole.reads.iter().all(|read| *read == LaneRead::ToEnd),
        "a claim of all reads to the end"
    );
    for (take, limit, bytes) in
        [(1, 100, 1 << 20), (3, 10, 1 << 20), (9, 64, 6_000), (100, 65, 1 << 20), (0, 9, 9)]
    {
        let mut request = owner.everything();
        (request.limit, request.bytes) = (limit, bytes);
        request.lanes.iter_mut().for_each(|cursor| cursor.take = take);
        check_reads(&request, &owner.claim(&request).await, &everything);
        request.lanes.reverse();
        check_reads(&request, &owner.claim(&request).await, &everything);
    }
    let empty = ClaimRequest::new(owner.worker.pipeline.clone(), Vec::new(), 10, 1 << 20);
    let claimed = owner.claim(&empty).await;
    assert!(claimed.events.is_empty() && claimed.reads.is_empty(), "no lane, no rows");
}

/// Fresh rows come from above each lane's `from`.
pub async fn a_claim_starts_behind_its_cursor(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    commit(harness, &spread(60)).await;
    let everything = owner.events().await;
    let middle = everything[29].position();
    let mut request = owner.everything();
    request.lanes.iter_mut().for_each(|cursor| cursor.from = middle);
    let mut claimed = owner.claim(&request).await.events;
    claimed.sort_by_key(Event::position);
    assert_eq!(ids(&claimed), ids(&everything[30..]));
}

/// Fresh rows come from at or below each lane's `to`, and "to the end" means up to there. Due rows do not go by it.
pub async fn a_claim_ends_at_its_bound(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    commit(harness, &spread(60)).await;
    let everything = owner.events().await;
    let mut request = owner.everything();
    for (first, last) in [(0, 30), (10, 30), (29, 30), (30, 30), (0, 59)] {
        for cursor in &mut request.lanes {
            cursor.from = if first == 0 { 0 } else { everything[first - 1].position() };
            cursor.to = everything[last - 1].position();
        }
        let claimed = owner.claim(&request).await;
        check_reads(&request, &claimed, &everything);
        let mut events = claimed.events;
        events.sort_by_key(Event::position);
        assert_eq!(ids(&events), ids(&everything[first..last]));
    }
    // Cut before its bound, a claim says so.
    request.limit = 5;
    request.lanes.iter_mut().for_each(|cursor| cursor.from = 0);
    check_reads(&request, &owner.claim(&request).await, &everything);

    let due = &everything[40];
    owner.retry(due, Some(std::time::Duration::ZERO)).await;
    request.lanes.iter_mut().for_each(|cursor| cursor.to = everything[9].position());
    request.limit = 100;
    crate::support::eventually("a due row from above the bound comes", || async {
        let events = owner.claim(&request).await.events;
        events.iter().any(|event| event.position() == due.position()).then_some(())
    })
    .await;
}

/// A claim gives the aggregate types of its pipeline, byte for byte, and no others.
pub async fn the_type_filter_is_kept(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    let events = [
        event_of("order", "1"),
        event_of("invoice", "2"),
        event_of("Order", "3"),
        event_of("or'der", "4"),
    ];
    commit(harness, &events).await;
    let types = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    let of =
        |chosen: &[usize]| ids_of(&chosen.iter().map(|at| events[*at].clone()).collect::<Vec<_>>());
    for (filter, expected) in [
        (TypeFilter::Only(types(&["order", "or'der"])), of(&[0, 3])),
        (TypeFilter::Except(types(&["order", "or'der"])), of(&[1, 2])),
        (TypeFilter::Only(types(&[])), of(&[])),
        (TypeFilter::Except(types(&[])), of(&[0, 1, 2, 3])),
    ] {
        let mut request = owner.everything();
        request.pipeline = Pipeline::with_types("kit", filter.clone()).expect("a plain name");
        let mut claimed = owner.claim(&request).await.events;
        claimed.sort_by_key(Event::position);
        assert_eq!(ids(&claimed), expected, "{filter:?}");
    }
}

/// Events of different aggregates with a payload of about `bytes`.
fn large(count: usize, bytes: usize) -> Vec<NewEvent> {
    let event = |n| {
        let payload = format!("\"{}\"", "x".repeat(bytes));
        let builder = NewEvent::builder("order", format!("large-{n}"), "Created").payload(payload);
        builder.build().expect("within the limits")
    };
    (0..count).map(event).collect()
}

/// Checks that `claimed` kept back nothing of `pending` (fresh rows only) that its reads say was looked at.
fn check_reads(request: &ClaimRequest, claimed: &Claimed, pending: &[Event]) {
    assert_eq!(claimed.reads.len(), request.lanes.len(), "one read for each lane of the request");
    for (cursor, read) in request.lanes.iter().zip(&claimed.reads) {
        let looked_at = match read {
            LaneRead::ToEnd => cursor.to,
            LaneRead::UpTo(position) => *position,
        };
        assert!(looked_at <= cursor.to, "lane {} was read beyond its bound", cursor.lane);
        assert!(looked_at >= cursor.from, "lane {} was read to before its cursor", cursor.lane);
        for event in pending.iter().filter(|event| event.lane() == cursor.lane) {
            let came = claimed.events.iter().any(|it| it.position() == event.position());
            let wanted = event.position() > cursor.from
                && event.position() <= looked_at
                && !request.exclude.contains(&event.position());
            assert_eq!(came, wanted, "{event:?} with {cursor:?} and {read:?}");
        }
    }
}
