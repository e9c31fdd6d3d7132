//! The application's transaction.

use std::sync::Arc;

use super::counters::Change;
use super::row::Row;
use super::store::Shared;
use crate::{Event, NewEvent, Numbers, StoreError};

/// A transaction on a [`MemoryStore`](super::MemoryStore). Nobody sees its events before [`commit`](Self::commit);
/// dropping it rolls back. Any number may be open at a time.
#[derive(Debug)]
pub struct MemoryTransaction {
    pub(super) shared: Arc<Shared>,
    /// Names the transaction among those of its store.
    pub(super) number: u64,
    rows: Vec<Row>,
    /// Inbox marks, in the order in which they were set.
    pub(super) marks: Vec<(String, String)>,
    /// Numbers of events, in the order in which they were drawn.
    drawn: Vec<Change>,
    /// Numbers that a consumer accepted, in their order.
    pub(super) accepted: Vec<Change>,
}

/// A place in a transaction to which it can go back.
#[derive(Clone, Copy, Debug)]
pub struct Savepoint {
    rows: usize,
    marks: usize,
    drawn: usize,
    accepted: usize,
}

impl MemoryTransaction {
    pub(super) fn begin(shared: Arc<Shared>) -> Self {
        let number = shared.table().begin();
        Self {
            shared,
            number,
            rows: Vec::new(),
            marks: Vec::new(),
            drawn: Vec::new(),
            accepted: Vec::new(),
        }
    }

    /// Makes everything of this transaction visible at once.
    pub fn commit(mut self) {
        let (rows, marks) = (std::mem::take(&mut self.rows), std::mem::take(&mut self.marks));
        let mut table = self.shared.table();
        table.commit(self.number, rows, &marks);
        table.sequences.keep(&std::mem::take(&mut self.drawn));
        table.arrivals.keep(&std::mem::take(&mut self.accepted));
        drop(table);
        self.shared.committed();
    }

    /// Forgets everything of this transaction; the positions it drew stay unused.
    pub fn rollback(self) {
        drop(self);
    }

    /// A place to go back to.
    #[must_use]
    pub fn savepoint(&self) -> Savepoint {
        Savepoint {
            rows: self.rows.len(),
            marks: self.marks.len(),
            drawn: self.drawn.len(),
            accepted: self.accepted.len(),
        }
    }

    /// Forgets what was done since `savepoint` was set; the transaction goes on.
    pub fn rollback_to(&mut self, savepoint: Savepoint) {
        self.rows.truncate(savepoint.rows);
        let marks = self.marks.split_off(savepoint.marks.min(self.marks.len()));
        let drawn = self.drawn.split_off(savepoint.drawn.min(self.drawn.len()));
        let accepted = self.accepted.split_off(savepoint.accepted.min(self.accepted.len()));
        let mut table = self.shared.table();
        table.unmark(&marks);
        table.sequences.undo(&drawn);
        table.arrivals.undo(&accepted);
        drop(table);
        self.shared.changed.notify_waiters();
    }

    /// The events that were appended in this transaction so far, in their order.
    #[must_use]
    pub fn appended(&self) -> Vec<Event> {
        self.rows.iter().map(Row::to_event).collect()
    }

    /// Waits while another open transaction has numbered events of the same aggregates.
    pub(super) async fn append(&mut self, events: &[NewEvent]) -> Result<(), StoreError> {
        let numbered = self.shared.table().numbered;
        let headers = if numbered { Some(self.numbered(events).await?) } else { None };
        let rows = self.shared.table().draw(self.number, events, headers.as_deref())?;
        self.rows.extend(rows);
        Ok(())
    }

    async fn numbered(&mut self, events: &[NewEvent]) -> Result<Vec<Option<String>>, StoreError> {
        let numbers = Numbers::of(events);
        let mut last = Vec::with_capacity(numbers.wanted().len());
        for (kind, id, count) in numbers.wanted() {
            let (shared, transaction) = (Arc::clone(&self.shared), self.number);
            let key = (kind.to_owned(), id.to_owned());
            let next = |last| last + count;
            let change =
                shared.until(|table| table.sequences.change(transaction, &key, next)).await;
            last.push((key.0, key.1, change.before + count));
            self.drawn.push(change);
        }
        numbers.headers("the memory table", last)
    }
}

impl Drop for MemoryTransaction {
    fn drop(&mut self) {
        let mut table = self.shared.table();
        table.rollback(self.number, &self.marks);
        table.sequences.undo(&self.drawn);
        table.arrivals.undo(&self.accepted);
        drop(table);
        self.shared.changed.notify_waiters();
    }
}
