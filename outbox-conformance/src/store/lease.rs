//! Who owns a lane, and that nobody else writes to it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_core::{Epoch, LaneId, Leases, OwnedLane, Settlements, Store, StoreErrorKind, Worker};
use uuid::Uuid;

use super::StoreHarness;
use super::owner::{
    HOUR, LEASE, Owner, all, commit, dead, delivered, ids, pipeline, retry, spread,
};
use crate::support::{eventually, falls_away};

/// A lease that runs out while a rule runs.
pub(super) const SHORT_LEASE: Duration = Duration::from_millis(300);

/// Joining twice is joining once, and tells how many lanes there are.
pub async fn join_is_idempotent(harness: &dyn StoreHarness) {
    let store = harness.store();
    let worker = Worker::new(pipeline(), "conformance");
    let lanes = store.join(&worker).await.expect("join works");
    assert!(lanes >= 1);
    assert_eq!(store.join(&worker).await.expect("join works again"), lanes);
    if !store.capabilities().leases {
        let leases = store.heartbeat(&worker, LEASE).await.expect("heartbeat works");
        assert_eq!((lanes, leases), (1, Leases::sole_owner()), "without leases there is one lane");
    }
}

/// Delivered under an epoch that has passed, an event stays. H027, B030
pub async fn a_stale_epoch_delivers_nothing(harness: &dyn StoreHarness) {
    let rule = "a_stale_epoch_delivers_nothing";
    a_stale_settle_changes_nothing(harness, rule, |it, events| {
        it.delivered.extend(events.iter().map(delivered));
    })
    .await;
}

/// Retried under an epoch that has passed, an event is as it was. H027, B030
pub async fn a_stale_epoch_retries_nothing(harness: &dyn StoreHarness) {
    let rule = "a_stale_epoch_retries_nothing";
    a_stale_settle_changes_nothing(harness, rule, |it, events| {
        it.retries.extend(events.iter().map(|event| retry(event, Some(HOUR))));
    })
    .await;
}

/// Given up under an epoch that has passed, an event is neither dead nor gone. H027, H053, B030
pub async fn a_stale_epoch_buries_nothing(harness: &dyn StoreHarness) {
    let rule = "a_stale_epoch_buries_nothing";
    a_stale_settle_changes_nothing(harness, rule, |it, events| {
        it.dead.extend(events.iter().map(dead));
    })
    .await;
}

async fn a_stale_settle_changes_nothing(
    harness: &dyn StoreHarness,
    rule: &str,
    fill: impl Fn(&mut Settlements, &[outbox_core::Event]),
) {
    let Some(mut owner) = leased(harness, rule).await else { return };
    commit(harness, &spread(60)).await;
    let events = owner.events().await;
    let stale = owner.lanes.clone();

    // Never valid, and of another worker.
    let mut future = owner.settlements();
    future.lanes.iter_mut().for_each(|(_, epoch)| *epoch += 1);
    let mut foreign = owner.settlements();
    foreign.worker = Worker::new(pipeline(), "somebody else");
    // Its lanes went to another worker and came back: owner again, under a later epoch.
    owner.store.release(&owner.worker, &all(&stale)).await.expect("release works");
    let released = owner.settlements();
    let other = Owner::on(harness.second_store().await, pipeline()).await;
    assert_eq!(all(&other.lanes), all(&stale), "what was released can be taken at once");
    let taken = owner.settlements();
    other.store.leave(&other.worker).await.expect("leave works");
    owner.acquire(u16::MAX).await;
    assert!(owner.lanes.iter().zip(&stale).all(|(now, then)| now.1 > then.1), "epochs rise");
    let mut late = owner.settlements();
    late.lanes = stale;

    for mut settlements in [future, foreign, released, taken, late] {
        fill(&mut settlements, &events);
        let settled = owner.store.settle(&settlements).await.expect("settle works");
        assert!(settled.held.is_empty(), "{rule}: {:?} are held", settled.held);
        assert_eq!(settled.missing, 0, "what is not held is not missing");
    }
    let left = owner.events().await;
    assert_eq!(ids(&left), ids(&events));
    assert!(left.iter().all(|event| event.attempts() == 0 && !event.is_waiting()));
    assert_eq!(harness.dead().await, []);
}

/// The crash count goes back to 0 under the owner's epoch, and not under one that has passed. H027, H030
pub async fn a_stale_epoch_recovers_nothing(harness: &dyn StoreHarness) {
    let rule = "a_stale_epoch_recovers_nothing";
    let Some(dying) = leased(harness, rule).await else { return };
    let (owner, _) = take_over(harness, dying).await;
    let recover = |lanes: Vec<(LaneId, Epoch)>| {
        let mut settlements = owner.settlements();
        settlements.recovered = all(&lanes);
        settlements.lanes = lanes;
        settlements
    };
    let stale = owner.lanes.iter().map(|(lane, epoch)| (*lane, epoch - 1)).collect();
    let settled = owner.store.settle(&recover(stale)).await.expect("settle works");
    assert!(settled.held.is_empty(), "{:?} are held", settled.held);
    assert_eq!(crashes(&owner).await, vec![1; owner.lanes.len()]);
    let settled = owner.store.settle(&recover(owner.lanes.clone())).await.expect("settle works");
    assert_eq!(settled.held, all(&owner.lanes));
    assert_eq!(crashes(&owner).await, vec![0; owner.lanes.len()]);
}

/// Eight workers that take and give back at the same time never own a lane under one epoch twice. H031, H038, B045
pub async fn two_workers_never_win_one_lane(harness: &dyn StoreHarness) {
    let rule = "two_workers_never_win_one_lane";
    if !harness.store().capabilities().leases {
        return falls_away(rule, NO_LEASES);
    }
    let winners: Arc<Mutex<BTreeMap<(LaneId, Epoch), Uuid>>> = Arc::default();
    let stores = [harness.store(), harness.second_store().await];
    let mut tasks = Vec::new();
    for n in 0..8u64 {
        let (store, winners) = (Arc::clone(&stores[n as usize % 2]), Arc::clone(&winners));
        tasks.push(tokio::spawn(async move {
            let worker = Worker::new(pipeline(), format!("worker {n}"));
            store.join(&worker).await.expect("join works");
            let mut random = fastrand::Rng::with_seed(n);
            let mut lanes = Vec::new();
            for _ in 0..25 {
                lanes = beat(&*store, &worker).await;
                for owned in &lanes {
                    let mut winners = winners.lock().expect("no rule broken elsewhere");
                    let winner = *winners.entry((owned.lane, owned.epoch)).or_insert(worker.id);
                    assert_eq!(winner, worker.id, "{owned:?} was won twice");
                }
                store.acquire(&worker, random.u16(1..6)).await.expect("acquire works");
                let given: Vec<LaneId> =
                    lanes.iter().map(|owned| owned.lane).filter(|_| random.bool()).collect();
                store.release(&worker, &given).await.expect("release works");
            }
            lanes.clear();
            worker
        }));
    }
    let mut owners = BTreeMap::new();
    let mut workers = Vec::new();
    for task in tasks {
        workers.push(task.await.expect("no worker met a broken rule"));
    }
    for worker in workers {
        for owned in beat(&*stores[0], &worker).await {
            let other = owners.insert(owned.lane, worker.name.clone());
            assert_eq!(other, None, "{owned:?} has two owners, one is {}", worker.name);
        }
    }
}

/// Lanes with a living owner are not taken from it. H024
pub async fn a_living_owner_keeps_its_lanes(harness: &dyn StoreHarness) {
    let Some(mut owner) = leased(harness, "a_living_owner_keeps_its_lanes").await else { return };
    let before = owner.lanes.clone();
    let other = Owner::on(harness.second_store().await, pipeline()).await;
    assert_eq!(other.lanes, [], "nothing was free");
    owner.beat(LEASE).await;
    assert_eq!(owner.lanes, before);
}

/// A lane whose owner died is taken when the lease has run out, with a higher epoch and one more crash. H024, H030
pub async fn a_lease_that_ran_out_is_taken_with_a_higher_epoch(harness: &dyn StoreHarness) {
    let rule = "a_lease_that_ran_out_is_taken_with_a_higher_epoch";
    let Some(first) = leased(harness, rule).await else { return };
    let lanes = first.lanes.len();
    let (second, before) = take_over(harness, first).await;
    assert!(second.lanes.iter().zip(&before).all(|(now, then)| now.1 > then.1), "epochs rise");
    assert_eq!(crashes(&second).await, vec![1; lanes]);
    let (third, before) = take_over(harness, second).await;
    assert!(third.lanes.iter().zip(&before).all(|(now, then)| now.1 > then.1), "epochs rise");
    assert_eq!(crashes(&third).await, vec![2; lanes]);
}

/// A lane that was given back changes hands at once, with a higher epoch and no crash. H029
pub async fn a_clean_release_counts_no_crash(harness: &dyn StoreHarness) {
    let Some(mut owner) = leased(harness, "a_clean_release_counts_no_crash").await else { return };
    let before = owner.lanes.clone();
    let given = [before[0].0];
    owner.store.release(&owner.worker, &given).await.expect("release works");
    owner.beat(LEASE).await;
    assert_eq!(owner.lanes, before[1..], "only that lane was given back");
    let other = Owner::on(harness.second_store().await, pipeline()).await;
    assert_eq!(all(&other.lanes), given);
    assert!(other.lanes[0].1 > before[0].1, "the epoch rises");
    assert_eq!(crashes(&other).await, [0]);
}

/// A worker that signs off leaves its lanes to others, without a crash.
pub async fn a_worker_that_leaves_frees_its_lanes(harness: &dyn StoreHarness) {
    let Some(owner) = leased(harness, "a_worker_that_leaves_frees_its_lanes").await else { return };
    owner.store.leave(&owner.worker).await.expect("leave works");
    let other = Owner::on(harness.second_store().await, pipeline()).await;
    assert_eq!(all(&other.lanes), all(&owner.lanes));
    assert!(other.lanes.iter().zip(&owner.lanes).all(|(now, then)| now.1 > then.1));
    assert_eq!(crashes(&other).await, vec![0; owner.lanes.len()]);
}

/// A worker that was taken for dead learns it: it is stale, or owns nothing. H024, H035
pub async fn a_buried_worker_owns_nothing(harness: &dyn StoreHarness) {
    let Some(buried) = leased(harness, "a_buried_worker_owns_nothing").await else { return };
    let (id, store) = (buried.worker.clone(), Arc::clone(&buried.store));
    let (owner, stale) = take_over(harness, buried).await;
    match store.acquire(&id, u16::MAX).await {
        Ok(()) => {}
        Err(error) => assert_eq!(error.kind(), StoreErrorKind::Stale, "{error}"),
    }
    assert_eq!(beat(&*store, &id).await, [], "its lanes have another owner");
    let mut settlements = Settlements::new(id);
    settlements.lanes = stale;
    let held = store.settle(&settlements).await.expect("settle works").held;
    assert!(held.is_empty(), "{held:?} are held");
    assert_eq!(all(&owner.lanes).len(), crashes(&owner).await.len(), "the new owner keeps them");
}

/// A heartbeat tells how many workers live, and gives each a rank of its own. H038
pub async fn a_heartbeat_counts_the_living(harness: &dyn StoreHarness) {
    let Some(mut first) = leased(harness, "a_heartbeat_counts_the_living").await else { return };
    let mut others = Vec::new();
    for _ in 0..2 {
        others.push(Owner::on(harness.second_store().await, pipeline()).await);
    }
    let mut ranks = vec![first.beat(LEASE).await];
    for other in &mut others {
        ranks.push(other.beat(LEASE).await);
    }
    assert!(ranks.iter().all(|leases| leases.workers == 3), "{ranks:?}");
    let mut ranks: Vec<u16> = ranks.iter().map(|leases| leases.rank).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, [0, 1, 2]);
    for other in others {
        other.store.leave(&other.worker).await.expect("leave works");
    }
    let alone = first.beat(LEASE).await;
    assert_eq!((alone.workers, alone.rank), (1, 0));
}

pub(super) const NO_LEASES: &str = "the store has no leases";

/// An owner of all lanes, or a note that the rule falls away.
async fn leased(harness: &dyn StoreHarness, rule: &str) -> Option<Owner> {
    if !harness.store().capabilities().leases {
        falls_away(rule, NO_LEASES);
        return None;
    }
    let owner = Owner::new(harness).await;
    assert!(!owner.lanes.is_empty(), "the only worker owns every lane");
    Some(owner)
}

/// Lets the lease of `dying` run out and another worker take all its lanes; returns that one, and what `dying` owned.
async fn take_over(harness: &dyn StoreHarness, mut dying: Owner) -> (Owner, Vec<(LaneId, Epoch)>) {
    dying.beat(SHORT_LEASE).await;
    let lanes = dying.lanes;
    let heir = Owner::on(harness.second_store().await, pipeline()).await;
    let heir = Arc::new(tokio::sync::Mutex::new(heir));
    eventually("a lease that ran out is taken", || async {
        let mut heir = heir.lock().await;
        heir.acquire(u16::MAX).await;
        (heir.lanes.len() == lanes.len()).then_some(())
    })
    .await;
    (Arc::into_inner(heir).expect("nobody waits any more").into_inner(), lanes)
}

async fn beat(store: &dyn Store, worker: &Worker) -> Vec<OwnedLane> {
    store.heartbeat(worker, LEASE).await.expect("heartbeat works").lanes
}

async fn crashes(owner: &Owner) -> Vec<u16> {
    beat(&*owner.store, &owner.worker).await.iter().map(|owned| owned.crashes).collect()
}
