//! Dead letters and blocked heads, for operators.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use outbox_core::{BlockedHead, DeadLetter, DeadLetterFilter, Position, StoreError};
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::config::{PayloadType, PostgresConfig};
use crate::database::Database;
use crate::row;
use crate::sql::DeadStatements;

/// The events that were given up: look at them, send them again, or drop them.
///
/// Under the policy `hold` an event that is given up stays in the outbox as the blocked head of its aggregate, which waits
/// behind it: [`blocked`](Self::blocked) lists these.
#[derive(Debug)]
pub struct DeadLetters {
    database: Database,
    statements: DeadStatements,
    payload: PayloadType,
}

impl DeadLetters {
    /// The dead letters of the outbox that `config` names. Call it within a Tokio runtime.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when a setting is out of range.
    pub fn new(config: &PostgresConfig) -> Result<Self, StoreError> {
        config.validate()?;
        Ok(Self {
            database: Database::new(config, config.pool_size),
            statements: DeadStatements::new(config),
            payload: config.payload,
        })
    }

    /// The dead letters that `filter` lets through, in the order of their death.
    ///
    /// # Errors
    ///
    /// When the database cannot be read.
    pub async fn list(&self, filter: &DeadLetterFilter) -> Result<Vec<DeadLetter>, StoreError> {
        let filter = filter.clone();
        let list = self
            .database
            .query(&self.statements.list)
            .bind(filter.after)
            .bind(filter.since.map(micros))
            .bind(filter.until.map(micros))
            .bind(filter.aggregate_type)
            .bind(filter.aggregate_id)
            .bind(filter.event_type)
            .bind(filter.text)
            .bind(i64::from(filter.limit));
        let payload = self.payload;
        self.database
            .run("list the dead letters of", move |connection| {
                Box::pin(async move {
                    let rows = list.fetch_all(connection).await?;
                    rows.iter().map(|row| letter(row, payload)).collect()
                })
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
        self.change("requeue a dead letter of", &self.statements.requeue, entry).await
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
        let list =
            self.database.query(&self.statements.list_blocked).bind(after).bind(i64::from(limit));
        self.database
            .run("list the blocked heads of", move |connection| {
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
        self.change("discard a blocked head of", &self.statements.discard_blocked, position).await
    }

    /// Runs a statement on one row; whether it was there.
    async fn change(
        &self,
        action: &'static str,
        statement: &Arc<str>,
        key: i64,
    ) -> Result<bool, StoreError> {
        let change = self.database.query(statement).bind(key);
        self.database
            .run(action, move |connection| {
                Box::pin(async move { Ok(change.execute(connection).await?.rows_affected() == 1) })
            })
            .await
    }
}

fn head(row: &PgRow) -> Result<BlockedHead, sqlx::Error> {
    Ok(BlockedHead {
        position: row.try_get("position")?,
        id: row.try_get::<Uuid, _>("id")?.to_string(),
        aggregate_type: row.try_get("aggregatetype")?,
        aggregate_id: row.try_get("aggregateid")?,
        event_type: row.try_get("type")?,
        attempts: u32::try_from(row.try_get::<i32, _>("attempts")?).unwrap_or_default(),
        reason: row.try_get::<Option<_>, _>("last_error")?.unwrap_or_default(),
    })
}

fn letter(row: &PgRow, payload: PayloadType) -> Result<DeadLetter, sqlx::Error> {
    let text = |column: usize| -> Result<Option<String>, sqlx::Error> {
        Ok(row::bytes(row, column)?.map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
    };
    let time = |column: usize| -> Result<SystemTime, sqlx::Error> {
        let micros = row::micros(row::bytes(row, column)?).unwrap_or_default();
        Ok(UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or_default()))
    };
    Ok(DeadLetter {
        entry: row.try_get(0)?,
        id: row.try_get::<Uuid, _>(1)?.to_string(),
        aggregate_type: text(2)?.unwrap_or_default(),
        aggregate_id: text(3)?,
        event_type: text(4)?.unwrap_or_default(),
        payload: row::payload(row, 5, payload)?.map(Bytes::copy_from_slice),
        headers: text(6)?,
        attempts: u32::try_from(row.try_get::<i32, _>(7)?).unwrap_or_default(),
        reason: text(8)?.unwrap_or_default(),
        created_at: time(9)?,
        died_at: time(10)?,
    })
}

/// A time in microseconds since 1970; one before is long past.
fn micros(time: SystemTime) -> i64 {
    let since_1970 = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_1970.as_micros()).unwrap_or(i64::MAX)
}
