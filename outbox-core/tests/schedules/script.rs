//! A memory store whose statements stop where a test says, and go on when it says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_core::memory::MemoryStore;
use outbox_core::{
    Capabilities, ClaimRequest, Claimed, Event, EventId, LaneId, Leases, Position, Probe, Settled,
    Settlements, Store, StoreError, StoreErrorKind, Worker, async_trait,
};
use tokio::sync::watch;

/// Where a statement can stop: before it takes its snapshot, or before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum At {
    Snapshot,
    Reply,
}

type Fails = fn(&ClaimRequest) -> bool;

/// Cloning gives another handle on the same script.
#[derive(Clone, Debug)]
pub(crate) struct Script(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    table: MemoryStore,
    closed: watch::Sender<BTreeSet<(&'static str, At)>>,
    reached: watch::Sender<BTreeMap<(&'static str, At), u64>>,
    server: Mutex<String>,
    refused: Mutex<BTreeSet<EventId>>,
    refuses_delivered: Mutex<bool>,
    buried: Mutex<bool>,
    settles: Mutex<Vec<Settlements>>,
    claims: Mutex<Vec<ClaimRequest>>,
    /// What heartbeats say about owners that died.
    crashes: Mutex<Option<u16>>,
    blind: Mutex<bool>,
    /// Which claims get no answer.
    fails: Mutex<Option<Fails>>,
    /// How many rows a claim can look at before it gets no answer.
    look: Mutex<Option<usize>>,
    worker: Mutex<Option<Worker>>,
}

impl Script {
    pub(crate) fn new(table: &MemoryStore) -> Self {
        Self(Arc::new(Inner {
            table: table.clone(),
            closed: watch::Sender::default(),
            reached: watch::Sender::default(),
            server: Mutex::default(),
            refused: Mutex::default(),
            refuses_delivered: Mutex::default(),
            buried: Mutex::default(),
            settles: Mutex::default(),
            claims: Mutex::default(),
            crashes: Mutex::default(),
            blind: Mutex::default(),
            fails: Mutex::default(),
            look: Mutex::default(),
            worker: Mutex::default(),
        }))
    }

    /// Statements of this name stop there from now on.
    pub(crate) fn close(&self, statement: &'static str, at: At) {
        self.0.closed.send_modify(|closed| closed.extend([(statement, at)]));
    }

    /// They go on.
    pub(crate) fn open(&self, statement: &'static str, at: At) {
        self.0.closed.send_modify(|closed| closed.retain(|one| *one != (statement, at)));
    }

    /// Waits until one more statement of this name has come there.
    pub(crate) async fn reached(&self, statement: &'static str, at: At) {
        let before = self.count(statement, at);
        let mut reached = self.0.reached.subscribe();
        let one_more = reached
            .wait_for(|reached| reached.get(&(statement, at)).copied().unwrap_or(0) > before);
        tokio::time::timeout(Duration::from_secs(60), one_more).await.unwrap().unwrap();
    }

    pub(crate) fn count(&self, statement: &'static str, at: At) -> u64 {
        self.0.reached.borrow().get(&(statement, at)).copied().unwrap_or(0)
    }

    pub(crate) fn answer_as(&self, server: &str) {
        server.clone_into(&mut self.0.server.lock().unwrap());
    }

    /// The database refuses every verdict on this event.
    pub(crate) fn refuse(&self, id: &EventId) {
        self.0.refused.lock().unwrap().insert(id.clone());
    }

    /// The database refuses every verdict "delivered", or no longer does.
    pub(crate) fn refuse_delivered(&self, refuses: bool) {
        *self.0.refuses_delivered.lock().unwrap() = refuses;
    }

    /// Heartbeats say that others have buried the worker.
    pub(crate) fn bury(&self) {
        *self.0.buried.lock().unwrap() = true;
    }

    /// Heartbeats say that so many owners of each lane have died.
    pub(crate) fn crashes(&self, crashes: u16) {
        *self.0.crashes.lock().unwrap() = Some(crashes);
    }

    /// Probes see no writer.
    pub(crate) fn hide_writers(&self) {
        *self.0.blind.lock().unwrap() = true;
    }

    /// Such claims get no answer from now on.
    pub(crate) fn fail_claims(&self, fails: Fails) {
        *self.0.fails.lock().unwrap() = Some(fails);
    }

    /// Claims that would look at more rows than this get no answer from now on.
    pub(crate) fn look_at_most(&self, rows: usize) {
        *self.0.look.lock().unwrap() = Some(rows);
    }

    fn is_too_much(&self, request: &ClaimRequest) -> bool {
        let fails = self.0.fails.lock().unwrap().is_some_and(|fails| fails(request));
        let look = self.0.look.lock().unwrap().unwrap_or(usize::MAX);
        fails || looked_at(&self.0.table, request) > look
    }

    /// Who sent the last heartbeat.
    pub(crate) fn worker(&self) -> Worker {
        self.0.worker.lock().unwrap().clone().unwrap()
    }

    pub(crate) fn settles(&self) -> Vec<Settlements> {
        self.0.settles.lock().unwrap().clone()
    }

    pub(crate) fn claims(&self) -> Vec<ClaimRequest> {
        self.0.claims.lock().unwrap().clone()
    }

    async fn pass(&self, statement: &'static str, at: At) {
        self.0.reached.send_modify(|reached| *reached.entry((statement, at)).or_default() += 1);
        let mut closed = self.0.closed.subscribe();
        closed.wait_for(|closed| !closed.contains(&(statement, at))).await.unwrap();
    }
}

#[async_trait]
impl Store for Script {
    fn capabilities(&self) -> Capabilities {
        self.0.table.capabilities()
    }

    async fn join(&self, worker: &Worker) -> Result<u16, StoreError> {
        self.0.table.join(worker).await
    }

    async fn heartbeat(&self, worker: &Worker, lease: Duration) -> Result<Leases, StoreError> {
        *self.0.worker.lock().unwrap() = Some(worker.clone());
        self.pass("heartbeat", At::Snapshot).await;
        if *self.0.buried.lock().unwrap() {
            return Err(StoreError::new(StoreErrorKind::Stale, "buried"));
        }
        let mut leases = self.0.table.heartbeat(worker, lease).await?;
        if let Some(crashes) = *self.0.crashes.lock().unwrap() {
            leases.lanes.iter_mut().for_each(|lane| lane.crashes = crashes);
        }
        self.pass("heartbeat", At::Reply).await;
        Ok(leases)
    }

    async fn acquire(&self, worker: &Worker, count: u16) -> Result<(), StoreError> {
        self.0.table.acquire(worker, count).await
    }

    async fn release(&self, worker: &Worker, lanes: &[LaneId]) -> Result<(), StoreError> {
        self.pass("release", At::Snapshot).await;
        self.0.table.release(worker, lanes).await
    }

    async fn leave(&self, worker: &Worker) -> Result<(), StoreError> {
        self.0.table.leave(worker).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, StoreError> {
        self.0.claims.lock().unwrap().push(request.clone());
        self.pass("claim", At::Snapshot).await;
        if self.is_too_much(request) {
            return Err(StoreError::unavailable("it takes too long"));
        }
        let mut claimed = self.0.table.claim(request).await?;
        claimed.server = self.0.server.lock().unwrap().clone();
        self.pass("claim", At::Reply).await;
        Ok(claimed)
    }

    async fn settle(&self, settlements: &Settlements) -> Result<Settled, StoreError> {
        self.0.settles.lock().unwrap().push(settlements.clone());
        self.pass("settle", At::Snapshot).await;
        let refused = self.0.refused.lock().unwrap().clone();
        let all = *self.0.refuses_delivered.lock().unwrap();
        if settlements.delivered.iter().any(|it| all || refused.contains(&it.receipt.id)) {
            return Err(StoreError::new(StoreErrorKind::Rejected, "this data is refused"));
        }
        let settled = self.0.table.settle(settlements).await?;
        self.pass("settle", At::Reply).await;
        Ok(settled)
    }

    async fn probe(&self, after: Position) -> Result<Probe, StoreError> {
        let mut probe = self.0.table.probe(after).await?;
        if *self.0.blind.lock().unwrap() {
            probe.writers.clear();
        }
        probe.server = self.0.server.lock().unwrap().clone();
        Ok(probe)
    }

    async fn wait(&self) {
        self.0.table.wait().await;
    }
}

/// The rows that a claim goes through, whether it gives them or not.
fn looked_at(table: &MemoryStore, request: &ClaimRequest) -> usize {
    let is_in_range = |event: &Event| {
        request.lanes.iter().any(|cursor| {
            let is_above = cursor.from < event.position();
            cursor.lane == event.lane() && is_above && event.position() <= cursor.to
        })
    };
    table.pending().iter().filter(|event| is_in_range(event)).count()
}
