//! A harness around the memory store.

use std::sync::Arc;
use std::time::Duration;

use outbox_conformance::{
    AdministrationHarness, DeadLetter, InboxHarness, InboxTransaction, StoreHarness,
    WriterTransaction,
};
use outbox_core::memory::{MemoryStore, MemoryTransaction, Savepoint};
use outbox_core::{
    Administration, Arrival, EventId, EventRow, Inbox, NewEvent, Position, Purged, Store,
    StoreError, Writer, async_trait,
};

/// A table in memory, seen through `store`: itself, or a broken wrapper around it.
pub(crate) struct Memory {
    pub(crate) table: MemoryStore,
    pub(crate) store: Arc<dyn Store>,
    /// Whether `store` refuses dead letters.
    pub(crate) refuses: bool,
}

impl Memory {
    pub(crate) fn new(table: MemoryStore) -> Self {
        Self { store: Arc::new(table.clone()), table, refuses: false }
    }
}

#[async_trait]
impl StoreHarness for Memory {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    async fn begin(&self) -> Box<dyn WriterTransaction> {
        let transaction = self.table.begin();
        Box::new(Writing { table: self.table.clone(), transaction, savepoint: None })
    }

    async fn begin_numbered(&self) -> Option<Box<dyn WriterTransaction>> {
        let table = self.table.clone().with_sequence(true);
        let transaction = table.begin();
        Some(Box::new(Writing { table, transaction, savepoint: None }))
    }

    async fn dead(&self) -> Vec<DeadLetter> {
        let letters = self.table.dead().into_iter().map(|dead| DeadLetter {
            id: dead.event.id().clone(),
            aggregate_type: dead.event.aggregate_type().to_owned(),
            aggregate_id: dead.event.aggregate_id().map(str::to_owned),
            event_type: dead.event.event_type().to_owned(),
            payload: dead.event.payload().map(<[u8]>::to_vec),
            headers: dead.event.headers().map(str::to_owned),
            attempts: dead.event.attempts(),
            reason: dead.reason,
        });
        letters.collect()
    }

    async fn requeue(&self, id: &EventId) -> Option<bool> {
        Some(self.table.requeue(id))
    }

    async fn insert_bad_row(&self) -> Option<()> {
        let mut row = EventRow::new(0, 0, EventId::generate());
        row.aggregate_type = "order";
        row.aggregate_id = Some("bad");
        row.fault = Some("type is no UTF-8");
        self.table.insert_raw(&row);
        Some(())
    }

    async fn insert_at(&self, position: Position) -> Option<()> {
        let mut row = EventRow::new(0, 0, EventId::generate());
        row.aggregate_type = "order";
        row.event_type = "Created";
        self.table.insert_raw_at(position, &row);
        Some(())
    }

    async fn refuse_dead_letters(&self, _: &str) -> Option<()> {
        self.refuses.then_some(())
    }

    async fn open_transactions(&self) -> Option<u64> {
        Some(0)
    }
}

impl AdministrationHarness for Memory {
    fn administration(&self) -> Arc<dyn Administration> {
        Arc::new(self.table.clone())
    }
}

struct Writing {
    table: MemoryStore,
    transaction: MemoryTransaction,
    savepoint: Option<Savepoint>,
}

#[async_trait]
impl WriterTransaction for Writing {
    async fn append(&mut self, events: &[NewEvent]) -> Result<(), StoreError> {
        self.table.append(&mut self.transaction, events).await
    }

    async fn savepoint(&mut self) {
        self.savepoint = Some(self.transaction.savepoint());
    }

    async fn rollback_to_savepoint(&mut self) {
        let savepoint = self.savepoint.expect("a savepoint was set");
        self.transaction.rollback_to(savepoint);
    }

    async fn commit(self: Box<Self>) {
        self.transaction.commit();
    }

    async fn rollback(self: Box<Self>) {
        self.transaction.rollback();
    }
}

#[async_trait]
impl InboxHarness for Memory {
    async fn begin(&self) -> Box<dyn InboxTransaction> {
        let transaction = self.table.begin();
        Box::new(Writing { table: self.table.clone(), transaction, savepoint: None })
    }

    async fn purge(&self, older_than: Duration) -> Option<Result<Purged, StoreError>> {
        Some(Ok(self.table.inbox().purge(older_than)))
    }

    async fn age(&self, by: Duration) {
        self.table.inbox().age(by);
    }
}

#[async_trait]
impl InboxTransaction for Writing {
    async fn first_seen(&mut self, consumer: &str, event_id: &str) -> Result<bool, StoreError> {
        self.table.first_seen(&mut self.transaction, consumer, event_id).await
    }

    async fn first_seen_from(
        &mut self,
        source: &str,
        consumer: &str,
        event_id: &str,
    ) -> Option<Result<bool, StoreError>> {
        let inbox = self.table.inbox().with_source(source).expect("a good source");
        Some(inbox.first_seen(&mut self.transaction, consumer, event_id).await)
    }

    async fn arrival(
        &mut self,
        consumer: &str,
        key: &str,
        sequence: Option<u64>,
    ) -> Option<Result<Arrival, StoreError>> {
        let inbox = self.table.inbox();
        Some(inbox.arrival(&mut self.transaction, consumer, key, sequence).await)
    }

    async fn accept(&mut self, consumer: &str, key: &str, sequence: u64) -> Result<(), StoreError> {
        let inbox = self.table.inbox();
        inbox.accept(&mut self.transaction, consumer, key, sequence).await
    }

    async fn commit(self: Box<Self>) {
        self.transaction.commit();
    }

    async fn rollback(self: Box<Self>) {
        self.transaction.rollback();
    }
}
