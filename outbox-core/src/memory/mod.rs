//! An outbox in memory, for tests: a table with transactions, and a broker with scripted failures.
//!
//! [`MemoryStore`] keeps the whole contract of a [`Store`](crate::Store): leases and epochs, late commits, held
//! aggregates, scheduled events, dead letters. It is also the place to read how that contract is meant: no SQL stands
//! in the way. Nothing depends on hash order or on the wall clock, so that a test under tokio's paused time runs the
//! same way every time.
//!
//! ```
//! use std::time::Duration;
//! use outbox_core::memory::{MemoryPublisher, MemoryStore};
//! use outbox_core::{Batch, NewEvent, Message, Publisher, Writer};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = MemoryStore::new();
//! let mut transaction = store.begin();
//! let event = NewEvent::json("order", "order-1", "OrderCreated", &42)?;
//! store.append(&mut transaction, &[event]).await?;
//!
//! // What the code under test wrote, before it commits:
//! assert_eq!(transaction.appended()[0].event_type(), "OrderCreated");
//! transaction.commit();
//! let pending = store.pending();
//! assert_eq!(pending.len(), 1);
//!
//! // What the broker got; a relay stands in between.
//! let publisher = MemoryPublisher::new();
//! publisher.publish(Batch::new(vec![Message::new(pending[0].clone(), "orders".into())])).await;
//! let messages = publisher.wait_for(1, Duration::from_secs(5)).await;
//! assert_eq!(messages[0].key(), Some(&b"order-1"[..]));
//! # Ok(()) }
//! ```

mod admin;
mod claim;
mod counters;
mod fault;
mod inbox;
mod lease;
mod publisher;
mod row;
mod store;
mod table;
#[cfg(test)]
mod tests;
mod transaction;

pub use fault::{Fault, FaultRule};
pub use inbox::MemoryInbox;
pub use publisher::MemoryPublisher;
pub use row::DeadLetter;
pub use store::MemoryStore;
pub use transaction::{MemoryTransaction, Savepoint};
