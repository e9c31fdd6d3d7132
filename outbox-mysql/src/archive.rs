//! The upkeep of the archive: partitions made ahead of time, and dropped when their time is over.

use std::time::Duration;

use outbox_core::{Retention, StoreError, Upkeep};
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, MySqlConnection};

use crate::config::MySqlConfig;
use crate::database::{Database, query_once};
use crate::row;
use crate::sql::archive as sql;

/// The shortest that MySQL can wait for a lock: settlements wait behind a change of partitions that waits.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// Rows that may be copied when the partition without an end is split. Settlements wait for it.
const COPIED: i64 = 100_000;

/// The archive of delivered events ([`Keep::Archive`](crate::Keep::Archive)), for operators.
#[derive(Debug)]
pub struct Archive {
    config: MySqlConfig,
    database: Database,
}

/// The partitions of the archive, and those that it should have.
#[derive(Debug)]
struct Plan {
    /// Names and ends in seconds since 1970, those to be dropped; by their ends.
    old: Vec<String>,
    /// The partition without an end.
    rest: Option<String>,
    /// Names and ends of those to be made; by their ends.
    missing: Vec<(String, i64)>,
}

/// What one step of the upkeep has done.
enum Step {
    Changed(Upkeep),
    Refused(String),
}

impl Archive {
    /// The archive of the outbox that `config` names. Call it within a Tokio runtime.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when a setting is out of range.
    pub fn new(config: &MySqlConfig) -> Result<Self, StoreError> {
        config.validate()?;
        let patient = config
            .clone()
            .with_lock_timeout(LOCK_TIMEOUT)
            .with_statement_timeout(config.migrate_timeout);
        Ok(Self { database: Database::new(&patient, 1), config: config.clone() })
    }

    /// Makes the partitions of the periods to come, and drops those of which every row was delivered longer ago than
    /// [`Retention::keep`]. Call it every hour or so; of several at once, one does it. It needs the
    /// rights of whoever migrates, and `select`, `insert` and `drop` on the archive.
    ///
    /// A partition holds what was delivered before its end and after the end of the one before. So the first that is made takes
    /// what had none, and those made by hand are respected.
    ///
    /// A partition that a transaction reads is left for the next time after a second, so that no settlement waits longer. Cancel
    /// safe: what was done stays done.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when `retention` is out of range, the user may not change the table, or so many rows were delivered
    /// since the last partition that it would take long to move them; otherwise when the database refuses a step or
    /// cannot be reached.
    pub async fn maintain(&self, retention: &Retention) -> Result<Upkeep, StoreError> {
        retention.validate()?;
        let (config, retention) = (self.config.clone(), *retention);
        let step = self
            .database
            .run("change the archive of", move |connection| {
                let config = config.clone();
                Box::pin(async move {
                    let lock = query_once(sql::lock(&config)).fetch_one(&mut *connection).await?;
                    if row::int(&lock, 0)? != Some(1) {
                        let mut busy = Upkeep::default();
                        busy.busy = true;
                        return Ok(Step::Changed(busy));
                    }
                    let step = change(connection, &config, retention).await;
                    // The lock belongs to the session, which goes on.
                    query_once(sql::unlock(&config)).execute(connection).await?;
                    step
                })
            })
            .await?;
        match step {
            Step::Changed(upkeep) => Ok(upkeep),
            Step::Refused(reason) => Err(StoreError::misconfigured(format!(
                "cannot change the archive of {}: {reason}",
                self.database.table()
            ))),
        }
    }
}

async fn change(
    connection: &mut MySqlConnection,
    config: &MySqlConfig,
    retention: Retention,
) -> Result<Step, sqlx::Error> {
    let names = config.names();
    let Some(plan) = plan(connection, config, retention).await? else {
        return Ok(Step::Refused(format!(
            "{} has no partitions: run the schema check",
            names.archive
        )));
    };
    let mut upkeep = Upkeep::default();
    if !plan.missing.is_empty() {
        if let Some(rest) = &plan.rest {
            let rows = query_once(sql::count(&names, rest)).bind(COPIED + 1);
            let rows = row::int(&rows.fetch_one(&mut *connection).await?, 0)?.unwrap_or_default();
            if rows > COPIED {
                return Ok(Step::Refused(format!(
                    "its partition {rest} has more than {COPIED} rows, and settlements would wait while they are moved; \
                     in a quiet hour run: {}",
                    sql::make(&names, Some(rest), &plan.missing)
                )));
            }
        }
        let make = sql::make(&names, plan.rest.as_deref(), &plan.missing);
        if run(connection, make).await? {
            upkeep.made = plan.missing.into_iter().map(|(name, _)| name).collect();
        } else {
            upkeep.busy = true;
        }
    }
    // One by one: a transaction that reads one of them keeps no other.
    for name in plan.old {
        if run(connection, sql::drop(&names, &name)).await? {
            upkeep.dropped.push(name);
        } else {
            upkeep.busy = true;
        }
    }
    Ok(Step::Changed(upkeep))
}

/// `None` when the archive is not partitioned.
async fn plan(
    connection: &mut MySqlConnection,
    config: &MySqlConfig,
    retention: Retention,
) -> Result<Option<Plan>, sqlx::Error> {
    let names = config.names();
    let rows = query_once(sql::partitions(&names)).fetch_all(&mut *connection).await?;
    if rows.is_empty() {
        return Ok(None);
    }
    let mut plan = Plan { old: Vec::new(), rest: None, missing: Vec::new() };
    let periods = query_once(sql::periods(retention.period))
        .bind(i64::from(retention.ahead))
        .fetch_all(connection)
        .await?;
    let (mut last, keep) = (i64::MIN, i64::try_from(retention.keep.as_secs()).unwrap_or(i64::MAX));
    for row in &rows {
        let (name, end, now) =
            (text(row, 0)?, text(row, 1)?, row::int(row, 2)?.unwrap_or_default());
        match end.parse() {
            Ok(end) => {
                last = last.max(end);
                if end <= now - keep {
                    plan.old.push(name);
                }
            }
            Err(_) => plan.rest = Some(name),
        }
    }
    for row in &periods {
        let end = row::int(row, 1)?.unwrap_or_default();
        if end > last {
            plan.missing.push((text(row, 0)?, end));
        }
    }
    Ok(Some(plan))
}

fn text(row: &MySqlRow, column: usize) -> Result<String, sqlx::Error> {
    Ok(row::lossy(row, column)?.unwrap_or_default())
}

/// Whether the statement was run; else somebody holds a lock.
async fn run(connection: &mut MySqlConnection, sql: String) -> Result<bool, sqlx::Error> {
    match sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await {
        Err(error) if is_locked(&error) => Ok(false),
        result => result.map(|_| true),
    }
}

/// `ER_LOCK_WAIT_TIMEOUT`.
fn is_locked(error: &sqlx::Error) -> bool {
    let error = error.as_database_error().and_then(|error| error.try_downcast_ref());
    error.is_some_and(|error: &sqlx::mysql::MySqlDatabaseError| error.number() == 1205)
}
