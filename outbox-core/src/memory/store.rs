//! The store: a shared table behind one lock.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use tokio::sync::Notify;

use super::MemoryTransaction;
use super::row::{DeadLetter, Row};
use super::table::Table;
use crate::{
    Backlog, Capabilities, ClaimRequest, Claimed, Event, EventId, EventRow, LaneId, Leases,
    NewEvent, Pipeline, Position, Probe, Settled, Settlements, Store, StoreError, Watermark,
    Worker, Writer,
};

/// An outbox table in memory. Cloning gives another handle on the same table.
///
/// It is [`Writer`], [`Inbox`](crate::Inbox), [`Store`] and [`Administration`](crate::Administration) in one. Its clock starts at a fixed time in the past and moves with
/// tokio's, so that paused time works: see [`now`](Self::now).
#[derive(Clone)]
pub struct MemoryStore(pub(super) Arc<Shared>);

pub(super) struct Shared {
    table: Mutex<Table>,
    /// Something was committed.
    committed: Notify,
    /// A transaction ended, or rows went.
    pub(super) changed: Notify,
}

impl MemoryStore {
    /// How many lanes a table has unless said otherwise.
    pub const DEFAULT_LANES: u16 = 16;

    /// An empty table with all that a store can have.
    #[must_use]
    pub fn new() -> Self {
        let capabilities = Capabilities::default()
            .with_leases(true)
            .with_watermark(Watermark::Writers)
            .with_savepoints(true);
        Self::with_capabilities(Self::DEFAULT_LANES, capabilities)
    }

    /// An empty table with `lanes` lanes that has these capabilities and no others.
    ///
    /// Without leases there is one lane, whatever `lanes` says. With [`Watermark::CommitOrder`] positions are drawn at the
    /// commit, as if there were one writer at a time.
    ///
    /// # Panics
    ///
    /// When `lanes` is 0.
    #[must_use]
    pub fn with_capabilities(lanes: u16, capabilities: Capabilities) -> Self {
        assert!(lanes > 0, "a table has at least one lane");
        let lanes = if capabilities.leases { lanes } else { 1 };
        Self(Arc::new(Shared {
            table: Mutex::new(Table::new(lanes, capabilities)),
            committed: Notify::new(),
            changed: Notify::new(),
        }))
    }

    /// With writers that number the events of each aggregate (header `outbox-sequence`), or without, which is the default. It
    /// holds for every handle on the table. Appends about one aggregate wait for each other then; two transactions that
    /// append about two aggregates in opposite orders wait for ever: no deadlock is detected here.
    #[must_use]
    pub fn with_sequence(self, sequence: bool) -> Self {
        self.0.table().numbered = sequence;
        self
    }

    /// Opens a transaction.
    #[must_use]
    pub fn begin(&self) -> MemoryTransaction {
        MemoryTransaction::begin(Arc::clone(&self.0))
    }

    /// Committed events that are not settled, in position order; blocked and scheduled ones among them.
    #[must_use]
    pub fn pending(&self) -> Vec<Event> {
        self.0.table().pending().into_iter().map(Row::to_event).collect()
    }

    /// Why the last try of a pending event failed.
    #[must_use]
    pub fn last_error(&self, id: &EventId) -> Option<String> {
        let table = self.0.table();
        let row = table.pending().into_iter().find(|row| row.id() == id);
        row.and_then(|row| row.last_error.clone())
    }

    /// Events that were given up, in the order in which they were.
    #[must_use]
    pub fn dead(&self) -> Vec<DeadLetter> {
        let table = self.0.table();
        let letters = table.dead.iter();
        letters
            .map(|dead| DeadLetter { event: dead.row.to_event(), reason: dead.reason.clone() })
            .collect()
    }

    /// Gives a dead letter, or a blocked head of an aggregate, its turn again; `false` when there is none with this id.
    /// It keeps id and position, and holds the later events of its aggregate.
    pub fn requeue(&self, id: &EventId) -> bool {
        let found = self.0.table().requeue(id);
        self.0.committed();
        found
    }

    /// Removes a dead letter, or a blocked head of an aggregate, for good; `false` when there is none with this id.
    pub fn discard(&self, id: &EventId) -> bool {
        let found = self.0.table().discard(id);
        self.0.committed();
        found
    }

    /// Commits one row as another program may have written it, past the checks of [`NewEvent`]. Its position, lane and
    /// time are set by the table; `waiting` makes it due at once.
    pub fn insert_raw(&self, row: &EventRow<'_>) -> Position {
        let mut table = self.0.table();
        let due_at = row.waiting.then(|| table.now());
        let row = table.row(row, due_at);
        let position = row.position();
        table.insert(row);
        drop(table);
        self.0.committed();
        position
    }

    /// The same, at this position, as a program may write it that draws none.
    pub fn insert_raw_at(&self, position: Position, row: &EventRow<'_>) {
        let mut table = self.0.table();
        let due_at = row.waiting.then(|| table.now());
        let row = table.row_at(position, row, due_at);
        table.insert(row);
        drop(table);
        self.0.committed();
    }

    /// The table's clock.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(self.0.table().now().unsigned_abs())
    }

    /// # Panics
    ///
    /// When a committed event is not settled yet: the text names the first ones.
    #[track_caller]
    pub fn assert_nothing_pending(&self) {
        let pending = self.pending();
        assert!(pending.is_empty(), "{}", still_pending(&pending));
    }

    /// Waits until every committed event is settled: delivered, or given up.
    ///
    /// # Panics
    ///
    /// When that takes longer than `within`: the text names the first events that are left.
    pub async fn wait_until_nothing_pending(&self, within: Duration) {
        let settled = async {
            loop {
                let changed = self.0.changed.notified();
                if self.0.table().pending().is_empty() {
                    return;
                }
                changed.await;
            }
        };
        if tokio::time::timeout(within, settled).await.is_err() {
            panic!("after {within:?} {}", still_pending(&self.pending()));
        }
    }
}

fn still_pending(pending: &[Event]) -> String {
    let first: Vec<String> = pending.iter().take(5).map(|event| format!("{event:?}")).collect();
    format!("{} events are still pending, the first: {}", pending.len(), first.join(", "))
}

#[async_trait]
impl Writer for MemoryStore {
    type Transaction = MemoryTransaction;

    async fn append(
        &self,
        transaction: &mut MemoryTransaction,
        events: &[NewEvent],
    ) -> Result<(), StoreError> {
        self.0.check(transaction)?;
        transaction.append(events).await
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn capabilities(&self) -> Capabilities {
        self.0.table().capabilities
    }

    async fn join(&self, worker: &Worker) -> Result<u16, StoreError> {
        self.0.table().join(&worker.pipeline)
    }

    async fn heartbeat(&self, worker: &Worker, lease: Duration) -> Result<Leases, StoreError> {
        let mut table = self.0.table();
        if !table.capabilities.leases {
            return Ok(Leases::sole_owner());
        }
        table.heartbeat(worker, lease)
    }

    async fn acquire(&self, worker: &Worker, count: u16) -> Result<(), StoreError> {
        let mut table = self.0.table();
        if !table.capabilities.leases {
            return Ok(());
        }
        table.pipeline(&worker.pipeline).acquire(worker.id, count)
    }

    async fn release(&self, worker: &Worker, lanes: &[LaneId]) -> Result<(), StoreError> {
        self.0.table().pipeline(&worker.pipeline).release(worker.id, lanes);
        Ok(())
    }

    async fn leave(&self, worker: &Worker) -> Result<(), StoreError> {
        self.0.table().pipeline(&worker.pipeline).leave(worker.id);
        Ok(())
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, StoreError> {
        Ok(self.0.table().claim(request))
    }

    async fn settle(&self, settlements: &Settlements) -> Result<Settled, StoreError> {
        let settled = self.0.table().settle(settlements);
        self.0.changed.notify_waiters();
        Ok(settled)
    }

    async fn probe(&self, after: Position) -> Result<Probe, StoreError> {
        Ok(self.0.table().probe(after))
    }

    async fn wait(&self) {
        self.0.committed.notified().await;
    }

    async fn backlog(&self, pipeline: &Pipeline, cap: u64) -> Result<Option<Backlog>, StoreError> {
        Ok(Some(self.0.table().backlog(pipeline, cap)))
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("no panic while the table is locked")
    }

    /// Waits until `attempt` gives something; it is made anew whenever a transaction has ended.
    pub(super) async fn until<T>(&self, mut attempt: impl FnMut(&mut Table) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            let given = attempt(&mut self.table());
            match given {
                Some(given) => return given,
                None => changed.await,
            }
        }
    }

    /// Wakes who waits for something new, or, when nobody does, the next one who comes to wait.
    pub(super) fn committed(&self) {
        self.committed.notify_waiters();
        self.committed.notify_one();
        self.changed.notify_waiters();
    }

    pub(super) fn check(&self, transaction: &MemoryTransaction) -> Result<(), StoreError> {
        if std::ptr::eq(self, Arc::as_ptr(&transaction.shared)) {
            return Ok(());
        }
        Err(StoreError::misconfigured("the transaction was begun on another MemoryStore"))
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
    }
}
