//! The upkeep of the archive: old rows are deleted.

use outbox_core::{Retention, StoreError, Upkeep};
use sqlx::{SqlStr, SqlitePool};

use crate::config::SqliteConfig;
use crate::error::failed;
use crate::sql;
use crate::writer::micros;

/// Rows in one transaction, which other writers wait for.
const BATCH: u32 = 1_000;

/// The archive of delivered events ([`Keep::Archive`](crate::Keep::Archive)), for operators.
#[derive(Debug)]
pub struct Archive {
    pool: SqlitePool,
    purge: SqlStr,
    place: String,
}

impl Archive {
    /// The archive of the outbox that `config` names.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when a setting is out of range.
    pub fn new(pool: SqlitePool, config: &SqliteConfig) -> Result<Self, StoreError> {
        config.validate()?;
        Ok(Self { pool, purge: sql::purge_archive(&config.table), place: config.place() })
    }

    /// Deletes the events that were delivered longer ago than [`Retention::keep`], the oldest first, in transactions of 1,000. It
    /// waits for SQLite's write lock as any writer does. There are no partitions: the other settings say nothing here.
    ///
    /// Dropping the future stops after the batch that is under way, which may still be done.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when `retention` is out of range; `Unavailable` when another writer keeps the lock for longer than the
    /// busy time-out. What was removed before stays removed.
    pub async fn maintain(&self, retention: &Retention) -> Result<Upkeep, StoreError> {
        retention.validate()?;
        let mut upkeep = Upkeep::default();
        loop {
            let gone = sqlx::query(self.purge.clone())
                .bind(micros(retention.keep))
                .bind(BATCH)
                .execute(&self.pool)
                .await
                .map_err(failed(format!("purge the archive of {}", self.place)))?
                .rows_affected();
            upkeep.deleted += gone;
            if gone < u64::from(BATCH) {
                return Ok(upkeep);
            }
        }
    }
}
