//! Lanes change hands without a repeat.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use outbox_core::memory::{MemoryPublisher, MemoryStore};
use outbox_core::{
    Capabilities, ClaimRequest, Claimed, LaneId, Leases, NewEvent, Pipeline, Position, Probe,
    Relay, Settled, Settlements, Store, StoreError, Timing, Worker, Writer as _, async_trait,
};
use tokio::sync::Notify;

const HEARTBEAT: Duration = Duration::from_secs(1);
/// Heartbeats come and go while lanes are given back.
const RELEASE: Duration = Duration::from_millis(2500);
const POLL: Duration = Duration::from_millis(10);
const LONG: Duration = Duration::from_secs(600);

/// The colleague for whom the lanes were meant has left again, so a relay that believes the old list keeps them, and
/// works on lanes that are free for others. Covers B031, B079.
#[tokio::test(start_paused = true)]
async fn a_heartbeat_that_still_lists_lanes_given_back_takes_none_of_them() {
    let (store, publisher) = (MemoryStore::new(), MemoryPublisher::new());
    let slow = Arc::new(SlowRelease { store: store.clone(), begun: Notify::new() });
    let mut timing = Timing::default();
    timing.heartbeat = HEARTBEAT;
    // What is appended is claimed before the next heartbeat could tell.
    timing = timing.with_poll(POLL, POLL);
    let relay = Relay::new(slow.clone(), Arc::new(publisher.clone()))
        .with_timing(timing)
        .with_virtual_time();
    let colleague = Worker::new(Pipeline::new("default").unwrap(), "colleague");
    let scene = async {
        append(&store, 1).await;
        store.wait_until_nothing_pending(LONG).await;
        store.join(&colleague).await.unwrap();
        store.heartbeat(&colleague, LONG).await.unwrap();
        slow.begun.notified().await;
        store.leave(&colleague).await.unwrap();
        tokio::time::sleep(RELEASE + HEARTBEAT / 10).await;
        append(&store, 100).await;
        store.wait_until_nothing_pending(LONG).await;
    };
    relay.run(scene).await.unwrap();
    let arrived: Vec<String> = publisher.messages().iter().map(|m| m.id().to_string()).collect();
    let distinct: BTreeSet<&String> = arrived.iter().collect();
    assert_eq!((arrived.len(), distinct.len()), (101, 101), "messages, and events among them");
}

/// One event each for so many aggregates: they are in all lanes.
async fn append(store: &MemoryStore, aggregates: usize) {
    let event = |n| NewEvent::builder("order", format!("no {n}"), "Created").build().unwrap();
    let events: Vec<NewEvent> = (0..aggregates).map(event).collect();
    let mut transaction = store.begin();
    store.append(&mut transaction, &events).await.unwrap();
    transaction.commit();
}

/// A memory store that takes its time to give lanes back.
#[derive(Debug)]
struct SlowRelease {
    store: MemoryStore,
    begun: Notify,
}

#[async_trait]
impl Store for SlowRelease {
    async fn release(&self, worker: &Worker, lanes: &[LaneId]) -> Result<(), StoreError> {
        self.begun.notify_one();
        tokio::time::sleep(RELEASE).await;
        self.store.release(worker, lanes).await
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn join(&self, worker: &Worker) -> Result<u16, StoreError> {
        self.store.join(worker).await
    }

    async fn heartbeat(&self, worker: &Worker, lease: Duration) -> Result<Leases, StoreError> {
        self.store.heartbeat(worker, lease).await
    }

    async fn acquire(&self, worker: &Worker, count: u16) -> Result<(), StoreError> {
        self.store.acquire(worker, count).await
    }

    async fn leave(&self, worker: &Worker) -> Result<(), StoreError> {
        self.store.leave(worker).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, StoreError> {
        self.store.claim(request).await
    }

    async fn settle(&self, settlements: &Settlements) -> Result<Settled, StoreError> {
        self.store.settle(settlements).await
    }

    async fn probe(&self, after: Position) -> Result<Probe, StoreError> {
        self.store.probe(after).await
    }
}
