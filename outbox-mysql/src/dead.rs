//! Dead letters and blocked heads, for operators.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use outbox_core::{BlockedHead, DeadLetter, DeadLetterFilter, Position, StoreError};
use sqlx::mysql::MySqlRow;

use crate::config::MySqlConfig;
use crate::database::{Database, query};
use crate::row;
use crate::sql::DeadStatements;

/// The events that were given up: look at them, send them again, or drop them.
///
/// Under the policy `hold` an event that is given up stays in the outbox as the blocked head of its aggregate, which waits
/// behind it: [`blocked`](Self::blocked) lists these.
#[derive(Debug)]
pub struct DeadLetters {
    database: Database,
    statements: Arc<DeadStatements>,
}

impl DeadLetters {
    /// The dead letters of the outbox that `config` names. Call it within a Tokio runtime.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when a setting is out of range.
    pub fn new(config: &MySqlConfig) -> Result<Self, StoreError> {
        config.validate()?;
        Ok(Self {
            database: Database::new(config, config.pool_size),
            statements: Arc::new(DeadStatements::new(config)),
        })
    }

    /// The dead letters that `filter` lets through, in the order of their death.
    ///
    /// # Errors
    ///
    /// When the database cannot be read.
    pub async fn list(&self, filter: &DeadLetterFilter) -> Result<Vec<DeadLetter>, StoreError> {
        let (statements, filter) = (Arc::clone(&self.statements), filter.clone());
        self.database
            .run("list the dead letters of", move |connection| {
                let (since, until) = (filter.since.map(micros), filter.until.map(micros));
                let mut list = query(&statements.list).bind(filter.after);
                for time in [since, since, until, until] {
                    list = list.bind(time);
                }
                let DeadLetterFilter { aggregate_type, aggregate_id, event_type, text, .. } =
                    &filter;
                for condition in [aggregate_type, aggregate_id, event_type, text] {
                    list = list.bind(condition.clone()).bind(condition.clone());
                }
                let list = list.bind(i64::from(filter.limit));
                Box::pin(
                    async move { list.fetch_all(connection).await?.iter().map(letter).collect() },
                )
            })
            .await
    }

    /// Sends a dead letter again: it goes back to the outbox with its id and all its tries before it, is due at once, and holds
    /// the later events of its aggregate until it is delivered. `false` when somebody was faster.
    ///
    /// # Errors
    ///
    /// When the database cannot be written; nothing has changed then.
    pub async fn requeue(&self, entry: i64) -> Result<bool, StoreError> {
        let statements = Arc::clone(&self.statements);
        self.database
            .transaction("requeue a dead letter of", move |connection| {
                let statements = Arc::clone(&statements);
                Box::pin(async move {
                    let lock = query(&statements.lock).bind(entry);
                    if lock.fetch_optional(&mut *connection).await?.is_none() {
                        return Ok(false);
                    }
                    query(&statements.requeue).bind(entry).execute(&mut *connection).await?;
                    query(&statements.discard).bind(entry).execute(connection).await?;
                    Ok(true)
                })
            })
            .await
    }

    /// Drops a dead letter for good. `false` when somebody was faster.
    ///
    /// # Errors
    ///
    /// When the database cannot be written; nothing has changed then.
    pub async fn discard(&self, entry: i64) -> Result<bool, StoreError> {
        self.change("discard a dead letter of", &self.statements.discard, entry).await
    }

    /// Up to `limit` blocked heads at positions above `after` (0 for the first page).
    ///
    /// # Errors
    ///
    /// When the database cannot be read.
    pub async fn blocked(
        &self,
        after: Position,
        limit: u32,
    ) -> Result<Vec<BlockedHead>, StoreError> {
        let statements = Arc::clone(&self.statements);
        self.database
            .run("list the blocked heads of", move |connection| {
                let list = query(&statements.list_blocked).bind(after).bind(i64::from(limit));
                Box::pin(
                    async move { list.fetch_all(connection).await?.iter().map(head).collect() },
                )
            })
            .await
    }

    /// Sends a blocked head again: it is due at once with all its tries before it, and holds its aggregate until it is
    /// delivered. `false` when it is blocked no more.
    ///
    /// # Errors
    ///
    /// When the database cannot be written; nothing has changed then.
    pub async fn unblock(&self, position: Position) -> Result<bool, StoreError> {
        self.change("unblock a head of", &self.statements.unblock, position).await
    }

    /// Drops a blocked head for good, so that its aggregate goes on without it, in order: the event behind it holds the rest
    /// until it is delivered. `false` when it is blocked no more.
    ///
    /// # Errors
    ///
    /// When the database cannot be written; nothing has changed then.
    pub async fn discard_blocked(&self, position: Position) -> Result<bool, StoreError> {
        let statements = Arc::clone(&self.statements);
        self.database
            .transaction("discard a blocked head of", move |connection| {
                let statements = Arc::clone(&statements);
                Box::pin(async move {
                    let lock = query(&statements.lock_blocked).bind(position);
                    if lock.fetch_optional(&mut *connection).await?.is_none() {
                        return Ok(false);
                    }
                    let next = query(&statements.next).bind(position).bind(position);
                    if let Some(next) = next.fetch_optional(&mut *connection).await? {
                        let next = row::int(&next, 0)?;
                        query(&statements.hold).bind(next).execute(&mut *connection).await?;
                    }
                    query(&statements.discard_blocked).bind(position).execute(connection).await?;
                    Ok(true)
                })
            })
            .await
    }

    /// Runs a statement on one row; whether it was there.
    async fn change(
        &self,
        action: &'static str,
        statement: &Arc<str>,
        key: i64,
    ) -> Result<bool, StoreError> {
        let statement = Arc::clone(statement);
        self.database
            .run(action, move |connection| {
                let change = query(&statement).bind(key);
                Box::pin(async move { Ok(change.execute(connection).await?.rows_affected() == 1) })
            })
            .await
    }
}

fn head(row: &MySqlRow) -> Result<BlockedHead, sqlx::Error> {
    let text = |column| row::lossy(row, column).map(Option::unwrap_or_default);
    Ok(BlockedHead {
        position: row::int(row, 0)?.unwrap_or_default(),
        id: text(1)?,
        aggregate_type: text(2)?,
        aggregate_id: row::lossy(row, 3)?,
        event_type: text(4)?,
        attempts: u32::try_from(row::int(row, 5)?.unwrap_or_default()).unwrap_or_default(),
        reason: text(6)?,
    })
}

fn letter(row: &MySqlRow) -> Result<DeadLetter, sqlx::Error> {
    let text = |column| row::lossy(row, column).map(Option::unwrap_or_default);
    let time = |column| -> Result<SystemTime, sqlx::Error> {
        let micros = row::int(row, column)?.unwrap_or_default();
        Ok(UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or_default()))
    };
    Ok(DeadLetter {
        entry: row::int(row, 0)?.unwrap_or_default(),
        id: text(1)?,
        aggregate_type: text(2)?,
        aggregate_id: row::lossy(row, 3)?,
        event_type: text(4)?,
        payload: row::bytes(row, 5)?.map(Bytes::copy_from_slice),
        headers: row::lossy(row, 6)?,
        attempts: u32::try_from(row::int(row, 7)?.unwrap_or_default()).unwrap_or_default(),
        reason: text(8)?,
        created_at: time(9)?,
        died_at: time(10)?,
    })
}

/// A time in microseconds since 1970; one before is long past.
fn micros(time: SystemTime) -> i64 {
    crate::writer::micros(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}
