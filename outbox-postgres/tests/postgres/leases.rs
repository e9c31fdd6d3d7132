//! Leases: one owner a lane, epochs, burial, crash counts.

use std::collections::BTreeSet;
use std::time::Duration;

use outbox_core::{Pipeline, Store as _, StoreErrorKind, TypeFilter, Worker};

use crate::common::{LEASE, Outbox, run, sole_owner, worker};

/// H038, B031: eight workers that grab at once never share a lane.
#[tokio::test(flavor = "multi_thread")]
async fn two_workers_never_win_one_lane() {
    let outbox = Outbox::new().await;
    let mut tasks = Vec::new();
    for n in 0..8 {
        let store = outbox.store();
        tasks.push(tokio::spawn(async move {
            let worker = worker(&format!("w{n}"));
            store.join(&worker).await.unwrap();
            for _ in 0..5 {
                store.acquire(&worker, 3).await.unwrap();
            }
            store.heartbeat(&worker, LEASE).await.unwrap()
        }));
    }
    let mut lanes = Vec::new();
    for task in tasks {
        let leases = task.await.unwrap();
        lanes.extend(leases.lanes.iter().map(|owned| owned.lane));
    }
    lanes.sort_unstable();
    assert_eq!(lanes, (0..16).collect::<Vec<_>>());
}

/// B053: the death of an owner is counted, its farewell is not.
#[tokio::test]
async fn a_dead_owner_raises_the_crash_count_and_a_clean_release_does_not() {
    let outbox = Outbox::new().await;
    let store = outbox.store();
    let (first, epoch) = sole_owner(&store).await;
    store.release(&first, &[0, 1]).await.unwrap();
    outbox
        .execute("update outbox_workers set lease_until = clock_timestamp() - interval '1 s'")
        .await;

    let second = worker("second");
    store.heartbeat(&second, LEASE).await.unwrap();
    store.acquire(&second, 16).await.unwrap();
    let lanes = store.heartbeat(&second, LEASE).await.unwrap().lanes;
    assert_eq!(lanes.len(), 16);
    assert!(lanes.iter().all(|owned| owned.epoch > epoch));
    let crashes: Vec<_> = lanes.iter().map(|owned| owned.crashes).collect();
    assert_eq!(crashes, [vec![0; 2], vec![1; 14]].concat());

    store.leave(&second).await.unwrap();
    let third = worker("third");
    store.heartbeat(&third, LEASE).await.unwrap();
    store.acquire(&third, 16).await.unwrap();
    let after = store.heartbeat(&third, LEASE).await.unwrap().lanes;
    assert!(after.iter().zip(&lanes).all(|(a, b)| a.crashes == b.crashes && a.epoch > b.epoch));
}

/// L7: a heartbeat that waits behind its own burial must not return the lanes of its old snapshot.
#[tokio::test]
async fn a_heartbeat_behind_a_burial_returns_no_lanes() {
    let outbox = Outbox::new().await;
    let store = outbox.store();
    let (worker, _) = sole_owner(&store).await;
    let mut gravedigger = outbox.session().await;
    run(
        &mut gravedigger,
        "begin; select from outbox_workers for update; update outbox_lanes set owner = null, epoch = epoch + 1;
         delete from outbox_workers",
    )
    .await;
    let beating = tokio::spawn(async move { store.heartbeat(&worker, LEASE).await });
    outbox.wait_for_lock_waiter().await;
    run(&mut gravedigger, "commit").await;
    let leases = beating.await.unwrap().unwrap();
    assert_eq!(leases.lanes, []);
    assert_eq!((leases.workers, leases.rank), (1, 0));
}

/// The same, when the burial begins after the lease was extended: the lanes are read behind its locks.
#[tokio::test]
async fn lanes_that_are_being_taken_away_are_not_listed() {
    let outbox = Outbox::new().await;
    let store = outbox.store();
    let (worker, _) = sole_owner(&store).await;
    let mut thief = outbox.session().await;
    run(
        &mut thief,
        "begin; update outbox_lanes set owner = null, epoch = epoch + 1 where lane < 8",
    )
    .await;
    let beating = tokio::spawn(async move { store.heartbeat(&worker, LEASE).await });
    outbox.wait_for_lock_waiter().await;
    run(&mut thief, "commit").await;
    assert_eq!(beating.await.unwrap().unwrap().lanes.len(), 8);
}

#[tokio::test]
async fn a_buried_worker_that_takes_lanes_is_stale() {
    let outbox = Outbox::new().await;
    let store = outbox.store();
    let buried = worker("buried");
    store.join(&buried).await.unwrap();
    outbox.execute("delete from outbox_workers").await;
    let error = store.acquire(&buried, 1).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Stale);
    assert!(error.to_string().contains("buried"));
}

#[tokio::test]
async fn an_expired_worker_that_nobody_buried_lives_on() {
    let outbox = Outbox::new().await;
    let store = outbox.store();
    let (worker, _) = sole_owner(&store).await;
    outbox
        .execute("update outbox_workers set lease_until = clock_timestamp() - interval '1 h'")
        .await;
    assert_eq!(store.heartbeat(&worker, LEASE).await.unwrap().lanes.len(), 16);
}

/// B055: a lease that ends next year was written by a broken clock.
#[tokio::test]
async fn a_lease_from_a_broken_clock_keeps_nobody_out() {
    let outbox = Outbox::new().await;
    let store = outbox.store();
    sole_owner(&store).await;
    outbox
        .execute("update outbox_workers set lease_until = clock_timestamp() + interval '1 year'")
        .await;
    let second = worker("second");
    store.heartbeat(&second, LEASE).await.unwrap();
    store.acquire(&second, 16).await.unwrap();
    assert_eq!(store.heartbeat(&second, LEASE).await.unwrap().lanes.len(), 16);
}

#[tokio::test]
async fn all_workers_agree_on_their_order() {
    let outbox = Outbox::new().await;
    let store = outbox.store();
    let workers: Vec<Worker> = (0..5).map(|n| worker(&n.to_string())).collect();
    for worker in &workers {
        store.heartbeat(worker, LEASE).await.unwrap();
    }
    let mut ranks = BTreeSet::new();
    for worker in &workers {
        let leases = store.heartbeat(worker, LEASE).await.unwrap();
        assert_eq!(leases.workers, 5);
        ranks.insert(leases.rank);
    }
    assert_eq!(ranks, (0..5).collect());
}

/// Pipelines lease the same lanes, each for itself.
#[tokio::test]
async fn pipelines_with_disjoint_types_share_a_table() {
    let outbox = Outbox::new().await;
    let store = outbox.store();
    let only = |name: &str, aggregate_type: &str| {
        let types = TypeFilter::Only([aggregate_type.to_owned()].into());
        Worker::new(Pipeline::with_types(name, types).unwrap(), name)
    };
    let (orders, bills) = (only("orders", "order"), only("bills", "bill"));
    for worker in [&orders, &bills] {
        store.join(worker).await.unwrap();
        store.acquire(worker, 16).await.unwrap();
        let leases = store.heartbeat(worker, LEASE).await.unwrap();
        assert_eq!((leases.lanes.len(), leases.workers), (16, 1));
    }
    let all = Worker::new(Pipeline::new("all").unwrap(), "all");
    let error = store.join(&all).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured);
    let text = error.to_string();
    assert!(text.contains("all") && (text.contains("orders") || text.contains("bills")), "{text}");

    store.leave(&orders).await.unwrap();
    store.leave(&bills).await.unwrap();
    store.join(&all).await.unwrap();
}

/// Of two overlapping pipelines that join at once, one is refused.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_overlapping_pipelines_that_join_at_once_one_is_refused() {
    let outbox = Outbox::new().await;
    let join = |name: &str| {
        let (store, worker) = (outbox.store(), Worker::new(Pipeline::new(name).unwrap(), name));
        tokio::spawn(async move { store.join(&worker).await.is_ok() })
    };
    let (a, b) = (join("a"), join("b"));
    let joined = [a.await.unwrap(), b.await.unwrap()];
    assert_eq!(joined.iter().filter(|joined| **joined).count(), 1, "{joined:?}");
}

/// A lease that ran out is not extended past a join that found it dead, nor a join let in past a lease that was
/// extended: whichever comes second waits for the first. H024
#[tokio::test]
async fn a_heartbeat_and_a_join_see_each_other() {
    let outbox = Outbox::new().await;
    let store = std::sync::Arc::new(outbox.store());
    let all = worker("all");
    store.join(&all).await.unwrap();
    let orders = TypeFilter::Only(["order".to_owned()].into());
    let orders = Worker::new(Pipeline::with_types("orders", orders).unwrap(), "orders");

    // A heartbeat is under way: it found the lease live, which has run out since.
    let mut beating = outbox.session().await;
    outbox.execute("update outbox_workers set lease_until = clock_timestamp()").await;
    run(
        &mut beating,
        "begin; update outbox_workers set lease_until = clock_timestamp() + interval '30 s'",
    )
    .await;
    let joining = tokio::spawn({
        let (store, orders) = (store.clone(), orders.clone());
        async move { store.join(&orders).await }
    });
    outbox.wait_for_lock_waiter().await;
    run(&mut beating, "commit").await;
    let error = joining.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{error}");
}

/// H158: a dropped heartbeat, claim or settle leaves the pool usable and no transaction open. B208
#[tokio::test]
async fn a_dropped_call_leaves_no_trace_in_the_pool() {
    let outbox = Outbox::with(|config| config.with_pool_size(2)).await;
    let pooled = outbox.reconfigured(|config| config.with_pooled(true).with_pool_size(2));
    for store in [outbox.store(), pooled.store()] {
        let worker = worker("dropper");
        store.join(&worker).await.unwrap();
        for micros in 0..40 {
            let call = store.heartbeat(&worker, LEASE);
            let _ = tokio::time::timeout(Duration::from_micros(micros * 50), call).await;
        }
        store.heartbeat(&worker, LEASE).await.unwrap();
        store.leave(&worker).await.unwrap();
        let open = "select count(*) from pg_stat_activity where datname = current_database()
                     and state like 'idle in transaction%'";
        assert_eq!(outbox.number(open).await, 0);
    }
}
