//! Dead letters and blocked heads, for operators.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use outbox_core::{BlockedHead, DeadLetter, Position, StoreError};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqlStr, SqlitePool};

use crate::config::SqliteConfig;
use crate::error::failed;
use crate::sql::{BEGIN, Sql};

/// The events that were given up: look at them, send them again, or drop them.
///
/// Under the policy `hold` an event that is given up stays in the outbox and blocks its aggregate; those are listed,
/// sent again and dropped by methods of their own.
#[derive(Debug)]
pub struct DeadLetters {
    pool: SqlitePool,
    sql: Sql,
    place: String,
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

    /// Sends a dead letter again: it goes back to the outbox with its id and all its tries before it, is due at once, and holds
    /// the later events of its aggregate until it is delivered. `false` when somebody was faster.
    ///
    /// # Errors
    ///
    /// When the database cannot be written; nothing has changed then.
    pub async fn requeue(&self, entry: i64) -> Result<bool, StoreError> {
        self.change(&[&self.sql.requeue, &self.sql.discard], entry)
            .await
            .map_err(self.failed("requeue a dead letter"))
    }

    /// Drops a dead letter for good. `false` when somebody was faster.
    ///
    /// # Errors
    ///
    /// When the database cannot be written; nothing has changed then.
    pub async fn discard(&self, entry: i64) -> Result<bool, StoreError> {
        self.change(&[&self.sql.discard], entry).await.map_err(self.failed("discard a dead letter"))
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
        let rows = sqlx::query(self.sql.list_blocked.clone())
            .bind(after)
            .bind(limit)
            .fetch_all(&self.pool)
            .await
            .map_err(self.failed("list the blocked heads"))?;
        rows.iter().map(|row| head(row).map_err(self.failed("read a blocked head"))).collect()
    }

    /// Sends a blocked head again: it is due at once with all its tries before it, and holds its aggregate until it is
    /// delivered. `false` when it is blocked no more.
    ///
    /// # Errors
    ///
    /// When the database cannot be written; nothing has changed then.
    pub async fn unblock(&self, position: Position) -> Result<bool, StoreError> {
        let changed =
            sqlx::query(self.sql.unblock.clone()).bind(position).execute(&self.pool).await;
        Ok(changed.map_err(self.failed("unblock a head"))?.rows_affected() == 1)
    }

    /// Drops a blocked head for good, so that its aggregate goes on without it, in order: the event behind it holds the rest
    /// until it is delivered. `false` when it is blocked no more.
    ///
    /// # Errors
    ///
    /// When the database cannot be written; nothing has changed then.
    pub async fn discard_blocked(&self, position: Position) -> Result<bool, StoreError> {
        self.change(&[&self.sql.pass_hold, &self.sql.discard_blocked], position)
            .await
            .map_err(self.failed("discard a blocked head"))
    }

    /// Runs statements on one row in one transaction; whether the last of them found it.
    async fn change(&self, statements: &[&SqlStr], key: i64) -> Result<bool, sqlx::Error> {
        let mut transaction = self.pool.begin_with(BEGIN).await?;
        let mut found = false;
        for statement in statements {
            let changed =
                sqlx::query((*statement).clone()).bind(key).execute(&mut *transaction).await?;
            found = changed.rows_affected() == 1;
        }
        transaction.commit().await?;
        Ok(found)
    }

    fn failed(&self, what: &str) -> impl FnOnce(sqlx::Error) -> StoreError {
        failed(format!("{what} of {}", self.place))
    }
}

fn letter(row: &SqliteRow) -> Result<DeadLetter, sqlx::Error> {
    Ok(DeadLetter {
        entry: row.try_get(0)?,
        id: text(row, 1)?.unwrap_or_default(),
        aggregate_type: text(row, 2)?.unwrap_or_default(),
        aggregate_id: text(row, 3)?,
        event_type: text(row, 4)?.unwrap_or_default(),
        payload: row.try_get_unchecked::<Option<&[u8]>, _>(5)?.map(Bytes::copy_from_slice),
        headers: text(row, 6)?,
        attempts: attempts(row, 7)?,
        reason: text(row, 8)?.unwrap_or_default(),
        created_at: time(row, 9)?,
        died_at: time(row, 10)?,
    })
}

fn head(row: &SqliteRow) -> Result<BlockedHead, sqlx::Error> {
    Ok(BlockedHead {
        position: row.try_get(0)?,
        id: text(row, 1)?.unwrap_or_default(),
        aggregate_type: text(row, 2)?.unwrap_or_default(),
        aggregate_id: text(row, 3)?,
        event_type: text(row, 4)?.unwrap_or_default(),
        attempts: attempts(row, 5)?,
        reason: text(row, 6)?.unwrap_or_default(),
    })
}

/// Texts that are no UTF-8 may be why an event died: they are shown as far as they can be.
fn text(row: &SqliteRow, index: usize) -> Result<Option<String>, sqlx::Error> {
    let bytes = row.try_get_unchecked::<Option<&[u8]>, _>(index)?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
}

fn attempts(row: &SqliteRow, index: usize) -> Result<u32, sqlx::Error> {
    Ok(u32::try_from(row.try_get::<i64, _>(index)?).unwrap_or(u32::MAX))
}

fn time(row: &SqliteRow, index: usize) -> Result<SystemTime, sqlx::Error> {
    let micros = u64::try_from(row.try_get::<i64, _>(index)?).unwrap_or(0);
    Ok(UNIX_EPOCH + Duration::from_micros(micros))
}
