//! The outbox table as the relay sees it.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::TryStreamExt;
use outbox_core::{
    Backlog, Capabilities, ClaimRequest, Claimed, Epoch, EventRows, LaneId, Leases, OwnedLane,
    Pipeline, Position, Probe, Receipt, Settled, Settlements, Store, StoreError, StoreErrorKind,
    TypeFilter, Watermark, Worker, async_trait,
};
use serde_json::{Value, json};
use sqlx::sqlite::SqlitePoolOptions;
use sqlx::{Row, SqlStr, Sqlite, SqlitePool, Transaction};

use crate::config::{Keep, SqliteConfig};
use crate::error::failed;
use crate::row::ClaimedRow;
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
            Some((other, types)) => Err(StoreError::misconfigured(format!(
                "pipeline {:?} would relay types that pipeline {other:?} ({types}) relays already from {}: give the \
                 pipelines disjoint types",
                pipeline.name(),
                self.place
            ))),
        }
    }

    /// Executes one statement on a list of `[position, id, lane, …]`; returns the rows it touched.
    async fn execute(
        &self,
        transaction: &mut Transaction<'static, Sqlite>,
        sql: &SqlStr,
        list: &[Value],
    ) -> Result<u64, StoreError> {
        if list.is_empty() {
            return Ok(0);
        }
        let done = sqlx::query(sql.clone())
            .bind(json!(list).to_string())
            .execute(&mut **transaction)
            .await
            .map_err(self.failed("settle in"))?;
        Ok(done.rows_affected())
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
        self.schema.check().await?;
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
            .map(|(lane, epoch, crashes)| OwnedLane { lane, epoch, crashes })
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
        if request.lanes.is_empty() {
            return Ok(Claimed::default());
        }
        let types = request.pipeline.types();
        let lowest = request.lanes.iter().map(|lane| lane.from).min().unwrap_or(0);
        let known_fresh: Vec<Position> =
            request.exclude.iter().copied().filter(|position| *position > lowest).collect();
        let reads: Vec<_> = request.lanes.iter().map(|lane| (lane.lane, lane.read)).collect();
        let mut query = sqlx::query(self.sql.claim(request.lanes.len(), types))
            .bind(type_list(types))
            .bind(json!(request.exclude).to_string())
            .bind(json!(known_fresh).to_string())
            .bind(json!(reads).to_string())
            .bind(request.limit);
        for lane in &request.lanes {
            query = query.bind(lane.lane).bind(lane.from).bind(lane.take);
        }

        let mut found = Found::default();
        let mut stream = query.fetch(&self.reader);
        while let Some(row) = stream.try_next().await.map_err(self.failed("claim from"))? {
            if !found.add(&ClaimedRow::read(&row)?, request) {
                break;
            }
        }
        drop(stream);
        Ok(found.into_claimed(request))
    }

    async fn settle(&self, settlements: &Settlements) -> Result<Settled, StoreError> {
        let mut transaction = self.write().await?;
        let held = sqlx::query_scalar::<_, LaneId>(self.sql.fence.clone())
            .bind(settlements.worker.pipeline.name().to_owned())
            .bind(settlements.worker.id.to_string())
            .bind(json!(settlements.lanes).to_string())
            .fetch_all(&mut *transaction)
            .await
            .map_err(self.failed("read the lanes of"))?;
        let lists = Lists::of(settlements, &held);

        let mut found = 0;
        if self.keep == Keep::Archive {
            self.execute(&mut transaction, &self.sql.archive, &lists.delivered).await?;
        }
        found += self.execute(&mut transaction, &self.sql.delete, &lists.delivered).await?;
        found += self.execute(&mut transaction, &self.sql.wait, &lists.retries).await?;
        self.execute(&mut transaction, &self.sql.bury, &lists.dead).await?;
        found += self.execute(&mut transaction, &self.sql.delete, &lists.dead).await?;
        let recovered: Vec<_> =
            settlements.recovered.iter().filter(|lane| held.contains(lane)).collect();
        if !recovered.is_empty() {
            sqlx::query(self.sql.recover.clone())
                .bind(settlements.worker.pipeline.name().to_owned())
                .bind(json!(recovered).to_string())
                .execute(&mut *transaction)
                .await
                .map_err(self.failed("settle in"))?;
        }
        self.commit(transaction).await?;
        Ok(Settled::new(held, lists.len().saturating_sub(found)))
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

impl SqliteStore {
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
}

/// What a claim has read so far.
#[derive(Default)]
struct Found {
    rows: EventRows,
    fresh: u32,
    bytes: usize,
    /// Whether the byte budget ended it.
    over: bool,
    now_micros: i64,
    server: String,
}

impl Found {
    /// Takes a row in; `false` when it would exceed the byte budget.
    fn add(&mut self, row: &ClaimedRow<'_>, request: &ClaimRequest) -> bool {
        if row.position.is_none() {
            (self.now_micros, self.server) = row.clock_and_identity();
            return true;
        }
        let bytes = self.bytes + row.size();
        if bytes > request.bytes && !self.rows.is_empty() {
            self.over = true;
            return false;
        }
        self.bytes = bytes;
        self.fresh += u32::from(row.is_fresh());
        row.push_to(&mut self.rows);
        true
    }

    fn into_claimed(self, request: &ClaimRequest) -> Claimed {
        let events = self.rows.finish();
        let cut = self.over || self.fresh >= request.limit;
        let reads = Claimed::reads_of(request, &events, cut);
        let mut claimed = Claimed::new(events, reads);
        claimed.now_micros = self.now_micros;
        claimed.server = self.server;
        claimed
    }
}

/// The events of a settlement whose lanes are held, as JSON arrays for the statements.
struct Lists {
    delivered: Vec<Value>,
    retries: Vec<Value>,
    dead: Vec<Value>,
}

impl Lists {
    fn of(settlements: &Settlements, held: &[LaneId]) -> Self {
        let is_held = |receipt: &Receipt| held.binary_search(&receipt.lane).is_ok();
        let delivered = settlements.delivered.iter().filter(|event| is_held(&event.receipt));
        let retries = settlements.retries.iter().filter(|event| is_held(&event.receipt));
        let dead = settlements.dead.iter().filter(|event| is_held(&event.receipt));
        Self {
            delivered: delivered
                .map(|event| named(&event.receipt, [json!(*event.destination)]))
                .collect(),
            retries: retries
                .map(|event| {
                    let delay = json!(event.delay.map(micros));
                    named(&event.receipt, [json!(event.attempts), delay, json!(event.reason)])
                })
                .collect(),
            dead: dead
                .map(|event| named(&event.receipt, [json!(event.attempts), json!(event.reason)]))
                .collect(),
        }
    }

    fn len(&self) -> u64 {
        (self.delivered.len() + self.retries.len() + self.dead.len()) as u64
    }
}

fn named<const N: usize>(receipt: &Receipt, rest: [Value; N]) -> Value {
    let mut list =
        vec![json!(receipt.position), json!(receipt.id.to_string()), json!(receipt.lane)];
    list.extend(rest);
    Value::Array(list)
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
