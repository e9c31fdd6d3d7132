//! The consumer's side: an event's effect happens once.

mod arrival;
mod marks;
mod table;

use async_trait::async_trait;

use crate::StoreError;

pub use arrival::Arrival;
pub use marks::{MAX_MARK_BYTES, Marks};
pub use table::{Consumers, InboxTable};

/// Remembers, in the consumer's own transaction, which events a consumer has handled.
///
/// There is no question whether an event was handled already: only [`once`](Self::once), which marks it and answers. So
/// nobody can look first, act, and mark later.
///
/// # Contract
///
/// - `first_seen` marks (consumer, event id) if it is not marked yet, in the transaction it is given: mark and effect
///   commit together or not at all.
/// - Of two transactions that mark the same pair at the same time one waits for the other: exactly one sees `true`
///   among those that commit.
/// - Consumer and event id are compared byte for byte.
/// - Dropping a transaction rolls it back.
///
/// ```no_run
/// # use outbox_core::{Inbox, Seen, StoreError};
/// # async fn effect<T>(_: &mut T) -> Result<(), StoreError> { Ok(()) }
/// # async fn commit<T>(_: T) -> Result<(), StoreError> { Ok(()) }
/// # async fn handle<I: Inbox>(inbox: &I, tx: I::Transaction, id: &str) -> Result<(), StoreError> {
/// match inbox.once(tx, "billing", id).await? {
///     Seen::First(mut tx) => {
///         effect(&mut tx).await?; // an error drops the transaction, and the mark with it
///         commit(tx).await?;
///     }
///     Seen::Again(_) => {} // handled before: acknowledge the message, do nothing
/// }
/// # Ok(()) }
/// ```
#[async_trait]
pub trait Inbox: Send + Sync {
    /// The consumer's transaction.
    type Transaction: Send;

    /// Marks the event as handled by `consumer`; `false` when it was already. For those who write an inbox, or have a
    /// transaction that they cannot give away; [`once`](Self::once) leaves less to remember.
    ///
    /// # Errors
    ///
    /// When the database refuses the statement or cannot be reached; the transaction must be rolled back then.
    async fn first_seen(
        &self,
        transaction: &mut Self::Transaction,
        consumer: &str,
        event_id: &str,
    ) -> Result<bool, StoreError>;

    /// Marks the event, and hands back the transaction for its effect. Never commits.
    ///
    /// The transaction is taken, so that nothing can be done in it when the mark fails: MySQL has rolled back a
    /// transaction that lost a deadlock, and what came after it would each commit by itself.
    ///
    /// Dropping the future drops the transaction.
    ///
    /// # Errors
    ///
    /// As [`first_seen`](Self::first_seen). The transaction is dropped then, which rolls it back: let the message come
    /// again.
    async fn once(
        &self,
        mut transaction: Self::Transaction,
        consumer: &str,
        event_id: &str,
    ) -> Result<Seen<Self::Transaction>, StoreError> {
        let is_first = self.first_seen(&mut transaction, consumer, event_id).await?;
        Ok(if is_first { Seen::First(transaction) } else { Seen::Again(transaction) })
    }
}

/// Whether an event is new to its consumer, with the transaction that holds the mark.
#[derive(Debug)]
#[must_use = "the event is marked, and the mark is lost unless its transaction is committed"]
pub enum Seen<T> {
    /// For the first time: the effect belongs into this transaction, which is then committed.
    First(T),
    /// Once more: there is nothing to do. The transaction goes on, for whoever handles several events in one.
    Again(T),
}

/// What a purge of an inbox has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Purged {
    /// Marks that were removed.
    pub marks: u64,
    /// Whether it stopped because another one is at work: there is nothing to do about it.
    pub busy: bool,
}

impl Purged {
    /// So many marks, and whether another purge was in the way.
    #[must_use]
    pub fn new(marks: u64, busy: bool) -> Self {
        Self { marks, busy }
    }
}

/// Marks that a purge removes in one transaction, unless set otherwise.
pub const PURGE_BATCH: u32 = 1_000;
