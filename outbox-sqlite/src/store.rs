//! The outbox table as the relay sees it.

mod claim;
mod settle;

use std::collections::BTreeSet;
use std::time::Duration;

use outbox_core::{
    Backlog, Capabilities, ClaimRequest, Claimed, Epoch, LaneId, Leases, OwnedLane, Pipeline,
    Position, Probe, Settled, Settlements, Store, StoreError, StoreErrorKind, TypeFilter,
    Watermark, Worker, async_trait,
};
use serde_json::json;
use sqlx::sqlite::SqlitePoolOptions;
use sqlx::{Row, Sqlite, SqlitePool, Transaction};

use crate::config::{Keep, SqliteConfig};
use crate::error::failed;
use crate::schema::Schema;
use crate::sql::{BEGIN, Sql};
use crate::writer::micros;

/// The lease that `join` gives, so that two pipelines that start at once see each other's types; the first heartbeat
/// follows well within it.
const JOIN_LEASE: Duration = Duration::from_secs(10);

/// Connections that read: a claim, and beside it a probe or the figures.
const READERS: u32 = 2;

/// An outbox table in a SQLite file, with leases, so that several relays may share it.
///
/// One connection writes and two read. A dropped future rolls its transaction back. [`Store::backlog`] tells no sizes
/// of tables: SQLite would have to read them whole.
#[derive(Debug)]
pub struct SqliteStore {
    writer: SqlitePool,
    reader: SqlitePool,
    schema: Schema,
    sql: Sql,
    keep: Keep,
    lanes: u16,
    place: String,
}

impl SqliteStore {
    /// The store over the outbox that `config` names. The file is opened at the first use; [`Store::join`] checks it.
    /// Call it within a Tokio runtime.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when a setting is out of range.
    pub fn new(config: &SqliteConfig) -> Result<Self, StoreError> {
        let pool = |connections| {
            SqlitePoolOptions::new()
                .max_connections(connections)
                .acquire_timeout(config.busy_timeout * 2)
                .test_before_acquire(false)
                .connect_lazy_with(config.connect_options())
        };
        Ok(Self {
            sql: Sql::new(config)?,
            schema: Schema::new(config)?,
            writer: pool(1),
            reader: pool(READERS),
            keep: config.keep,
            lanes: config.lanes,
            place: config.place(),
        })
    }

    async fn write(&self) -> Result<Transaction<'static, Sqlite>, StoreError> {
        self.writer.begin_with(BEGIN).await.map_err(self.failed("lock"))
    }

    async fn commit(&self, transaction: Transaction<'static, Sqlite>) -> Result<(), StoreError> {
        transaction.commit().await.map_err(self.failed("commit to"))
    }

    /// Refuses to work beside another live pipeline with types of ours.
    async fn refuse_overlap(
        &self,
        transaction: &mut Transaction<'static, Sqlite>,
        pipeline: &Pipeline,
    ) -> Result<(), StoreError> {
        let others = sqlx::query_as::<_, (String, String)>(self.sql.overlapping.clone())
            .bind(pipeline.name().to_owned())
            .fetch_all(&mut **transaction)
            .await
            .map_err(self.failed("read the workers of"))?;
        match others.iter().find(|(_, types)| decode_types(types).overlaps(pipeline.types())) {
            None => Ok(()),
            Some((other, _)) => Err(StoreError::overlapping(pipeline.name(), other, &self.place)),
        }
    }

    async fn register(
        &self,
        transaction: &mut Transaction<'static, Sqlite>,
        worker: &Worker,
        lease: Duration,
    ) -> Result<(), StoreError> {
        sqlx::query(self.sql.register.clone())
            .bind(worker.id.to_string())
            .bind(worker.pipeline.name().to_owned())
            .bind(worker.name.clone())
            .bind(encode_types(worker.pipeline.types()))
            .bind(micros(lease))
            .execute(&mut **transaction)
            .await
            .map_err(self.failed("extend a lease in"))?;
        Ok(())
    }

    fn failed(&self, what: &str) -> impl FnOnce(sqlx::Error) -> StoreError {
        failed(format!("{what} {}", self.place))
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
            .with_leases(true)
            .with_watermark(Watermark::CommitOrder)
            .with_scheduled(true)
            .with_savepoints(true)
    }

    async fn join(&self, worker: &Worker) -> Result<u16, StoreError> {
        self.schema.require().await?;
        let mut transaction = self.write().await?;
        self.refuse_overlap(&mut transaction, &worker.pipeline).await?;
        for lane in 0..self.lanes {
            sqlx::query(self.sql.add_lane.clone())
                .bind(worker.pipeline.name().to_owned())
                .bind(lane)
                .execute(&mut *transaction)
                .await
                .map_err(self.failed("add the lanes of a pipeline to"))?;
        }
        self.register(&mut transaction, worker, JOIN_LEASE).await?;
        self.commit(transaction).await?;
        Ok(self.lanes)
    }

    async fn heartbeat(&self, worker: &Worker, lease: Duration) -> Result<Leases, StoreError> {
        let (me, pipeline) = (worker.id.to_string(), worker.pipeline.name().to_owned());
        let mut transaction = self.write().await?;
        let live = sqlx::query(self.sql.is_live.clone())
            .bind(me.clone())
            .fetch_optional(&mut *transaction)
            .await
            .map_err(self.failed("read the workers of"))?;
        if live.is_none() {
            // Run out, buried, or never entered: its types may overlap with somebody's by now.
            self.refuse_overlap(&mut transaction, &worker.pipeline).await?;
        }
        self.register(&mut transaction, worker, lease).await?;
        let owned = sqlx::query_as::<_, (u16, Epoch, u16)>(self.sql.owned.clone())
            .bind(pipeline.clone())
            .bind(me.clone())
            .fetch_all(&mut *transaction)
            .await
            .map_err(self.failed("read the lanes of"))?;
        let roster = sqlx::query_scalar::<_, String>(self.sql.roster.clone())
            .bind(pipeline)
            .fetch_all(&mut *transaction)
            .await
            .map_err(self.failed("read the workers of"))?;
        self.commit(transaction).await?;
        let lanes = owned
            .into_iter()
            .map(|(lane, epoch, crashes)| OwnedLane::new(lane, epoch, crashes))
            .collect();
        let rank = roster.iter().take_while(|worker| **worker < me).count();
        let count = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
        Ok(Leases::new(lanes, count(roster.len()), count(rank)))
    }

    async fn acquire(&self, worker: &Worker, count: u16) -> Result<(), StoreError> {
        let me = worker.id.to_string();
        let mut transaction = self.write().await?;
        let registered = sqlx::query(self.sql.is_registered.clone())
            .bind(me.clone())
            .fetch_optional(&mut *transaction)
            .await
            .map_err(self.failed("read the workers of"))?;
        if registered.is_none() {
            return Err(StoreError::new(
                StoreErrorKind::Stale,
                format!("worker {me} has been buried by others of {}", self.place),
            ));
        }
        for sql in [&self.sql.free_lanes_of_dead, &self.sql.forget_dead] {
            sqlx::query(sql.clone())
                .bind(me.clone())
                .execute(&mut *transaction)
                .await
                .map_err(self.failed("free the lanes of dead workers of"))?;
        }
        sqlx::query(self.sql.take.clone())
            .bind(worker.pipeline.name().to_owned())
            .bind(me)
            .bind(count)
            .execute(&mut *transaction)
            .await
            .map_err(self.failed("take lanes of"))?;
        self.commit(transaction).await
    }

    async fn release(&self, worker: &Worker, lanes: &[LaneId]) -> Result<(), StoreError> {
        let mut transaction = self.write().await?;
        sqlx::query(self.sql.release.clone())
            .bind(worker.pipeline.name().to_owned())
            .bind(worker.id.to_string())
            .bind(json!(lanes).to_string())
            .execute(&mut *transaction)
            .await
            .map_err(self.failed("release lanes of"))?;
        self.commit(transaction).await
    }

    async fn leave(&self, worker: &Worker) -> Result<(), StoreError> {
        let mut transaction = self.write().await?;
        for sql in [&self.sql.release_all, &self.sql.leave] {
            sqlx::query(sql.clone())
                .bind(worker.id.to_string())
                .execute(&mut *transaction)
                .await
                .map_err(self.failed("leave"))?;
        }
        self.commit(transaction).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, StoreError> {
        self.read(request).await
    }

    async fn settle(&self, settlements: &Settlements) -> Result<Settled, StoreError> {
        self.write_verdicts(settlements).await
    }

    async fn probe(&self, after: Position) -> Result<Probe, StoreError> {
        let top = sqlx::query_scalar::<_, Option<Position>>(self.sql.top.clone())
            .fetch_one(&self.reader)
            .await
            .map_err(self.failed("read the highest position of"))?;
        Ok(Probe::new(top.unwrap_or(after).max(after), Vec::new(), ""))
    }

    async fn backlog(&self, pipeline: &Pipeline, cap: u64) -> Result<Option<Backlog>, StoreError> {
        let row = sqlx::query(self.sql.backlog(pipeline.types()))
            .bind(type_list(pipeline.types()))
            .bind(i64::try_from(cap).unwrap_or(i64::MAX))
            .fetch_one(&self.reader)
            .await
            .map_err(self.failed("count in"))?;
        let count = |index: usize| row.try_get_unchecked::<i64, _>(index).map(i64::unsigned_abs);
        let figures = || {
            let age = row.try_get_unchecked::<Option<i64>, _>(1)?;
            let mut backlog = Backlog::default();
            backlog.pending = count(0)?;
            backlog.oldest = age.map(|age| Duration::from_micros(u64::try_from(age).unwrap_or(0)));
            backlog.blocked = count(2)?;
            backlog.dead = count(3)?;
            Ok(Some(backlog))
        };
        figures().map_err(self.failed("count in"))
    }
}

fn type_list(types: &TypeFilter) -> String {
    match types {
        TypeFilter::All => "[]".to_owned(),
        TypeFilter::Only(types) | TypeFilter::Except(types) => json!(types).to_string(),
    }
}

fn encode_types(types: &TypeFilter) -> String {
    match types {
        TypeFilter::All => "all".to_owned(),
        TypeFilter::Only(_) => format!("only {}", type_list(types)),
        TypeFilter::Except(_) => format!("except {}", type_list(types)),
    }
}

/// What cannot be read counts as all types, so that it overlaps.
fn decode_types(text: &str) -> TypeFilter {
    let list = |json: &str| serde_json::from_str::<BTreeSet<String>>(json).ok();
    match text.split_once(' ') {
        Some(("only", json)) => list(json).map_or(TypeFilter::All, TypeFilter::Only),
        Some(("except", json)) => list(json).map_or(TypeFilter::All, TypeFilter::Except),
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
            assert_eq!(decode_types(&encode_types(&filter)), filter);
        }
        assert_eq!(decode_types("only nonsense"), TypeFilter::All);
    }
}
