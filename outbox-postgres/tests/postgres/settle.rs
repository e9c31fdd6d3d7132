//! Settlements: fenced, atomic per lane, byte for byte what the archive keeps.

use std::time::Duration;

use outbox_core::{Dead, Event, EventId, LaneRead, NewEvent, Retry, Store as _, StoreErrorKind};
use outbox_postgres::{Keep, PostgresStore};

use crate::common::{
    LEASE, Outbox, delivered, event, everything, run, settlements, sole_owner, sorted, worker,
};

#[tokio::test]
async fn what_was_appended_is_claimed_in_order_and_settled() {
    let outbox = Outbox::new().await;
    let store = outbox.store();
    let (worker, epoch) = sole_owner(&store).await;
    let events: Vec<_> = (0..500).map(|n| event("a", &format!("{{\"n\":{n}}}"))).collect();
    outbox.append(&events).await;

    let claimed = store.claim(&everything(16)).await.unwrap();
    assert!(claimed.reads.iter().all(|read| *read == LaneRead::ToEnd));
    let claimed = sorted(&claimed);
    let payloads = claimed.iter().map(|event| event.payload().unwrap().to_vec());
    let expected = events.iter().map(|event| event.payload().unwrap().to_vec());
    assert!(payloads.eq(expected));
    assert!(claimed.iter().map(Event::id).eq(events.iter().map(NewEvent::id)));

    let settled = store.settle(&delivered(&worker, epoch, &claimed)).await.unwrap();
    assert_eq!((settled.held.len(), settled.missing), (1, 0));
    assert_eq!(outbox.count("outbox").await, 0);
    let again = store.settle(&delivered(&worker, epoch, &claimed)).await.unwrap();
    assert_eq!(again.missing, 500);
}

#[tokio::test]
async fn a_settlement_writes_all_kinds_of_verdicts_at_once() {
    let outbox = Outbox::new().await;
    let store = outbox.store();
    let (worker, epoch) = sole_owner(&store).await;
    outbox.append(&["a", "b", "c", "d"].map(|key| event(key, "{}"))).await;
    let events = sorted(&store.claim(&everything(16)).await.unwrap());

    let mut verdicts = settlements(&worker, epoch, &events);
    verdicts.delivered = delivered(&worker, epoch, &events[..1]).delivered;
    verdicts.retries = vec![
        Retry::new(events[1].receipt(), 1, Some(Duration::ZERO), "bro\0ken"),
        Retry::new(events[2].receipt(), 3, None, ""),
    ];
    verdicts.dead = vec![Dead::new(events[3].receipt(), 2, "no such topic")];
    let settled = store.settle(&verdicts).await.unwrap();
    assert_eq!(settled.missing, 0);

    assert_eq!(outbox.count("outbox").await, 2);
    assert_eq!(
        outbox.count("outbox_dead where reason = 'no such topic' and attempts = 2").await,
        1
    );
    assert_eq!(outbox.count("outbox where due_at = 'infinity' and attempts = 3").await, 1);
    let due = sorted(&store.claim(&everything(16)).await.unwrap());
    assert_eq!(due.len(), 1);
    assert_eq!((due[0].id(), due[0].attempts()), (events[1].id(), 1));
    assert!(due[0].holds_aggregate());
}

/// H027, B030: a stale epoch changes nothing, in whichever list the event is named.
#[tokio::test]
async fn a_stale_epoch_is_refused_on_every_list() {
    let outbox = Outbox::new().await;
    let store = outbox.store();
    let (worker, epoch) = sole_owner(&store).await;
    outbox.append(&[event("a", "1")]).await;
    let events = sorted(&store.claim(&everything(16)).await.unwrap());
    outbox.execute("update outbox_lanes set crashes = 1").await;

    let mut verdicts = [(); 4].map(|()| settlements(&worker, epoch - 1, &events));
    verdicts[0] = delivered(&worker, epoch - 1, &events);
    verdicts[1].retries = vec![Retry::new(events[0].receipt(), 1, None, "x")];
    verdicts[2].dead = vec![Dead::new(events[0].receipt(), 1, "x")];
    verdicts[3].recovered = vec![events[0].lane()];
    for verdicts in verdicts {
        let settled = store.settle(&verdicts).await.unwrap();
        assert_eq!((settled.held, settled.missing), (vec![], 0));
    }
    assert_eq!(outbox.count("outbox where attempts = 0 and due_at is null").await, 1);
    assert_eq!(outbox.count("outbox_dead").await, 0);
    assert_eq!(outbox.count("outbox_lanes where crashes = 1").await, 16);
}

#[tokio::test]
async fn another_worker_under_the_right_epoch_is_refused() {
    let outbox = Outbox::new().await;
    let store = outbox.store();
    let (_, epoch) = sole_owner(&store).await;
    outbox.append(&[event("a", "1")]).await;
    let events = sorted(&store.claim(&everything(16)).await.unwrap());
    let other = worker("other");
    store.heartbeat(&other, LEASE).await.unwrap();
    let settled = store.settle(&delivered(&other, epoch, &events)).await.unwrap();
    assert!(settled.held.is_empty());
    assert_eq!(outbox.count("outbox").await, 1);
}

/// A take-over that is committed while the settlement waits wins; the other lane is settled.
#[tokio::test]
async fn of_two_lanes_only_the_one_still_held_is_settled() {
    let outbox = Outbox::new().await;
    let store = outbox.store();
    let (worker, epoch) = sole_owner(&store).await;
    outbox.append(&["a", "b", "c", "d"].map(|key| event(key, "1"))).await;
    let events = sorted(&store.claim(&everything(16)).await.unwrap());
    let lost = events[0].lane();
    let kept = events.iter().filter(|event| event.lane() != lost).count();
    assert!(kept > 0, "all keys share a lane");

    let mut operator = outbox.session().await;
    let take = format!("begin; update outbox_lanes set epoch = epoch + 1 where lane = {lost}");
    run(&mut operator, &take).await;
    let verdicts = delivered(&worker, epoch, &events);
    let settling = tokio::spawn(async move { store.settle(&verdicts).await });
    outbox.wait_for_lock_waiter().await;
    run(&mut operator, "commit").await;

    let settled = settling.await.unwrap().unwrap();
    assert!(!settled.held.contains(&lost));
    assert_eq!(settled.missing, 0);
    assert_eq!(outbox.count("outbox").await, (events.len() - kept) as i64);
}

/// An operator's open transaction costs one statement, not the lease.
#[tokio::test]
async fn a_row_lock_costs_one_statement_and_not_the_lease() {
    let outbox = Outbox::with(|config| config.with_lock_timeout(Duration::from_millis(200))).await;
    let store = outbox.store();
    let (worker, epoch) = sole_owner(&store).await;
    outbox.append(&[event("a", "1")]).await;
    let events = sorted(&store.claim(&everything(16)).await.unwrap());

    let mut operator = outbox.session().await;
    run(&mut operator, "begin; select from outbox_lanes for update; select from outbox for update")
        .await;
    outbox
        .execute("update outbox_workers set lease_until = clock_timestamp() + interval '1 s'")
        .await;
    let error = store.settle(&delivered(&worker, epoch, &events)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    let error = store.heartbeat(&worker, LEASE).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    let extended = "outbox_workers where lease_until > clock_timestamp() + interval '20 s'";
    assert_eq!(outbox.count(extended).await, 1);

    run(&mut operator, "rollback").await;
    let settled = store.settle(&delivered(&worker, epoch, &events)).await.unwrap();
    assert_eq!((settled.held.len(), settled.missing), (1, 0));
}

/// Positions can repeat after a restore: a settlement compares the id as well.
#[tokio::test]
async fn another_event_at_the_same_position_is_left_alone() {
    let outbox = Outbox::new().await;
    let store = outbox.store();
    let (worker, epoch) = sole_owner(&store).await;
    outbox.append(&[event("a", "1")]).await;
    let events = sorted(&store.claim(&everything(16)).await.unwrap());
    outbox.execute("truncate outbox restart identity").await;
    outbox.append(&[event("a", "2")]).await;
    let settled = store.settle(&delivered(&worker, epoch, &events)).await.unwrap();
    assert_eq!((settled.held.len(), settled.missing), (1, 1));
    assert_eq!(outbox.count("outbox").await, 1);
}

/// Data that the database refuses: nothing of the statement is written.
#[tokio::test]
async fn a_refused_row_leaves_all_of_its_statement_unwritten() {
    let outbox = Outbox::new().await;
    let store = outbox.store();
    let (worker, epoch) = sole_owner(&store).await;
    outbox.append(&["a", "b"].map(|key| event(key, "1"))).await;
    let events = sorted(&store.claim(&everything(16)).await.unwrap());
    outbox
        .execute(
            "create function refuse() returns trigger language plpgsql as
               $$ begin if old.aggregateid = 'b' then raise 'no'; end if; return old; end $$;
             create trigger refuse before delete on outbox for each row execute function refuse()",
        )
        .await;
    let error = store.settle(&delivered(&worker, epoch, &events)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Rejected);
    assert_eq!(outbox.count("outbox").await, 2);
    store.settle(&delivered(&worker, epoch, &events[..1])).await.unwrap();
    assert_eq!(outbox.count("outbox").await, 1);
}

#[tokio::test]
async fn the_archive_keeps_event_and_destination() {
    let outbox = Outbox::with(|config| config.with_keep(Keep::Archive)).await;
    let store = outbox.store();
    let (worker, epoch) = sole_owner(&store).await;
    outbox.append(&["a", "b"].map(|key| event(key, "{\"k\": 1}"))).await;
    let events = sorted(&store.claim(&everything(16)).await.unwrap());
    store.settle(&delivered(&worker, epoch, &events[..1])).await.unwrap();
    let mut verdicts = settlements(&worker, epoch, &events[1..]);
    verdicts.delivered = delivered(&worker, epoch, &events[1..]).delivered;
    verdicts.recovered = vec![events[1].lane()];
    store.settle(&verdicts).await.unwrap();

    assert_eq!(outbox.count("outbox").await, 0);
    let kept = "outbox_archive where destination = 'topic' and payload::text = '{\"k\": 1}'";
    assert_eq!(outbox.count(kept).await, 2);
    let id = outbox.text("select id::text from outbox_archive where aggregateid = 'a'").await;
    assert_eq!(EventId::from_text(&id).unwrap(), *events[0].id());
}

/// What the relay reports as recovered loses its crash count, under the fence.
#[tokio::test]
async fn a_recovered_lane_starts_its_crash_count_anew() {
    let outbox = Outbox::new().await;
    let store = outbox.store();
    let (worker, epoch) = sole_owner(&store).await;
    outbox.execute("update outbox_lanes set crashes = 2").await;
    let mut verdicts = settlements(&worker, epoch, &[]);
    verdicts.lanes = vec![(3, epoch), (4, epoch)];
    verdicts.recovered = vec![3];
    store.settle(&verdicts).await.unwrap();
    let leases = store.heartbeat(&worker, LEASE).await.unwrap();
    assert_eq!((leases.lanes[3].crashes, leases.lanes[4].crashes), (0, 2));
}

/// G14: what a settlement writes to the log, a thousand events a call, without full-page images. PostgreSQL 18 counts it
/// for each session.
#[tokio::test]
async fn a_settlement_writes_ninety_bytes_of_wal_an_event() {
    let outbox =
        Outbox::bare("OUTBOX_TEST_POSTGRES_NEW_URL", |config| config.with_pool_size(2)).await;
    outbox.schema().migrate().await.unwrap();
    let store = outbox.store();
    let (worker, epoch) = sole_owner(&store).await;
    let events: Vec<_> = (0..5000).map(|n| event(&format!("k{}", n % 499), "{}")).collect();
    outbox.append(&events).await;
    let events = sorted(&store.claim(&everything(16)).await.unwrap());

    let mut without_images = Vec::new();
    for batch in events.chunks(1000) {
        let before = written(&outbox, &store).await;
        store.settle(&delivered(&worker, epoch, batch)).await.unwrap();
        let after = written(&outbox, &store).await;
        if after.1 == before.1 {
            without_images.push(after.0 - before.0);
        }
    }
    println!("{without_images:?} bytes of WAL for 1000 settled events");
    let least = without_images.iter().min().expect("a checkpoint came between all calls");
    assert!(*least <= 90_000, "{least} bytes for 1000 events");
}

/// Bytes of WAL and full-page images of the store's one session, once it has handed its figures in.
async fn written(outbox: &Outbox, store: &PostgresStore) -> (i64, i64) {
    let figures = "select w.wal_bytes::int8, w.wal_fpi from pg_stat_activity a, pg_stat_get_backend_wal(a.pid) w
                    where a.datname = current_database() and a.application_name = 'outbox'";
    let touched =
        "select coalesce(sum(idx_scan), 0)::int8 from pg_stat_user_tables where relname = 'outbox'";
    let (mut last, mut times) = (outbox.number(touched).await, 0);
    while times < 2 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        store.probe(0).await.unwrap();
        let now = outbox.number(touched).await;
        times += i32::from(now != last);
        last = now;
    }
    sqlx::query_as(figures).fetch_one(&outbox.pool).await.unwrap()
}
