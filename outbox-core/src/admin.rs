//! What an operator may ask of an outbox.

use std::fmt;

use async_trait::async_trait;

use crate::{
    BlockedHead, DeadLetter, DeadLetterFilter, Drift, EventId, EventRecord, Page, Position,
    StoreError,
};

/// The tables of an outbox in the hands of an operator: whether they are as they should be, what was given up, and what became
/// of an event.
///
/// # Contract
///
/// - A function that acts on one thing answers whether it was there. That somebody was faster, or that there never was such a
///   thing, is no error.
/// - A dead letter that is requeued keeps its id and, where it is free, its position; all its tries are before it, it is due at
///   once, and holds the later events of its aggregate until it is delivered. So several of one aggregate come in their order.
/// - Lists are in the order of their pages' names and show each thing once, whatever is added meanwhile.
/// - When a function fails, what it acts on is as before, unless it says otherwise. A dropped future may have acted, or not.
/// - Errors carry no secret. They are `Unavailable` when the database does not answer, and `Misconfigured` when tables or rights
///   are not as they should be.
///
/// The relay goes on meanwhile: no function here needs it to be stopped.
#[async_trait]
pub trait Administration: fmt::Debug + Send + Sync {
    /// Everything that [`migrate`](Self::migrate) creates, as SQL to read, to review or to run by other means; safe to repeat.
    /// Empty for a store without tables.
    fn schema(&self) -> String;

    /// Creates what is missing. Any number of processes may do so at once; repeating it changes nothing.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when a table of that name was there before and cannot be taken over as it is, or when the database is a
    /// copy of another one: the message says which way out fits.
    async fn migrate(&self) -> Result<(), StoreError>;

    /// Compares the tables with what they should be; nothing is changed. Empty is well; a relay does not start on a
    /// [`hazard`](Drift::hazard), the rest is advice.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when the database is not the one to which the outbox belongs.
    async fn check(&self) -> Result<Vec<Drift>, StoreError>;

    /// The dead letters that `filter` means, in the order of their death; pages go by [`DeadLetter::entry`].
    ///
    /// # Errors
    ///
    /// When the database cannot be read.
    async fn dead_letters(
        &self,
        filter: &DeadLetterFilter,
        page: Page,
    ) -> Result<Vec<DeadLetter>, StoreError>;

    /// How many dead letters `filter` means.
    ///
    /// # Errors
    ///
    /// When the database cannot be read.
    async fn count_dead_letters(&self, filter: &DeadLetterFilter) -> Result<u64, StoreError>;

    /// The dead letter with this entry.
    ///
    /// # Errors
    ///
    /// When the database cannot be read.
    async fn dead_letter(&self, entry: i64) -> Result<Option<DeadLetter>, StoreError> {
        let page = Page::default().with_after(entry.saturating_sub(1)).with_limit(1);
        let next = self.dead_letters(&DeadLetterFilter::default(), page).await?;
        Ok(next.into_iter().find(|letter| letter.entry == entry))
    }

    /// Sends a dead letter again; `false` when there is none with this entry.
    ///
    /// # Errors
    ///
    /// When the database cannot be written.
    async fn requeue(&self, entry: i64) -> Result<bool, StoreError>;

    /// Drops a dead letter for good; `false` when there is none with this entry.
    ///
    /// # Errors
    ///
    /// When the database cannot be written.
    async fn discard(&self, entry: i64) -> Result<bool, StoreError>;

    /// Sends the dead letters of a page again, one after the other in the order of their death, and says how many it were.
    ///
    /// To go through all, repeat it with the same page until it is 0, as slowly as the broker needs. What dies again meanwhile is
    /// among them, unless [`DeadLetterFilter::until`] leaves it out.
    ///
    /// # Errors
    ///
    /// When the database cannot be read or written. Those before the error, or before the future was dropped, stay requeued.
    async fn requeue_all(&self, filter: &DeadLetterFilter, page: Page) -> Result<u64, StoreError> {
        let mut requeued = 0;
        for letter in self.dead_letters(filter, page).await? {
            requeued += u64::from(self.requeue(letter.entry).await?);
        }
        Ok(requeued)
    }

    /// Drops the dead letters of a page for good, and says how many it were.
    ///
    /// # Errors
    ///
    /// When the database cannot be read or written. Those before the error, or before the future was dropped, stay dropped.
    async fn discard_all(&self, filter: &DeadLetterFilter, page: Page) -> Result<u64, StoreError> {
        let mut discarded = 0;
        for letter in self.dead_letters(filter, page).await? {
            discarded += u64::from(self.discard(letter.entry).await?);
        }
        Ok(discarded)
    }

    /// The events that were given up under `hold`, by their positions; pages go by [`BlockedHead::position`].
    ///
    /// # Errors
    ///
    /// When the database cannot be read.
    async fn blocked_heads(&self, page: Page) -> Result<Vec<BlockedHead>, StoreError>;

    /// Sends a blocked head again: it is due at once with all its tries before it, and holds its aggregate until it is
    /// delivered. `false` when none is at this position.
    ///
    /// # Errors
    ///
    /// When the database cannot be written.
    async fn unblock(&self, position: Position) -> Result<bool, StoreError>;

    /// Drops a blocked head for good, so that its aggregate goes on without it, in order: the event behind it holds the rest
    /// until it is delivered. `false` when none is at this position.
    ///
    /// # Errors
    ///
    /// When the database cannot be written.
    async fn discard_blocked(&self, position: Position) -> Result<bool, StoreError>;

    /// What became of the event with this id: where it is now, in the outbox, among the dead letters, or in the archive of a store
    /// that keeps one. Empty when it is nowhere: never written, delivered and deleted, or dropped. More than one, up to
    /// [`MAX_RECORDS`], when an id was written more than once.
    ///
    /// It may read all rows of the outbox and of the dead letters: most outboxes have no index on the id, which each writer would
    /// pay for.
    ///
    /// # Errors
    ///
    /// When the database cannot be read.
    async fn find(&self, id: &EventId) -> Result<Vec<EventRecord>, StoreError>;
}

/// The most records that [`Administration::find`] gives.
pub const MAX_RECORDS: u32 = 100;
