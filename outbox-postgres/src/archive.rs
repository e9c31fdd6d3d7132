//! The upkeep of the archive: partitions made ahead of time, and dropped when their time is over.

use futures_util::future::BoxFuture;
use outbox_core::{Retention, StoreError, Upkeep};
use sqlx::error::DatabaseError;
use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use crate::config::PostgresConfig;
use crate::database::Database;
use crate::sql::ArchiveStatements;

/// How long a change of partitions waits for a lock: settlements wait behind it.
const LOCK_TIMEOUT: &str = "set local lock_timeout = '100ms'";
/// Pages of the default partition that one statement looks through: 16 MiB.
const PAGES: i64 = 2_000;

/// The archive of delivered events ([`Keep::Archive`](crate::Keep::Archive)), for operators.
#[derive(Debug)]
pub struct Archive {
    database: Database,
    statements: ArchiveStatements,
}

/// What one step of the upkeep has done.
enum Step {
    Made(String),
    Dropped(String),
    /// Rows deleted from some pages of the default partition, and how many pages it has.
    Deleted(i64, i64),
    /// A transaction reads the partition.
    Left(String),
    /// Another upkeep runs.
    Busy,
    /// There is nothing to make and nothing to drop.
    Over,
}

impl Archive {
    /// The archive of the outbox that `config` names. Call it within a Tokio runtime.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when a setting is out of range.
    pub fn new(config: &PostgresConfig) -> Result<Self, StoreError> {
        config.validate()?;
        Ok(Self {
            database: Database::new(config, 1),
            statements: ArchiveStatements::new(&config.names()),
        })
    }

    /// Makes the partitions of the periods to come, and drops those of which every row was delivered longer ago than
    /// [`Retention::keep`]. Call it every hour or so; of several at once, one does it. Its role must own the tables.
    ///
    /// A partition made by hand is dropped when its end is old enough, and no period that overlaps one is made. Rows in the
    /// default partition, which has no end, are deleted one by one. A period that has begun gets a partition only while the
    /// default partition is empty.
    ///
    /// Each step is a transaction of its own, within the statement time limit. A partition that a transaction reads is left for
    /// the next time after 100 ms, so that no settlement waits longer. Cancel safe: what was done stays done.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when `retention` is out of range, or the role may not change the tables; otherwise when the database
    /// refuses a step or cannot be reached.
    pub async fn maintain(&self, retention: &Retention) -> Result<Upkeep, StoreError> {
        retention.validate()?;
        let keep = i64::try_from(retention.keep.as_micros()).unwrap_or(i64::MAX);
        let mut upkeep = Upkeep::default();
        let mut left = Vec::new();
        loop {
            match self.partition(retention, keep, left.clone()).await? {
                Step::Made(name) => upkeep.made.push(name),
                Step::Dropped(name) => upkeep.dropped.push(name),
                Step::Left(name) => left.push(name),
                Step::Busy => {
                    upkeep.busy = true;
                    return Ok(upkeep);
                }
                Step::Deleted(..) | Step::Over => break,
            }
        }
        upkeep.busy = !left.is_empty();
        let mut page = 0;
        while let Step::Deleted(gone, pages) = self.delete(page, keep).await? {
            upkeep.deleted += gone.cast_unsigned();
            page += PAGES;
            if page >= pages {
                return Ok(upkeep);
            }
        }
        upkeep.busy = true;
        Ok(upkeep)
    }

    /// Makes or drops the first partition that is due and was not left.
    async fn partition(
        &self,
        retention: &Retention,
        keep: i64,
        left: Vec<String>,
    ) -> Result<Step, StoreError> {
        let plan = self
            .database
            .query(&self.statements.plan)
            .bind(retention.period.as_sql())
            .bind(i64::from(retention.ahead))
            .bind(keep)
            .bind(left);
        self.step(move |connection| {
            Box::pin(async move {
                let Some(first) = plan.fetch_optional(&mut *connection).await? else {
                    return Ok(Step::Over);
                };
                let (sql, name): (String, String) = (first.try_get("sql")?, first.try_get("name")?);
                let makes = first.try_get("makes")?;
                match sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await {
                    Ok(_) if makes => Ok(Step::Made(name)),
                    Ok(_) => Ok(Step::Dropped(name)),
                    Err(sqlx::Error::Database(error)) if is_locked(&*error) => Ok(Step::Left(name)),
                    Err(error) => Err(error),
                }
            })
        })
        .await
    }

    /// Deletes what is old in some pages of the default partition.
    async fn delete(&self, page: i64, keep: i64) -> Result<Step, StoreError> {
        let delete =
            self.database.query(&self.statements.delete).bind(page).bind(page + PAGES).bind(keep);
        self.step(move |connection| {
            Box::pin(async move {
                let row = delete.fetch_one(connection).await?;
                Ok(Step::Deleted(row.try_get("gone")?, row.try_get("pages")?))
            })
        })
        .await
    }

    /// Runs a step in a transaction of its own, if no other upkeep runs.
    async fn step<F>(&self, work: F) -> Result<Step, StoreError>
    where
        F: for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<Step, sqlx::Error>>
            + Send
            + 'static,
    {
        let lock = self.database.query(&self.statements.lock);
        self.database
            .transaction("change the archive of", move |connection| {
                Box::pin(async move {
                    sqlx::raw_sql(LOCK_TIMEOUT).execute(&mut *connection).await?;
                    if lock.fetch_one(&mut *connection).await?.try_get(0)? {
                        work(connection).await
                    } else {
                        Ok(Step::Busy)
                    }
                })
            })
            .await
    }
}

/// `lock_not_available`.
fn is_locked(error: &dyn DatabaseError) -> bool {
    error.code().as_deref() == Some("55P03")
}
