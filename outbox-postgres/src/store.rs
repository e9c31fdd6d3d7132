//! The outbox table as the relay sees it.

use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{
    Backlog, Capabilities, ClaimRequest, Claimed, LaneId, Leases, OpenWriter, OwnedLane, Pipeline,
    Position, Probe, Settled, Settlements, Store, StoreError, StoreErrorKind, TypeFilter,
    Watermark, Worker,
};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::database::Database;
use crate::row::widen;
use crate::sql::Statements;
use crate::{PostgresConfig, Schema};

mod claim;
mod settle;

/// How long a worker that has joined counts as live until its first heartbeat.
const JOIN_LEASE: Duration = Duration::from_secs(10);

/// An outbox table in PostgreSQL.
///
/// Connects when it is first used. Statements go on when their futures are dropped: see `database.rs`.
#[derive(Debug)]
pub struct PostgresStore {
    config: PostgresConfig,
    database: Database,
    /// One connection of their own.
    leases: Database,
    statements: Statements,
    row_bytes: claim::RowBytes,
}

impl PostgresStore {
    /// The store over the outbox that `config` names. It connects when it is first used; [`Store::join`] checks the
    /// tables. Call it within a Tokio runtime.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when a setting is out of range.
    pub fn new(config: &PostgresConfig) -> Result<Self, StoreError> {
        config.validate()?;
        Ok(Self {
            database: Database::new(config, config.pool_size - 1),
            leases: Database::new(config, 1),
            statements: Statements::new(config),
            row_bytes: claim::RowBytes::default(),
            config: config.clone(),
        })
    }

    /// Enters the worker, unless its types overlap with those of another live pipeline.
    async fn enrol(&self, worker: &Worker, lanes: u16, lease: Duration) -> Result<(), StoreError> {
        let (lock, others) = (
            self.leases.query(&self.statements.lock_joins),
            self.leases.query(&self.statements.live_pipelines),
        );
        let create = self.leases.query(&self.statements.create_lanes);
        let enrol = self.leases.query(&self.statements.enrol);
        let Worker { id, name, pipeline, .. } = worker.clone();
        let overlap = self
            .leases
            .transaction("join", move |connection| {
                Box::pin(async move {
                    lock.execute(&mut *connection).await?;
                    let others =
                        others.bind(pipeline.name().to_owned()).fetch_all(&mut *connection).await?;
                    for other in &others {
                        if filter_of(other)?.overlaps(pipeline.types()) {
                            return Ok(Some(other.try_get::<String, _>("pipeline")?));
                        }
                    }
                    let lanes = i32::from(lanes);
                    create
                        .bind(pipeline.name().to_owned())
                        .bind(lanes)
                        .execute(&mut *connection)
                        .await?;
                    let (rule, types) = filter_columns(pipeline.types());
                    enrol
                        .bind(id)
                        .bind(pipeline.name().to_owned())
                        .bind(name)
                        .bind(rule)
                        .bind(types)
                        .bind(millis(lease))
                        .execute(&mut *connection)
                        .await?;
                    Ok(None)
                })
            })
            .await?;
        match overlap {
            None => Ok(()),
            Some(other) => {
                Err(StoreError::overlapping(worker.pipeline.name(), &other, self.database.table()))
            }
        }
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
            .with_leases(true)
            .with_watermark(Watermark::Writers)
            .with_scheduled(true)
            .with_savepoints(true)
    }

    async fn join(&self, worker: &Worker) -> Result<u16, StoreError> {
        let lanes = Schema::on(self.config.clone(), self.database.clone()).require().await?;
        self.enrol(worker, lanes, JOIN_LEASE).await?;
        Ok(lanes)
    }

    async fn heartbeat(&self, worker: &Worker, lease: Duration) -> Result<Leases, StoreError> {
        let beat = self.leases.query(&self.statements.beat).bind(worker.id).bind(millis(lease));
        let beat = self
            .leases
            .run("extend the lease on", move |connection| Box::pin(beat.execute(connection)))
            .await?;
        if beat.rows_affected() == 0 {
            // Run out, buried, or never entered: its types may overlap with somebody's by now.
            self.enrol(worker, self.config.lanes, lease).await?;
        }
        let leases = self
            .leases
            .query(&self.statements.leases)
            .bind(worker.id)
            .bind(worker.pipeline.name().to_owned());
        self.leases
            .run("read the leases of", move |connection| {
                Box::pin(async move { leases_of(&leases.fetch_one(connection).await?) })
            })
            .await
    }

    async fn acquire(&self, worker: &Worker, count: u16) -> Result<(), StoreError> {
        let pipeline = worker.pipeline.name();
        let bury =
            self.leases.query(&self.statements.bury).bind(worker.id).bind(pipeline.to_owned());
        self.leases
            .run("bury expired workers of", move |connection| Box::pin(bury.execute(connection)))
            .await?;
        let take = self
            .leases
            .query(&self.statements.take)
            .bind(worker.id)
            .bind(pipeline.to_owned())
            .bind(i64::from(count));
        let taken = self
            .leases
            .run("take lanes of", move |connection| {
                Box::pin(async move {
                    match take.execute(connection).await {
                        Err(error) if is_foreign_key_violation(&error) => Ok(false),
                        taken => taken.map(|_| true),
                    }
                })
            })
            .await?;
        if taken {
            return Ok(());
        }
        Err(StoreError::new(
            StoreErrorKind::Stale,
            format!(
                "worker {} ({}) on {} has been buried: its lease had run out",
                worker.id,
                worker.name,
                self.database.table()
            ),
        ))
    }

    async fn release(&self, worker: &Worker, lanes: &[LaneId]) -> Result<(), StoreError> {
        let release = self
            .leases
            .query(&self.statements.release)
            .bind(worker.id)
            .bind(worker.pipeline.name().to_owned())
            .bind(lanes.iter().map(|lane| int2(*lane)).collect::<Vec<_>>());
        self.leases
            .run("release lanes of", move |connection| Box::pin(release.execute(connection)))
            .await?;
        Ok(())
    }

    async fn leave(&self, worker: &Worker) -> Result<(), StoreError> {
        let leave = self.leases.query(&self.statements.leave).bind(worker.id);
        self.leases
            .run("sign off from", move |connection| Box::pin(leave.execute(connection)))
            .await?;
        Ok(())
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, StoreError> {
        self.read(request).await
    }

    async fn settle(&self, settlements: &Settlements) -> Result<Settled, StoreError> {
        self.write(settlements).await
    }

    async fn probe(&self, after: Position) -> Result<Probe, StoreError> {
        let probe = self.database.query(&self.statements.probe).bind(after);
        self.database
            .run("look for writers of", move |connection| {
                Box::pin(async move { probe_of(&probe.fetch_one(connection).await?) })
            })
            .await
    }

    async fn backlog(&self, pipeline: &Pipeline, cap: u64) -> Result<Option<Backlog>, StoreError> {
        let cap = i64::try_from(cap).unwrap_or(i64::MAX).min(i64::MAX / 10);
        let mut backlog = self.database.query(self.statements.backlog(pipeline.types())).bind(cap);
        if let Some(types) = types_of(pipeline.types()) {
            backlog = backlog.bind(types);
        }
        self.database
            .run("count", move |connection| {
                Box::pin(async move { backlog_of(&backlog.fetch_one(connection).await?) })
            })
            .await
            .map(Some)
    }
}

fn leases_of(row: &PgRow) -> Result<Leases, sqlx::Error> {
    let lanes: Vec<i16> = row.try_get("lanes")?;
    let epochs: Vec<i64> = row.try_get("epochs")?;
    let crashes: Vec<i16> = row.try_get("crashes")?;
    let count = |column: &str| {
        row.try_get::<i64, _>(column).map(|count| u16::try_from(count).unwrap_or(u16::MAX))
    };
    let owned = lanes.into_iter().zip(epochs).zip(crashes);
    let owned = owned.map(|((lane, epoch), crashes)| {
        OwnedLane::new(lane.cast_unsigned(), epoch, crashes.cast_unsigned())
    });
    Ok(Leases::new(owned.collect(), count("workers")?, count("rank")?))
}

fn probe_of(row: &PgRow) -> Result<Probe, sqlx::Error> {
    let next: i64 = row.try_get("next")?;
    let names: Vec<String> = row.try_get("writers")?;
    let xids: Vec<Option<i64>> = row.try_get("xids")?;
    let writers = names
        .into_iter()
        .zip(xids)
        .map(|(name, xid)| OpenWriter::new(name, xid.and_then(|xid| widen(xid, next))));
    Ok(Probe::new(row.try_get("top")?, writers.collect(), row.try_get::<String, _>("server")?))
}

fn backlog_of(row: &PgRow) -> Result<Backlog, sqlx::Error> {
    let count = |column: &str| {
        row.try_get::<i64, _>(column).map(|count| u64::try_from(count).unwrap_or_default())
    };
    let mut backlog = Backlog::default();
    backlog.pending = count("pending")?;
    backlog.oldest = row
        .try_get::<Option<i64>, _>("oldest")?
        .map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or_default()));
    backlog.blocked = count("blocked")?;
    backlog.dead = count("dead")?;
    backlog.table_bytes = vec![
        ("live", count("live_bytes")?),
        ("dead", count("dead_bytes")?),
        ("archive", count("archive_bytes")?),
        ("inbox", count("inbox_bytes")?),
    ];
    Ok(backlog)
}

/// The types that a filter names.
fn types_of(filter: &TypeFilter) -> Option<Vec<String>> {
    match filter {
        TypeFilter::All => None,
        TypeFilter::Only(types) | TypeFilter::Except(types) => {
            Some(types.iter().cloned().collect())
        }
    }
}

/// A filter as it stands in a worker's row.
fn filter_columns(filter: &TypeFilter) -> (&'static str, Vec<String>) {
    let rule = match filter {
        TypeFilter::All => "all",
        TypeFilter::Only(_) => "only",
        TypeFilter::Except(_) => "except",
    };
    (rule, types_of(filter).unwrap_or_default())
}

fn filter_of(row: &PgRow) -> Result<TypeFilter, sqlx::Error> {
    let types = row.try_get::<Vec<String>, _>("types")?.into_iter().collect();
    Ok(match row.try_get::<&str, _>("types_rule")? {
        "only" => TypeFilter::Only(types),
        "except" => TypeFilter::Except(types),
        _ => TypeFilter::All,
    })
}

fn is_foreign_key_violation(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(sqlx::error::DatabaseError::is_foreign_key_violation)
}

/// A lane as SQL has it; no table has a lane beyond `int2`, so such a one matches nothing.
fn int2(lane: LaneId) -> i16 {
    i16::try_from(lane).unwrap_or(-1)
}

/// A lease in milliseconds; a day is the longest that counts as live.
fn millis(lease: Duration) -> i64 {
    const LONGEST: i64 = 23 * 60 * 60 * 1000;
    i64::try_from(lease.as_millis()).unwrap_or(LONGEST).min(LONGEST)
}
