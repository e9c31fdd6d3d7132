//! The outbox table as the relay sees it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{
    Backlog, Capabilities, ClaimRequest, Claimed, LaneId, Leases, Pipeline, Position, Probe,
    Settled, Settlements, Store, StoreError, TypeFilter, Watermark, Worker,
};
use serde_json::json;
use sqlx::mysql::MySqlRow;

use crate::database::{Database, query};
use crate::row;
use crate::sql::Statements;
use crate::{MySqlConfig, Schema};

mod claim;
mod leases;
mod probe;
mod settle;

/// An outbox table in MySQL or MariaDB.
///
/// Statements go on when their futures are dropped: see `database.rs`.
///
/// Where the user may read `performance_schema.metadata_locks` and the server keeps it (MySQL does by default, MariaDB when
/// told to), the store names open writers. Everywhere else each claim lists the positions of its lanes from the start.
#[derive(Debug)]
pub struct MySqlStore {
    config: MySqlConfig,
    database: Database,
    /// One connection of their own.
    leases: Database,
    statements: Arc<Statements>,
    expected: Arc<claim::Expected>,
    watermark: probe::Source,
}

impl MySqlStore {
    /// The store over the outbox that `config` names. It connects when it is first used; [`Store::join`] checks the
    /// tables. Call it within a Tokio runtime.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when a setting is out of range.
    pub fn new(config: &MySqlConfig) -> Result<Self, StoreError> {
        config.validate()?;
        Ok(Self {
            database: Database::new(config, config.pool_size - 1),
            leases: Database::new(config, 1),
            statements: Arc::new(Statements::new(config)),
            expected: Arc::default(),
            watermark: probe::Source::default(),
            config: config.clone(),
        })
    }
}

#[async_trait]
impl Store for MySqlStore {
    /// What is known of open writers is known once the store has joined or probed.
    fn capabilities(&self) -> Capabilities {
        let watermark =
            if self.watermark.is_known() { Watermark::Writers } else { Watermark::None };
        Capabilities::default()
            .with_leases(true)
            .with_watermark(watermark)
            .with_scheduled(true)
            .with_savepoints(true)
    }

    async fn join(&self, worker: &Worker) -> Result<u16, StoreError> {
        let lanes = Schema::on(self.config.clone(), self.database.clone()).require().await?;
        self.enrol(worker, leases::JOIN_LEASE).await?;
        self.find_source().await?;
        Ok(lanes)
    }

    async fn heartbeat(&self, worker: &Worker, lease: Duration) -> Result<Leases, StoreError> {
        self.beat(worker, lease).await
    }

    async fn acquire(&self, worker: &Worker, count: u16) -> Result<(), StoreError> {
        self.bury(worker).await?;
        self.take(worker, count).await
    }

    async fn release(&self, worker: &Worker, lanes: &[LaneId]) -> Result<(), StoreError> {
        self.give_back(worker, lanes).await
    }

    async fn leave(&self, worker: &Worker) -> Result<(), StoreError> {
        let (leave, id) = (Arc::clone(&self.statements.leave), worker.id.to_string());
        self.leases
            .run("sign off from", move |connection| {
                let leave = query(&leave).bind(id.clone());
                Box::pin(async move { leave.execute(connection).await.map(drop) })
            })
            .await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, StoreError> {
        if request.lanes.is_empty() {
            return Ok(Claimed::default());
        }
        self.read(request).await
    }

    async fn settle(&self, settlements: &Settlements) -> Result<Settled, StoreError> {
        self.write(settlements).await
    }

    async fn probe(&self, after: Position) -> Result<Probe, StoreError> {
        self.look(after).await
    }

    async fn backlog(&self, pipeline: &Pipeline, cap: u64) -> Result<Option<Backlog>, StoreError> {
        let backlog = Arc::clone(self.statements.backlog(pipeline.types()));
        let types = json!(type_list(pipeline.types())).to_string();
        let cap = i64::try_from(cap).unwrap_or(i64::MAX);
        self.database
            .run("count in", move |connection| {
                let backlog = query(&backlog)
                    .bind(types.clone())
                    .bind(cap)
                    .bind(types.clone())
                    .bind(types.clone())
                    .bind(cap)
                    .bind(types.clone())
                    .bind(cap);
                Box::pin(async move { backlog_of(&backlog.fetch_one(connection).await?) })
            })
            .await
            .map(Some)
    }
}

fn backlog_of(row: &MySqlRow) -> Result<Backlog, sqlx::Error> {
    let count = |column| {
        row::int(row, column)
            .map(|count| u64::try_from(count.unwrap_or_default()).unwrap_or_default())
    };
    let mut backlog = Backlog::default();
    backlog.pending = count(0)?;
    backlog.oldest = row::int(row, 1)?
        .map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or_default()));
    backlog.blocked = count(2)?;
    backlog.dead = count(3)?;
    backlog.table_bytes = vec![
        ("live", count(4)?),
        ("dead", count(5)?),
        ("archive", count(6)?),
        ("inbox", count(7)?),
    ];
    Ok(backlog)
}

/// The types that a filter names.
fn type_list(filter: &TypeFilter) -> Vec<String> {
    match filter {
        TypeFilter::All => Vec::new(),
        TypeFilter::Only(types) | TypeFilter::Except(types) => types.iter().cloned().collect(),
    }
}

/// A filter as it stands in a worker's row.
fn filter_columns(filter: &TypeFilter) -> (&'static str, String) {
    let rule = match filter {
        TypeFilter::All => "all",
        TypeFilter::Only(_) => "only",
        TypeFilter::Except(_) => "except",
    };
    (rule, json!(type_list(filter)).to_string())
}

/// What cannot be read counts as all types, so that it overlaps.
fn filter_of(rule: &str, types: &str) -> TypeFilter {
    let types: Option<BTreeSet<String>> = serde_json::from_str(types).ok();
    match (rule, types) {
        ("only", Some(types)) => TypeFilter::Only(types),
        ("except", Some(types)) => TypeFilter::Except(types),
        _ => TypeFilter::All,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_filter_is_read_as_it_was_written() {
        let types = BTreeSet::from(["order".to_owned(), "a b\"".to_owned()]);
        for filter in [TypeFilter::All, TypeFilter::Only(types.clone()), TypeFilter::Except(types)]
        {
            let (rule, types) = filter_columns(&filter);
            assert_eq!(filter_of(rule, &types), filter);
        }
        assert_eq!(filter_of("only", "nonsense"), TypeFilter::All);
    }
}
