//! The consumer's side.

use std::time::Duration;

use async_trait::async_trait;

use super::{MemoryStore, MemoryTransaction};
use crate::{Inbox, InboxTable, Marks, Purged, StoreError};

/// The inbox of a [`MemoryStore`].
#[derive(Clone, Debug)]
pub struct MemoryInbox {
    store: MemoryStore,
    marks: Marks,
}

impl MemoryStore {
    /// Its inbox.
    #[must_use]
    pub fn inbox(&self) -> MemoryInbox {
        let table = InboxTable::shared("inbox", "consumer", "event_id");
        MemoryInbox { store: self.clone(), marks: Marks::new(&table) }
    }
}

impl MemoryInbox {
    /// Of events of this producer: see [`Marks::with_source`].
    ///
    /// # Errors
    ///
    /// `Misconfigured` when the source is empty or holds a colon or a NUL.
    pub fn with_source(mut self, source: &str) -> Result<Self, StoreError> {
        self.marks = self.marks.with_source(source)?;
        Ok(self)
    }

    /// Removes the marks that were made longer ago than `older_than`, by the store's clock; those of open transactions
    /// stay.
    pub fn purge(&self, older_than: Duration) -> Purged {
        Purged::new(self.store.0.table().purge(older_than), false)
    }

    /// Makes every mark older by so much, for the test of a purge.
    pub fn age(&self, by: Duration) {
        self.store.0.table().age_marks(by);
    }
}

#[async_trait]
impl Inbox for MemoryInbox {
    type Transaction = MemoryTransaction;

    /// Waits while another open transaction has marked the pair, as a database would. Two transactions that mark two
    /// pairs in opposite orders wait for ever: no deadlock is detected here.
    async fn first_seen(
        &self,
        transaction: &mut MemoryTransaction,
        consumer: &str,
        event_id: &str,
    ) -> Result<bool, StoreError> {
        let shared = &self.store.0;
        shared.check(transaction)?;
        let event_id = self.marks.event_id(consumer, event_id)?;
        let mark = (consumer.to_owned(), event_id.into_owned());
        loop {
            let changed = shared.changed.notified();
            let new = shared.table().mark(transaction.number, &mark);
            match new {
                Some(true) => {
                    transaction.marks.push(mark);
                    return Ok(true);
                }
                Some(false) => return Ok(false),
                None => changed.await,
            }
        }
    }
}

/// [`MemoryStore::inbox`], without a source.
#[async_trait]
impl Inbox for MemoryStore {
    type Transaction = MemoryTransaction;

    async fn first_seen(
        &self,
        transaction: &mut MemoryTransaction,
        consumer: &str,
        event_id: &str,
    ) -> Result<bool, StoreError> {
        self.inbox().first_seen(transaction, consumer, event_id).await
    }
}
