//! Claim, settle and leases on a real file.

#![allow(clippy::unwrap_used, reason = "also in the helpers of these tests")]

mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use common::{
    Fixture, LEASE, event, fixture, fixture_with, one_lane, payloads, rollback_journal,
    settlements, worker,
};
use outbox_core::{
    Dead, Delivered, Due, Event, LaneCursor, LaneRead, NewEvent, OwnedLane, Pipeline, Position,
    Retry, Settled, Store, StoreErrorKind, TypeFilter, Worker,
};
use outbox_sqlite::Keep;

fn delivered(event: &Event) -> Delivered {
    Delivered::new(event.receipt(), "outbox.event.order")
}

fn retry(event: &Event, delay: Option<Duration>) -> Retry {
    Retry::new(event.receipt(), 1, delay, "broken")
}

fn dead(event: &Event) -> Dead {
    Dead::new(event.receipt(), 3, "given up")
}

async fn wait(
    fixture: &Fixture,
    owner: &(Worker, Vec<OwnedLane>),
    event: &Event,
    delay: Option<Duration>,
) {
    let mut verdicts = settlements(&owner.0, &owner.1, std::slice::from_ref(event));
    verdicts.retries = vec![retry(event, delay)];
    assert_eq!(fixture.store.settle(&verdicts).await.unwrap().missing, 0);
}

#[tokio::test]
async fn a_delivered_event_is_gone_and_an_aggregate_keeps_its_order() {
    for journal in [rollback_journal, |config| config] {
        let fixture = fixture_with(journal).await;
        let (worker, owned) = fixture.owner().await;
        fixture.append(&[event("a", "1"), event("b", "2"), event("a", "3")]).await;

        let claimed = fixture.claim_all().await;
        assert_eq!(payloads(&claimed.events), ["1", "2", "3"]);
        assert!(claimed.reads.iter().all(|read| *read == LaneRead::ToEnd));

        let mut verdicts = settlements(&worker, &owned, &claimed.events);
        verdicts.delivered = claimed.events.iter().map(delivered).collect();
        let settled = fixture.store.settle(&verdicts).await.unwrap();
        assert_eq!(settled.held.len(), verdicts.lanes.len());
        assert_eq!(settled.missing, 0);
        assert!(fixture.claim_all().await.events.is_empty());

        let again = fixture.store.settle(&verdicts).await.unwrap();
        assert_eq!(again.missing, 3, "a repeat changes nothing and says so");
    }
}

#[tokio::test]
async fn the_clock_and_the_identity_come_with_every_claim() {
    let fixture = fixture().await;
    let before = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let empty = fixture.claim_all().await;
    let before = i64::try_from(before.as_micros()).unwrap();
    assert!(
        (before - 2_000..before + 10_000_000).contains(&empty.now_micros),
        "{}",
        empty.now_micros
    );
    assert_eq!(empty.server.len(), 36);
    fixture.append(&[event("a", "1")]).await;
    assert_eq!(fixture.claim_all().await.server, empty.server);
    assert_ne!(common::fixture().await.claim_all().await.server, empty.server);
}

#[tokio::test]
async fn a_claim_keeps_its_limits() {
    let fixture = fixture_with(one_lane).await;
    for number in 0..10 {
        fixture.append(&[event(&format!("a{number}"), "0123456789")]).await;
    }
    let mut request = fixture.everything();

    request.limit = 4;
    let claimed = fixture.store.claim(&request).await.unwrap();
    assert_eq!((claimed.events.len(), &claimed.reads[..]), (4, &[LaneRead::UpTo(4)][..]));

    request.limit = 100;
    request.lanes[0].take = 3;
    let claimed = fixture.store.claim(&request).await.unwrap();
    assert_eq!((claimed.events.len(), &claimed.reads[..]), (3, &[LaneRead::UpTo(3)][..]));

    request.lanes[0].take = 100;
    let size = claimed.events[0].size();
    request.bytes = size * 2;
    let claimed = fixture.store.claim(&request).await.unwrap();
    assert_eq!((claimed.events.len(), &claimed.reads[..]), (2, &[LaneRead::UpTo(2)][..]));

    request.bytes = 1;
    let claimed = fixture.store.claim(&request).await.unwrap();
    assert_eq!((claimed.events.len(), &claimed.reads[..]), (1, &[LaneRead::UpTo(1)][..]));

    request.bytes = usize::MAX;
    request.lanes[0].from = 6;
    let request = request.excluding(vec![2, 7, 9]);
    let claimed = fixture.store.claim(&request).await.unwrap();
    let positions: Vec<Position> = claimed.events.iter().map(Event::position).collect();
    assert_eq!((positions, &claimed.reads[..]), (vec![8, 10], &[LaneRead::ToEnd][..]));
}

#[tokio::test]
async fn lanes_are_served_in_the_order_given() {
    let fixture = fixture().await;
    let events: Vec<_> = (0..200).map(|number| event(&format!("order-{number}"), "x")).collect();
    fixture.append(&events).await;
    let mut request = fixture.everything();
    request.lanes.rotate_left(5);
    request.limit = 1;
    let first = request.lanes[0].lane;
    assert_eq!(fixture.store.claim(&request).await.unwrap().events[0].lane(), first);
}

#[tokio::test]
async fn a_waiting_event_holds_its_aggregate_and_nobody_else() {
    let fixture = fixture_with(one_lane).await;
    let owner = fixture.owner().await;
    fixture.append(&[event("a", "1"), event("a", "2"), event("b", "3")]).await;
    let unordered =
        NewEvent::builder("order", "", "Changed").payload("4").unordered().build().unwrap();
    fixture.append(&[unordered]).await;
    let claimed = fixture.claim_all().await;

    wait(&fixture, &owner, &claimed.events[0], Some(Duration::from_secs(60))).await;
    wait(&fixture, &owner, &claimed.events[3], None).await;
    assert_eq!(payloads(&fixture.claim_all().await.events), ["3"]);

    wait(&fixture, &owner, &claimed.events[0], Some(Duration::ZERO)).await;
    let events = fixture.claim_all().await.events;
    assert_eq!(payloads(&events), ["1", "3"], "due now, and its successor still behind it");
    let head = events.iter().find(|event| event.position() == 1).unwrap();
    assert!(head.holds_aggregate());
    assert_eq!(head.attempts(), 1);
}

#[tokio::test]
async fn due_rows_come_at_or_below_the_read_position_only() {
    let fixture = fixture_with(one_lane).await;
    let owner = fixture.owner().await;
    fixture.append(&[event("a", "1"), event("b", "2")]).await;
    for event in fixture.claim_all().await.events {
        wait(&fixture, &owner, &event, Some(Duration::ZERO)).await;
    }
    let mut request = fixture.everything();
    request.lanes = vec![LaneCursor::new(0, 1, 1, 10)];
    assert_eq!(payloads(&fixture.store.claim(&request).await.unwrap().events), ["1"]);
    request.lanes[0].read = 2;
    let request = request.excluding(vec![1]);
    assert_eq!(payloads(&fixture.store.claim(&request).await.unwrap().events), ["2"]);
}

#[tokio::test]
async fn a_scheduled_event_comes_when_it_is_due_and_holds_nobody() {
    let fixture = fixture_with(one_lane).await;
    let due = |payload: &'static str, due| {
        NewEvent::builder("order", "a", "Changed").payload(payload).due(due).build().unwrap()
    };
    fixture
        .append(&[
            due("later", Due::After(Duration::from_secs(60))),
            due("past", Due::At(std::time::SystemTime::UNIX_EPOCH)),
            due("now", Due::After(Duration::ZERO)),
        ])
        .await;
    fixture.append(&[event("a", "plain")]).await;
    let events = fixture.claim_all().await.events;
    assert_eq!(payloads(&events), ["past", "now", "plain"]);
    assert!(events.iter().filter(|event| event.is_waiting()).all(|event| !event.holds_aggregate()));
}

#[tokio::test]
async fn a_pipeline_sees_its_types_only_and_types_must_not_overlap() {
    let fixture = fixture().await;
    let of_type = |aggregate_type: &str| {
        NewEvent::builder(aggregate_type, "1", "Changed")
            .payload(aggregate_type.to_owned())
            .build()
            .unwrap()
    };
    fixture.append(&["order", "invoice", "refund"].map(of_type)).await;
    let types = BTreeSet::from(["order".to_owned(), "refund".to_owned()]);
    let only = Pipeline::with_types("only", TypeFilter::Only(types.clone())).unwrap();
    let rest = Pipeline::with_types("rest", TypeFilter::Except(types)).unwrap();
    for (pipeline, expected) in [(&only, &["order", "refund"][..]), (&rest, &["invoice"])] {
        let mut request = fixture.everything();
        request.pipeline = pipeline.clone();
        assert_eq!(payloads(&fixture.store.claim(&request).await.unwrap().events), expected);
    }

    let first = Worker::new(only, "first");
    fixture.store.join(&first).await.unwrap();
    fixture.store.join(&Worker::new(rest, "second")).await.unwrap();
    let all = worker("all");
    let error = fixture.store.join(&all).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured);
    assert!(error.to_string().contains("type filters disjoint"), "{error}");
}

#[tokio::test]
async fn leases_are_per_pipeline() {
    let fixture = fixture().await;
    let types = BTreeSet::from(["x".to_owned()]);
    let one =
        Worker::new(Pipeline::with_types("one", TypeFilter::Only(types.clone())).unwrap(), "");
    let two = Worker::new(Pipeline::with_types("two", TypeFilter::Except(types)).unwrap(), "");
    for worker in [&one, &two] {
        assert_eq!(fixture.store.join(worker).await.unwrap(), 16);
        fixture.store.acquire(worker, 16).await.unwrap();
    }
    for worker in [&one, &two] {
        let leases = fixture.store.heartbeat(worker, LEASE).await.unwrap();
        assert_eq!((leases.lanes.len(), leases.workers, leases.rank), (16, 1, 0));
    }
}

#[tokio::test]
async fn two_workers_share_the_lanes_and_hand_them_over() {
    let fixture = fixture().await;
    let (a, _) = fixture.owner().await;
    let b = worker("main");
    fixture.store.join(&b).await.unwrap();
    fixture.store.acquire(&b, 16).await.unwrap();
    assert!(fixture.store.heartbeat(&b, LEASE).await.unwrap().lanes.is_empty());

    fixture.store.release(&a, &[3, 7, 15]).await.unwrap();
    fixture.store.release(&b, &[4]).await.unwrap();
    fixture.store.acquire(&b, 2).await.unwrap();
    let of_b = fixture.store.heartbeat(&b, LEASE).await.unwrap();
    assert_eq!(of_b.lanes, [3, 7].map(|lane| OwnedLane::new(lane, 2, 0)));
    let of_a = fixture.store.heartbeat(&a, LEASE).await.unwrap();
    assert_eq!(of_a.lanes.len(), 13);
    assert_eq!((of_a.workers, of_b.workers, of_a.rank + of_b.rank), (2, 2, 1));

    fixture.store.leave(&a).await.unwrap();
    fixture.store.acquire(&b, 16).await.unwrap();
    let leases = fixture.store.heartbeat(&b, LEASE).await.unwrap();
    assert_eq!((leases.lanes.len(), leases.workers), (16, 1));
    assert!(leases.lanes.iter().all(|lane| lane.crashes == 0), "a clean leave is no crash");
}

/// I3: whoever lost a lane changes nothing in it, on any of the lists.
#[tokio::test]
async fn a_stale_epoch_changes_nothing_on_any_list() {
    let fixture = fixture_with(|config| one_lane(config).with_keep(Keep::Archive)).await;
    let (stale, owned) = fixture.owner().await;
    fixture.append(&[event("a", "1"), event("b", "2"), event("c", "3")]).await;
    let events = fixture.claim_all().await.events;
    let mut verdicts = settlements(&stale, &owned, &events);
    verdicts.delivered = vec![delivered(&events[0])];
    verdicts.retries = vec![retry(&events[1], None)];
    verdicts.dead = vec![dead(&events[2])];
    verdicts.recovered = vec![0];

    fixture.store.heartbeat(&stale, Duration::ZERO).await.unwrap();
    let heir = worker("main");
    fixture.store.join(&heir).await.unwrap();
    // The lease of zero ends when the clock, which reads milliseconds, has moved on.
    while fixture.store.heartbeat(&heir, LEASE).await.unwrap().lanes.is_empty() {
        fixture.store.acquire(&heir, 1).await.unwrap();
    }
    let inherited = fixture.store.heartbeat(&heir, LEASE).await.unwrap().lanes;
    assert_eq!(inherited[0].crashes, 1);
    assert!(inherited[0].epoch > owned[0].epoch);

    let untouched =
        "select count(*) from outbox where attempts = 0 and due_at is null and last_error is null";
    for (worker, epoch) in
        [(&stale, owned[0].epoch), (&stale, inherited[0].epoch), (&heir, owned[0].epoch)]
    {
        verdicts.worker = worker.clone();
        verdicts.lanes = vec![(0, epoch)];
        assert_eq!(fixture.store.settle(&verdicts).await.unwrap(), Settled::new(vec![], 0));
        assert_eq!(fixture.number(untouched).await, 3);
        assert_eq!(fixture.number("select count(*) from outbox_dead").await, 0);
        assert_eq!(fixture.number("select count(*) from outbox_archive").await, 0);
        assert_eq!(fixture.number("select crashes from outbox_lanes").await, 1);
    }
    let error = fixture.store.acquire(&stale, 1).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Stale);

    verdicts.worker = heir.clone();
    verdicts.lanes = vec![(0, inherited[0].epoch)];
    assert_eq!(fixture.store.settle(&verdicts).await.unwrap(), Settled::new(vec![0], 0));
    assert_eq!(fixture.number("select count(*) from outbox").await, 1);
    assert_eq!(fixture.number("select count(*) from outbox_dead").await, 1);
    let archived = "select count(*) from outbox_archive
                     where destination = 'outbox.event.order' and payload = '1' and settled_at >= created_at";
    assert_eq!(fixture.number(archived).await, 1);
    assert_eq!(fixture.store.heartbeat(&heir, LEASE).await.unwrap().lanes[0].crashes, 0);
}

#[tokio::test]
async fn of_a_lost_and_a_held_lane_only_the_held_one_is_written() {
    let fixture = fixture_with(|config| config.with_lanes(2)).await;
    let (worker, owned) = fixture.owner().await;
    let events: Vec<_> = (0..20).map(|number| event(&format!("{number}"), "x")).collect();
    fixture.append(&events).await;
    let events = fixture.claim_all().await.events;
    let of_lane_0 = events.iter().filter(|event| event.lane() == 0).count();
    assert!((1..20).contains(&of_lane_0), "both lanes have events");

    let mut verdicts = settlements(&worker, &owned, &events);
    verdicts.delivered = events.iter().map(delivered).collect();
    verdicts.lanes[1].1 += 1;
    assert_eq!(fixture.store.settle(&verdicts).await.unwrap(), Settled::new(vec![0], 0));
    let left = fixture.claim_all().await.events;
    assert_eq!(left.len(), 20 - of_lane_0);
    assert!(left.iter().all(|event| event.lane() == 1));
}

#[tokio::test]
async fn a_settle_whose_data_is_refused_writes_nothing() {
    let fixture = fixture_with(one_lane).await;
    let (worker, owned) = fixture.owner().await;
    fixture.append(&[event("a", "1"), event("b", "2")]).await;
    fixture
        .execute(
            "create trigger refuse before insert on outbox_dead when new.reason = 'given up'
         begin select raise(abort, 'refused'); end",
        )
        .await;
    let events = fixture.claim_all().await.events;
    let mut verdicts = settlements(&worker, &owned, &events);
    verdicts.delivered = vec![delivered(&events[0])];
    verdicts.dead = vec![dead(&events[1])];
    let error = fixture.store.settle(&verdicts).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Rejected);
    assert_eq!(fixture.claim_all().await.events.len(), 2);
}

#[tokio::test]
async fn an_event_is_named_by_its_id_and_its_lane_too() {
    let fixture = fixture_with(one_lane).await;
    let (worker, owned) = fixture.owner().await;
    fixture.append(&[event("a", "1")]).await;
    let mut stranger = fixture.claim_all().await.events[0].receipt();
    stranger.id = outbox_core::EventId::generate();
    let mut verdicts = settlements(&worker, &owned, &fixture.claim_all().await.events);
    verdicts.delivered = vec![Delivered::new(stranger, "x")];
    assert_eq!(fixture.store.settle(&verdicts).await.unwrap(), Settled::new(vec![0], 1));
    assert_eq!(fixture.claim_all().await.events.len(), 1);
}

#[tokio::test]
async fn texts_that_are_no_utf8_are_a_fault_of_their_row_and_can_be_buried() {
    let fixture = fixture_with(one_lane).await;
    let (worker, owned) = fixture.owner().await;
    fixture
        .execute(
            "insert into outbox (id, aggregatetype, aggregateid, type, payload)
         values ('good', cast(x'ff41' as text), 'a', 'Changed', 'x'),
                (cast(x'ff42' as text), 'order', 'b', 'Changed', 'x')",
        )
        .await;
    let events = fixture.claim_all().await.events;
    assert!(events[0].fault().unwrap().contains("aggregatetype"));
    assert!(events[1].fault().unwrap().contains("id"));
    let mut verdicts = settlements(&worker, &owned, &events);
    verdicts.dead = events.iter().map(dead).collect();
    assert_eq!(fixture.store.settle(&verdicts).await.unwrap(), Settled::new(vec![0], 0));
    assert_eq!(
        fixture.number("select count(*) from outbox_dead where id = cast(x'ff42' as text)").await,
        1
    );
}

#[tokio::test]
async fn a_probe_leads_to_the_highest_position() {
    let fixture = fixture().await;
    assert_eq!(fixture.store.probe(7).await.unwrap().top, 7);
    fixture.append(&[event("a", "1"), event("b", "2")]).await;
    assert_eq!(fixture.store.probe(0).await.unwrap().top, 2);
    assert_eq!(fixture.store.probe(7).await.unwrap().top, 7);
}

#[tokio::test]
async fn the_figures_stop_at_the_cap() {
    let fixture = fixture_with(one_lane).await;
    let owner = fixture.owner().await;
    let events: Vec<_> = (0..5).map(|number| event(&format!("{number}"), "x")).collect();
    fixture.append(&events).await;
    let events = fixture.claim_all().await.events;
    wait(&fixture, &owner, &events[0], None).await;
    let mut verdicts = settlements(&owner.0, &owner.1, &events);
    verdicts.dead = vec![dead(&events[1])];
    fixture.store.settle(&verdicts).await.unwrap();
    let main = Pipeline::new("main").unwrap();
    let backlog = fixture.store.backlog(&main, 100).await.unwrap().unwrap();
    assert_eq!((backlog.pending, backlog.blocked, backlog.dead), (4, 1, 1));
    assert!(backlog.oldest.unwrap() < Duration::from_secs(60));
    assert_eq!(fixture.store.backlog(&main, 2).await.unwrap().unwrap().pending, 2);
}

/// Rows of other pipelines are not read without end. H078
#[tokio::test]
async fn the_backlog_of_one_type_looks_no_further_than_ten_times_its_cap() {
    let fixture = fixture().await;
    let bill = || NewEvent::builder("bill", "a", "Created").payload("{}").build().unwrap();
    fixture.append(&(0..20).map(|_| bill()).collect::<Vec<_>>()).await;
    fixture.append(&[event("a", "1")]).await;
    let orders = Pipeline::with_types("orders", TypeFilter::Only(["order".to_owned()].into()));
    let orders = orders.unwrap();
    let backlog = async |cap| fixture.store.backlog(&orders, cap).await.unwrap().unwrap();
    assert_eq!((backlog(2).await.pending, backlog(2).await.oldest), (0, None));
    assert_eq!(backlog(3).await.pending, 1);
    assert!(backlog(3).await.oldest.is_some());
}

/// H037: BUSY is an outage, not the fault of the data.
#[tokio::test]
async fn a_locked_file_is_unavailable_and_readers_do_not_wait() {
    let fixture = fixture_with(|config| config.with_busy_timeout(Duration::from_millis(50))).await;
    let (worker, _) = fixture.owner().await;
    let tx = fixture.outbox.begin(&fixture.pool).await.unwrap();
    let error = fixture.store.heartbeat(&worker, LEASE).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    fixture.claim_all().await;
    tx.rollback().await.unwrap();
    fixture.store.heartbeat(&worker, LEASE).await.unwrap();
}

/// H037: a transaction that has read fails at once when another wrote in between; that too is an outage.
#[tokio::test]
async fn a_snapshot_that_is_too_old_to_write_is_unavailable() {
    let fixture = fixture().await;
    let mut tx = fixture.pool.begin().await.unwrap();
    sqlx::query("select count(*) from outbox").execute(&mut *tx).await.unwrap();
    fixture.append(&[event("a", "1")]).await;
    let error = fixture.outbox.append(&mut tx, &[event("a", "2")]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
}

/// B229: a dropped claim leaves no read transaction behind, which would keep the log from being folded back; a
/// dropped settle leaves no lock.
#[tokio::test]
async fn a_dropped_future_leaves_no_transaction_open() {
    let fixture = fixture().await;
    let (worker, owned) = fixture.owner().await;
    let events: Vec<_> = (0..2_000).map(|number| event(&format!("{number}"), "x")).collect();
    fixture.append(&events).await;
    let request = fixture.everything();
    let mut verdicts = settlements(&worker, &owned, &[]);
    verdicts.recovered = vec![0];
    // Each future is dropped after one poll more than the last.
    for polls in 1..12 {
        polled(fixture.store.claim(&request), polls).await;
        polled(fixture.store.settle(&verdicts), polls).await;
        polled(fixture.store.heartbeat(&worker, LEASE), polls).await;
    }
    fixture.append(&[event("a", "1")]).await;
    // The pools get their connections back in a task of their own.
    fixture.store.heartbeat(&worker, LEASE).await.unwrap();
    fixture.store.claim(&request).await.unwrap();
    let (busy, _, _): (i64, i64, i64) =
        sqlx::query_as("pragma wal_checkpoint(truncate)").fetch_one(&fixture.pool).await.unwrap();
    assert_eq!(busy, 0);
}

async fn polled<F: Future>(future: F, polls: u32) {
    let mut future = Box::pin(future);
    for _ in 0..polls {
        if futures_util::poll!(&mut future).is_ready() {
            return;
        }
        tokio::task::yield_now().await;
    }
}
