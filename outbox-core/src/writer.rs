//! How an event gets into the table: in the application's own transaction.

use async_trait::async_trait;

use crate::{NewEvent, StoreError};

/// Appends events in the caller's transaction: they commit with it or not at all.
///
/// # Contract
///
/// - `append` works inside the transaction it is given and nowhere else: what is rolled back (also to a savepoint)
///   was never there, what commits is published sooner or later.
/// - The events get rising positions in the order of the slice.
/// - An empty slice does nothing.
/// - After an error the transaction must be rolled back by the caller; no event of the slice is stored then.
/// - Dropping the future before it is ready leaves the transaction in doubt: roll it back.
///
/// To keep the order of an aggregate, change or lock the aggregate *before* appending its events.
#[async_trait]
pub trait Writer: Send + Sync {
    /// The caller's transaction. A pool or a plain connection does not fit, so that appending outside a
    /// transaction does not compile.
    type Transaction: Send;

    /// Appends `events` in their order.
    ///
    /// # Errors
    ///
    /// When the database refuses the statement or cannot be reached.
    async fn append(
        &self,
        transaction: &mut Self::Transaction,
        events: &[NewEvent],
    ) -> Result<(), StoreError>;
}
