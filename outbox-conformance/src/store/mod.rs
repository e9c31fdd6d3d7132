//! The rules of a store and its writer.

use std::sync::Arc;

use outbox_core::{EventId, NewEvent, Position, Store, StoreError, async_trait};

mod administration;
mod faults;
mod fidelity;
mod find;
mod hold;
mod lease;
mod limits;
mod owner;
mod pipeline;
mod sequence;
mod settle;
mod visibility;
mod watermark;

pub use administration::*;
pub use faults::*;
pub use fidelity::*;
pub use find::*;
pub use hold::*;
pub use lease::*;
pub use limits::*;
pub use pipeline::*;
pub use sequence::*;
pub use settle::*;
pub use visibility::*;
pub use watermark::*;

/// One fresh, empty table, and what the rules need beside its [`Store`].
///
/// The function that makes it panics when the backend is missing: a suite that skips itself shows nothing.
#[async_trait]
pub trait StoreHarness: Send + Sync {
    /// The store under test.
    fn store(&self) -> Arc<dyn Store>;

    /// Another store on the same table, as another process would have it: with connections of its own. Needed by stores
    /// with leases.
    async fn second_store(&self) -> Arc<dyn Store> {
        self.store()
    }

    /// Opens an application's transaction. Two are open at a time unless the store declares
    /// [`Watermark::CommitOrder`](outbox_core::Watermark::CommitOrder).
    async fn begin(&self) -> Box<dyn WriterTransaction>;

    /// The same, with a writer that numbers the events of each aggregate. `None`: it has none.
    async fn begin_numbered(&self) -> Option<Box<dyn WriterTransaction>> {
        None
    }

    /// All dead letters of the table.
    async fn dead(&self) -> Vec<DeadLetter>;

    /// Gives a dead letter or a blocked head its turn again, as an operator does; whether there was one. `None`: the table
    /// has no such function.
    async fn requeue(&self, id: &EventId) -> Option<bool> {
        let _ = id;
        None
    }

    /// Commits a row that the store cannot read whole (text that is no UTF-8, a NULL where none belongs), as a program
    /// without our checks may write it. `None`: the table cannot hold such a row.
    async fn insert_bad_row(&self) -> Option<()> {
        None
    }

    /// Commits an event at this position, as a program may that draws none. `None`: the table takes none.
    async fn insert_at(&self, position: Position) -> Option<()> {
        let _ = position;
        None
    }

    /// Has the database refuse each dead letter of the aggregate with this id, with a code that it never gives by itself, as
    /// a trigger of the application may. `None`: nobody but the store itself looks at a row.
    async fn refuse_dead_letters(&self, aggregate_id: &str) -> Option<()> {
        let _ = aggregate_id;
        None
    }

    /// How many transactions the store under test has open at the server. `None`: it cannot be known.
    async fn open_transactions(&self) -> Option<u64> {
        None
    }

    /// Breaks all connections of the store under test. `None`: it has none.
    async fn break_connections(&self) -> Option<()> {
        None
    }

    /// What the payload column can hold.
    fn payload_kind(&self) -> PayloadKind {
        PayloadKind::Bytes
    }
}

/// What a payload column can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PayloadKind {
    /// Any bytes.
    Bytes,
    /// UTF-8 text without NUL, kept as it is.
    Text,
    /// JSON, kept as it was written.
    Json,
    /// JSON of which the value is kept, not the text.
    JsonValue,
}

/// An application's transaction, in which events are appended through the adapter's own writer. Dropping it rolls back.
#[async_trait]
pub trait WriterTransaction: Send {
    /// Appends through the writer under test.
    async fn append(&mut self, events: &[NewEvent]) -> Result<(), StoreError>;

    /// Sets a savepoint; one at a time. Needed by stores that declare savepoints.
    async fn savepoint(&mut self) {
        unimplemented!("a store that declares savepoints has them in its harness too")
    }

    /// Goes back to the savepoint.
    async fn rollback_to_savepoint(&mut self) {
        unimplemented!("a store that declares savepoints has them in its harness too")
    }

    /// Commits.
    async fn commit(self: Box<Self>);

    /// Rolls back.
    async fn rollback(self: Box<Self>);
}

/// A row of the dead-letter table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The event's id.
    pub id: EventId,
    /// As in the event.
    pub aggregate_type: String,
    /// As in the event.
    pub aggregate_id: Option<String>,
    /// As in the event.
    pub event_type: String,
    /// As in the event.
    pub payload: Option<Vec<u8>>,
    /// As in the event.
    pub headers: Option<String>,
    /// The attempts it died with.
    pub attempts: u32,
    /// Why it died.
    pub reason: String,
}

impl From<outbox_core::DeadLetter> for DeadLetter {
    fn from(letter: outbox_core::DeadLetter) -> Self {
        Self {
            id: letter.id,
            aggregate_type: letter.aggregate_type,
            aggregate_id: letter.aggregate_id,
            event_type: letter.event_type,
            payload: letter.payload.map(|payload| payload.to_vec()),
            headers: letter.headers,
            attempts: letter.attempts,
            reason: letter.reason,
        }
    }
}
