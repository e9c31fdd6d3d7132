//! The consumer's side.

use std::time::Duration;

use async_trait::async_trait;

use super::{MemoryStore, MemoryTransaction};
use crate::{Arrival, Inbox, InboxTable, Marks, Purged, StoreError};

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

    /// Tells where the event with this number stands among those of its aggregate, and accepts it if it is the next one:
    /// [`Arrival`] says what each answer means. The number is [`ReceivedEvent::sequence`](crate::ReceivedEvent::sequence);
    /// events are numbered by writers that are told to.
    ///
    /// `key` names the aggregate: its id where all have one type, else type and id. Two transactions with one key wait for
    /// each other. What was accepted is rolled back with the transaction.
    ///
    /// # Errors
    ///
    /// `Rejected` when a name is too long.
    pub async fn arrival(
        &self,
        transaction: &mut MemoryTransaction,
        consumer: &str,
        key: &str,
        sequence: Option<u64>,
    ) -> Result<Arrival, StoreError> {
        let Some(sequence) = sequence else { return Ok(Arrival::Unnumbered) };
        let accepted = |last| match Arrival::of(last, sequence) {
            Arrival::Next => sequence,
            _ => last,
        };
        let last = self.accepted(transaction, consumer, key, sequence, accepted).await?;
        Ok(Arrival::of(last, sequence))
    }

    /// Accepts everything up to this number: what is missing is given up, and is a duplicate if it comes later.
    ///
    /// # Errors
    ///
    /// As [`arrival`](Self::arrival).
    pub async fn accept(
        &self,
        transaction: &mut MemoryTransaction,
        consumer: &str,
        key: &str,
        sequence: u64,
    ) -> Result<(), StoreError> {
        let accepted = |last: u64| last.max(sequence);
        self.accepted(transaction, consumer, key, sequence, accepted).await.map(drop)
    }

    /// What was the last number until now.
    async fn accepted(
        &self,
        transaction: &mut MemoryTransaction,
        consumer: &str,
        key: &str,
        sequence: u64,
        next: impl Fn(u64) -> u64,
    ) -> Result<u64, StoreError> {
        let shared = &self.store.0;
        shared.check(transaction)?;
        let (stored, _) = self.marks.arrival(consumer, key, sequence)?;
        let (number, key) = (transaction.number, (consumer.to_owned(), stored.into_owned()));
        let change = shared.until(|table| table.arrivals.change(number, &key, &next)).await;
        let before = change.before;
        transaction.accepted.push(change);
        Ok(before)
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
        let number = transaction.number;
        let is_new = shared.until(|table| table.mark(number, &mark)).await;
        if is_new {
            transaction.marks.push(mark);
        }
        Ok(is_new)
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
