//! A migrated outbox in a file of its own.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    missing_debug_implementations,
    reason = "each test binary uses its part"
)]

use std::time::Duration;

use outbox_core::{
    ClaimRequest, Claimed, Event, LaneCursor, LaneId, NewEvent, OwnedLane, Pipeline, Position,
    Settlements, Store, Worker,
};
use outbox_sqlite::{Journal, Schema, SqliteConfig, SqliteOutbox, SqliteStore};
use sqlx::SqlitePool;
use tempfile::TempDir;

pub const LEASE: Duration = Duration::from_secs(60);

pub struct Fixture {
    pub folder: TempDir,
    pub config: SqliteConfig,
    pub pool: SqlitePool,
    pub outbox: SqliteOutbox,
    pub store: SqliteStore,
}

pub async fn fixture() -> Fixture {
    fixture_with(|config| config).await
}

pub async fn fixture_with(change: impl FnOnce(SqliteConfig) -> SqliteConfig) -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let config = change(SqliteConfig::new(folder.path().join("test.db")));
    Schema::new(&config).unwrap().migrate().await.unwrap();
    let pool = SqlitePool::connect_with(config.connect_options()).await.unwrap();
    let outbox = SqliteOutbox::new(&config).unwrap();
    let store = SqliteStore::new(&config).unwrap();
    Fixture { folder, config, pool, outbox, store }
}

pub fn rollback_journal(config: SqliteConfig) -> SqliteConfig {
    config.with_journal(Journal::Rollback)
}

pub fn one_lane(config: SqliteConfig) -> SqliteConfig {
    config.with_lanes(1)
}

impl Fixture {
    pub async fn append(&self, events: &[NewEvent]) {
        let mut tx = self.outbox.begin(&self.pool).await.unwrap();
        self.outbox.append(&mut tx, events).await.unwrap();
        self.outbox.commit(tx).await.unwrap();
    }

    pub async fn execute(&self, sql: &'static str) {
        sqlx::raw_sql(sql).execute(&self.pool).await.unwrap();
    }

    pub async fn number(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql).fetch_one(&self.pool).await.unwrap()
    }

    /// A worker of pipeline `main` that owns all lanes.
    pub async fn owner(&self) -> (Worker, Vec<OwnedLane>) {
        let worker = worker("main");
        self.store.join(&worker).await.unwrap();
        self.store.heartbeat(&worker, LEASE).await.unwrap();
        self.store.acquire(&worker, u16::MAX).await.unwrap();
        let lanes = self.store.heartbeat(&worker, LEASE).await.unwrap().lanes;
        (worker, lanes)
    }

    pub async fn claim_all(&self) -> Claimed {
        self.store.claim(&self.everything()).await.unwrap()
    }

    /// Every lane from its beginning, with its end as far as due rows are concerned.
    pub fn everything(&self) -> ClaimRequest {
        let lane = |lane| LaneCursor::new(lane, 0, Position::MAX, 10_000);
        let lanes = (0..self.config.lanes).map(lane).collect();
        ClaimRequest::new(Pipeline::new("main").unwrap(), lanes, 10_000, usize::MAX)
    }
}

pub fn worker(pipeline: &str) -> Worker {
    Worker::new(Pipeline::new(pipeline).unwrap(), "test")
}

pub fn event(aggregate: &str, payload: &str) -> NewEvent {
    NewEvent::builder("order", aggregate, "Changed").payload(payload.to_owned()).build().unwrap()
}

/// The payloads in the order of the positions.
pub fn payloads(events: &[Event]) -> Vec<&str> {
    let mut events: Vec<_> = events.iter().collect();
    events.sort_by_key(|event| event.position());
    events.into_iter().map(|event| std::str::from_utf8(event.payload().unwrap()).unwrap()).collect()
}

/// Settlements over the lanes of `events`, under the epochs of `owned`.
pub fn settlements(worker: &Worker, owned: &[OwnedLane], events: &[Event]) -> Settlements {
    let mut lanes: Vec<LaneId> = events.iter().map(Event::lane).collect();
    lanes.sort_unstable();
    lanes.dedup();
    let epoch = |lane: LaneId| owned.iter().find(|owned| owned.lane == lane).unwrap().epoch;
    let mut settlements = Settlements::new(worker.clone());
    settlements.lanes = lanes.into_iter().map(|lane| (lane, epoch(lane))).collect();
    settlements
}
