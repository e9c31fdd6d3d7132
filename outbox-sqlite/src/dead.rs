//! Dead letters, for operators.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use outbox_core::StoreError;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqlSafeStr, SqlitePool};

use crate::config::SqliteConfig;
use crate::error::failed;
use crate::sql::{BEGIN, Sql};

/// The events that were given up: look at them, send them again, or drop them.
#[derive(Debug)]
pub struct DeadLetters {
    pool: SqlitePool,
    sql: Sql,
    place: String,
}

/// An event that was given up.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Names this dead letter; rises in the order in which they died and is never used again.
    pub entry: i64,
    /// The event's id, which it keeps when it is sent again.
    pub id: String,
    /// The kind of aggregate.
    pub aggregate_type: String,
    /// The aggregate; `None` is an unordered event.
    pub aggregate_id: Option<String>,
    /// The event's type.
    pub event_type: String,
    /// The payload; `None` is a tombstone.
    pub payload: Option<Bytes>,
    /// The event's headers as one flat JSON object.
    pub headers: Option<String>,
    /// Attempts that were counted, at least 1.
    pub attempts: u32,
    /// Why it was given up.
    pub reason: String,
    /// When the event was written.
    pub created_at: SystemTime,
    /// When it was given up.
    pub died_at: SystemTime,
}

impl DeadLetters {
    /// The dead letters of the outbox that `config` names.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when a setting is out of range.
    pub fn new(pool: SqlitePool, config: &SqliteConfig) -> Result<Self, StoreError> {
        Ok(Self { pool, sql: Sql::new(config)?, place: config.place() })
    }

    /// Up to `limit` dead letters whose entry is above `after` (0 for the first page), in the order of their death.
    ///
    /// # Errors
    ///
    /// When the database cannot be read.
    pub async fn list(&self, after: i64, limit: u32) -> Result<Vec<DeadLetter>, StoreError> {
        let rows = sqlx::query(self.sql.list_dead.clone())
            .bind(after)
            .bind(limit)
            .fetch_all(&self.pool)
            .await
            .map_err(self.failed("list the dead letters"))?;
        rows.iter().map(|row| letter(row).map_err(self.failed("read a dead letter"))).collect()
    }

    /// Sends a dead letter again: it goes back to the outbox with its id and its attempts, is due at once, and holds
    /// the later events of its aggregate until it is delivered. `false` when somebody was faster.
    ///
    /// # Errors
    ///
    /// When the database cannot be written; nothing has changed then.
    pub async fn requeue(&self, entry: i64) -> Result<bool, StoreError> {
        self.remove(entry, Some(&self.sql.requeue))
            .await
            .map_err(self.failed("requeue a dead letter"))
    }

    /// Drops a dead letter for good. `false` when somebody was faster.
    ///
    /// # Errors
    ///
    /// When the database cannot be written; nothing has changed then.
    pub async fn discard(&self, entry: i64) -> Result<bool, StoreError> {
        self.remove(entry, None).await.map_err(self.failed("discard a dead letter"))
    }

    async fn remove(&self, entry: i64, first: Option<&sqlx::SqlStr>) -> Result<bool, sqlx::Error> {
        let mut transaction = self.pool.begin_with(BEGIN).await?;
        if let Some(sql) = first {
            sqlx::query(sql.clone().into_sql_str()).bind(entry).execute(&mut *transaction).await?;
        }
        let removed =
            sqlx::query(self.sql.discard.clone()).bind(entry).execute(&mut *transaction).await?;
        transaction.commit().await?;
        Ok(removed.rows_affected() == 1)
    }

    fn failed(&self, what: &str) -> impl FnOnce(sqlx::Error) -> StoreError {
        failed(format!("{what} of {}", self.place))
    }
}

fn letter(row: &SqliteRow) -> Result<DeadLetter, sqlx::Error> {
    let bytes = |index: usize| row.try_get_unchecked::<Option<&[u8]>, _>(index);
    let text = |index: usize| {
        Ok::<_, sqlx::Error>(bytes(index)?.map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
    };
    let time = |index: usize| {
        let micros = u64::try_from(row.try_get::<i64, _>(index)?).unwrap_or(0);
        Ok::<_, sqlx::Error>(UNIX_EPOCH + Duration::from_micros(micros))
    };
    Ok(DeadLetter {
        entry: row.try_get(0)?,
        id: text(1)?.unwrap_or_default(),
        aggregate_type: text(2)?.unwrap_or_default(),
        aggregate_id: text(3)?,
        event_type: text(4)?.unwrap_or_default(),
        payload: bytes(5)?.map(Bytes::copy_from_slice),
        headers: text(6)?,
        attempts: u32::try_from(row.try_get::<i64, _>(7)?).unwrap_or(u32::MAX),
        reason: text(8)?.unwrap_or_default(),
        created_at: time(9)?,
        died_at: time(10)?,
    })
}
