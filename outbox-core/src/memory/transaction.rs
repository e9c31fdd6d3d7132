//! The application's transaction.

use std::sync::Arc;

use super::row::Row;
use super::store::Shared;
use crate::{Event, NewEvent, StoreError};

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
}

/// A place in a transaction to which it can go back.
#[derive(Clone, Copy, Debug)]
pub struct Savepoint {
    rows: usize,
    marks: usize,
}

impl MemoryTransaction {
    pub(super) fn begin(shared: Arc<Shared>) -> Self {
        let number = shared.table().begin();
        Self { shared, number, rows: Vec::new(), marks: Vec::new() }
    }

    /// Makes everything of this transaction visible at once.
    pub fn commit(mut self) {
        let (rows, marks) = (std::mem::take(&mut self.rows), std::mem::take(&mut self.marks));
        self.shared.table().commit(self.number, rows, &marks);
        self.shared.committed();
    }

    /// Forgets everything of this transaction; the positions it drew stay unused.
    pub fn rollback(self) {
        drop(self);
    }

    /// A place to go back to.
    #[must_use]
    pub fn savepoint(&self) -> Savepoint {
        Savepoint { rows: self.rows.len(), marks: self.marks.len() }
    }

    /// Forgets what was done since `savepoint` was set; the transaction goes on.
    pub fn rollback_to(&mut self, savepoint: Savepoint) {
        self.rows.truncate(savepoint.rows);
        let marks = self.marks.split_off(savepoint.marks.min(self.marks.len()));
        self.shared.table().unmark(&marks);
        self.shared.changed.notify_waiters();
    }

    /// The events that were appended in this transaction so far, in their order.
    #[must_use]
    pub fn appended(&self) -> Vec<Event> {
        self.rows.iter().map(Row::to_event).collect()
    }

    pub(super) fn append(&mut self, events: &[NewEvent]) -> Result<(), StoreError> {
        let rows = self.shared.table().draw(self.number, events)?;
        self.rows.extend(rows);
        Ok(())
    }
}

impl Drop for MemoryTransaction {
    fn drop(&mut self) {
        self.shared.table().rollback(self.number, &self.marks);
        self.shared.changed.notify_waiters();
    }
}
