//! A store that passes everything on and counts it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outbox_core::{
    Backlog, Capabilities, ClaimRequest, Claimed, LaneId, Leases, Pipeline, Position, Probe,
    Settled, Settlements, Store, StoreError, Worker,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// Counts the calls to `S`, and tells when a number of events is settled.
#[derive(Debug)]
pub struct Counted<S> {
    store: S,
    counts: Arc<Counts>,
}

/// What has been asked of a [`Counted`] store.
#[derive(Debug)]
pub struct Counts {
    claims: AtomicU64,
    empty_claims: AtomicU64,
    settles: AtomicU64,
    probes: AtomicU64,
    leases: AtomicU64,
    settled: AtomicU64,
    excluded: AtomicU64,
    claiming: AtomicU64,
    settling: AtomicU64,
    expected: u64,
    born: Instant,
    /// Nanoseconds from `born` to the first claim.
    first_claim: AtomicU64,
    done: Notify,
}

/// Calls of each kind.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct Calls {
    /// Claims, sweeps among them.
    pub claims: u64,
    /// Claims that found nothing.
    pub empty_claims: u64,
    /// Settles.
    pub settles: u64,
    /// Probes for open writers.
    pub probes: u64,
    /// Heartbeats, acquisitions and figures: the upkeep.
    pub upkeep: u64,
    /// Positions that claims were told to leave out, in all.
    pub excluded: u64,
    /// Seconds in which a claim was out. There is one at a time.
    pub claiming: f64,
    /// Seconds in which a settle was out. There is one at a time.
    pub settling: f64,
}

impl<S> Counted<S> {
    /// Counts calls to `store`; [`Counts::all_settled`] waits for `expected` events.
    pub fn new(store: S, expected: u64) -> (Self, Arc<Counts>) {
        let counts = Arc::new(Counts {
            claims: AtomicU64::new(0),
            empty_claims: AtomicU64::new(0),
            settles: AtomicU64::new(0),
            probes: AtomicU64::new(0),
            leases: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            excluded: AtomicU64::new(0),
            claiming: AtomicU64::new(0),
            settling: AtomicU64::new(0),
            expected,
            born: Instant::now(),
            first_claim: AtomicU64::new(0),
            done: Notify::new(),
        });
        (Self { store, counts: counts.clone() }, counts)
    }
}

impl Counts {
    /// Returns once the expected number of events is settled.
    pub async fn all_settled(&self) {
        let done = self.done.notified();
        if self.settled.load(Ordering::Acquire) < self.expected {
            done.await;
        }
    }

    /// Events settled so far.
    pub fn settled(&self) -> u64 {
        self.settled.load(Ordering::Acquire)
    }

    /// From the making of the store to its first claim.
    pub fn until_first_claim(&self) -> Duration {
        Duration::from_nanos(self.first_claim.load(Ordering::Acquire))
    }

    /// The calls so far.
    pub fn calls(&self) -> Calls {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Calls {
            claims: get(&self.claims),
            empty_claims: get(&self.empty_claims),
            settles: get(&self.settles),
            probes: get(&self.probes),
            upkeep: get(&self.leases),
            excluded: get(&self.excluded),
            claiming: get(&self.claiming) as f64 / 1e9,
            settling: get(&self.settling) as f64 / 1e9,
        }
    }
}

fn count_time(counter: &AtomicU64, since: Instant) {
    let nanos = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
    counter.fetch_add(nanos, Ordering::Relaxed);
}

fn count(counter: &AtomicU64, by: usize) {
    counter.fetch_add(by as u64, Ordering::Relaxed);
}

#[async_trait]
impl<S: Store> Store for Counted<S> {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn join(&self, worker: &Worker) -> Result<u16, StoreError> {
        self.store.join(worker).await
    }

    async fn heartbeat(&self, worker: &Worker, lease: Duration) -> Result<Leases, StoreError> {
        count(&self.counts.leases, 1);
        self.store.heartbeat(worker, lease).await
    }

    async fn acquire(&self, worker: &Worker, lanes: u16) -> Result<(), StoreError> {
        count(&self.counts.leases, 1);
        self.store.acquire(worker, lanes).await
    }

    async fn release(&self, worker: &Worker, lanes: &[LaneId]) -> Result<(), StoreError> {
        count(&self.counts.leases, 1);
        self.store.release(worker, lanes).await
    }

    async fn leave(&self, worker: &Worker) -> Result<(), StoreError> {
        self.store.leave(worker).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, StoreError> {
        let since = u64::try_from(self.counts.born.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let _ =
            self.counts.first_claim.compare_exchange(0, since, Ordering::AcqRel, Ordering::Relaxed);
        count(&self.counts.claims, 1);
        count(&self.counts.excluded, request.exclude.len());
        let started = Instant::now();
        let claimed = self.store.claim(request).await?;
        count_time(&self.counts.claiming, started);
        count(&self.counts.empty_claims, usize::from(claimed.events.is_empty()));
        Ok(claimed)
    }

    async fn settle(&self, settlements: &Settlements) -> Result<Settled, StoreError> {
        count(&self.counts.settles, 1);
        let started = Instant::now();
        let settled = self.store.settle(settlements).await?;
        count_time(&self.counts.settling, started);
        let gone = (settlements.delivered.len() as u64).saturating_sub(settled.missing);
        let before = self.counts.settled.fetch_add(gone, Ordering::AcqRel);
        if before + gone >= self.counts.expected {
            self.counts.done.notify_one();
        }
        Ok(settled)
    }

    async fn probe(&self, after: Position) -> Result<Probe, StoreError> {
        count(&self.counts.probes, 1);
        self.store.probe(after).await
    }

    async fn wait(&self) {
        self.store.wait().await;
    }

    async fn backlog(&self, pipeline: &Pipeline, cap: u64) -> Result<Option<Backlog>, StoreError> {
        count(&self.counts.leases, 1);
        self.store.backlog(pipeline, cap).await
    }
}
