//! The consumer's side: an event's effect happens once.

use async_trait::async_trait;

use crate::StoreError;

/// Remembers, in the consumer's own transaction, which events a consumer has handled.
///
/// # Contract
///
/// - `first_seen` marks (consumer, event id) if it is not marked yet, in the transaction it is given: mark and effect
///   commit together or not at all.
/// - Of two transactions that mark the same pair at the same time one waits for the other: exactly one sees `true`
///   among those that commit.
/// - Consumer and event id are compared byte for byte.
///
/// ```no_run
/// # use outbox_core::{Inbox, StoreError};
/// # async fn handle<I: Inbox>(inbox: &I, transaction: &mut I::Transaction, id: &str) -> Result<(), StoreError> {
/// if inbox.first_seen(transaction, "billing", id).await? {
///     // the effect, in the same transaction
/// }
/// # Ok(()) }
/// ```
#[async_trait]
pub trait Inbox: Send + Sync {
    /// The consumer's transaction.
    type Transaction: Send;

    /// Marks the event as handled by `consumer`; `false` when it was already.
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
}
