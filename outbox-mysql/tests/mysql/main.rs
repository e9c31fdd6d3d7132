//! What is special about MySQL and MariaDB.
#![allow(clippy::unwrap_used, reason = "also in helpers")]

#[path = "../common/mod.rs"]
mod common;

mod archive;
mod claim;
mod connection;
mod dead_link;
mod inbox;
#[path = "../../../tests/support/outage.rs"]
mod job;
mod leases;
mod locks;
mod outage;
mod schema;
mod sequence;
mod writer;

use std::time::Duration;

use outbox_core::{
    ClaimRequest, Delivered, Epoch, Event, LaneCursor, LaneId, NewEvent, Pipeline, Position,
    Settlements, Store as _, Worker,
};
use outbox_mysql::PayloadType;

use common::{Harness, MARIADB, MYSQL, shared};

const LEASE: Duration = Duration::from_secs(30);

/// A database of its own on each of the shared servers.
async fn both() -> [Harness; 2] {
    [
        Harness::new(&shared(MYSQL), PayloadType::LongText).await,
        Harness::new(&shared(MARIADB), PayloadType::LongText).await,
    ]
}

fn pipeline() -> Pipeline {
    Pipeline::new("test").unwrap()
}

fn event(aggregate: &str) -> NewEvent {
    NewEvent::builder("order", aggregate, "Created").payload("{}").build().unwrap()
}

fn spread(count: usize) -> Vec<NewEvent> {
    (0..count).map(|n| event(&format!("aggregate-{n}"))).collect()
}

async fn commit(harness: &Harness, events: &[NewEvent]) {
    let mut transaction = harness.transaction().await;
    transaction.outbox.append(&mut transaction.transaction, events).await.unwrap();
    transaction.transaction.commit().await.unwrap();
}

/// A worker that owns every lane.
async fn owner(harness: &Harness) -> (Worker, Vec<(LaneId, Epoch)>) {
    let worker = Worker::new(pipeline(), "test");
    harness.store.join(&worker).await.unwrap();
    harness.store.acquire(&worker, u16::MAX).await.unwrap();
    let leases = harness.store.heartbeat(&worker, LEASE).await.unwrap();
    (worker, leases.lanes.iter().map(|owned| (owned.lane, owned.epoch)).collect())
}

/// A claim from the start of every lane.
fn everything(limit: u32) -> ClaimRequest {
    let cursor = |lane| LaneCursor::new(lane, 0, Position::MAX, limit);
    ClaimRequest::new(pipeline(), (0..16).map(cursor).collect(), limit, 64 << 20)
}

fn delivered(worker: &Worker, lanes: &[(LaneId, Epoch)], events: &[Event]) -> Settlements {
    let mut settlements = Settlements::new(worker.clone());
    settlements.lanes = lanes.to_vec();
    settlements.delivered =
        events.iter().map(|event| Delivered::new(event.receipt(), "topic")).collect();
    settlements
}
