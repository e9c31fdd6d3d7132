//! A database of its own for each test.

use std::time::Duration;

use outbox_core::{
    ClaimRequest, Claimed, Delivered, Epoch, Event, LaneCursor, LaneId, NewEvent, Pipeline,
    Position, Settlements, Store as _, Worker,
};
use outbox_postgres::{PostgresConfig, PostgresOutbox, PostgresStore, Schema};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool};
use uuid::Uuid;

pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// The URL in this variable; a test without its server fails.
pub(crate) fn url(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!(
            "{variable} is not set: run the tests with `cargo xtask test`, which starts the servers"
        )
    })
}

/// An outbox in a database of its own, on PostgreSQL 15.
pub(crate) struct Outbox {
    pub(crate) config: PostgresConfig,
    pub(crate) pool: PgPool,
    pub(crate) url: String,
}

impl Outbox {
    /// With the default settings.
    pub(crate) async fn new() -> Self {
        Self::with(|config| config).await
    }

    /// With these settings, its tables created.
    pub(crate) async fn with(settings: impl FnOnce(PostgresConfig) -> PostgresConfig) -> Self {
        let outbox = Self::bare("OUTBOX_TEST_POSTGRES_URL", settings).await;
        outbox.schema().migrate().await.unwrap();
        outbox
    }

    /// On the server of this variable, without tables.
    pub(crate) async fn bare(
        variable: &str,
        settings: impl FnOnce(PostgresConfig) -> PostgresConfig,
    ) -> Self {
        Self::on(&url(variable), settings).await
    }

    /// On this server, without tables.
    pub(crate) async fn on(
        server: &str,
        settings: impl FnOnce(PostgresConfig) -> PostgresConfig,
    ) -> Self {
        let url = new_database(server).await;
        let pool = PgPoolOptions::new().max_connections(20).connect_lazy(&url).unwrap();
        let config = settings(PostgresConfig::from_url(&url).unwrap());
        Self { config, pool, url }
    }

    /// The same database with other settings.
    pub(crate) fn reconfigured(
        &self,
        settings: impl FnOnce(PostgresConfig) -> PostgresConfig,
    ) -> Self {
        Self {
            config: settings(self.config.clone()),
            pool: self.pool.clone(),
            url: self.url.clone(),
        }
    }

    pub(crate) fn schema(&self) -> Schema {
        Schema::new(&self.config).unwrap()
    }

    pub(crate) fn store(&self) -> PostgresStore {
        PostgresStore::new(&self.config).unwrap()
    }

    pub(crate) fn writer(&self) -> PostgresOutbox {
        PostgresOutbox::new(&self.config).unwrap()
    }

    /// Appends in a transaction of its own.
    pub(crate) async fn append(&self, events: &[NewEvent]) {
        let mut tx = self.pool.begin().await.unwrap();
        self.writer().append(&mut tx, events).await.unwrap();
        tx.commit().await.unwrap();
    }

    /// A session of its own, in which a transaction can stay open.
    pub(crate) async fn session(&self) -> PgConnection {
        PgConnection::connect(&self.url).await.unwrap()
    }

    pub(crate) async fn execute(&self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&self.pool).await.unwrap();
    }

    /// Returns once a session of this database waits for a lock.
    pub(crate) async fn wait_for_lock_waiter(&self) {
        let waiting = "select count(*) from pg_stat_activity
                        where datname = current_database() and wait_event_type = 'Lock'";
        for _ in 0..1000 {
            if self.number(waiting).await > 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("nobody waits for a lock");
    }

    pub(crate) async fn count(&self, table: &str) -> i64 {
        self.number(&format!("select count(*) from {table}")).await
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&self.pool).await.unwrap()
    }

    pub(crate) async fn text(&self, sql: &str) -> String {
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&self.pool).await.unwrap()
    }
}

/// Makes a database with a random name and returns its URL.
async fn new_database(server: &str) -> String {
    let name = format!("outbox_test_{}", Uuid::new_v4().simple());
    let mut connection = PgConnection::connect(server).await.unwrap();
    let create = format!("create database {name} template template0");
    sqlx::raw_sql(AssertSqlSafe(create)).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    let (base, _) = server.rsplit_once('/').unwrap();
    format!("{base}/{name}")
}

pub(crate) fn pipeline() -> Pipeline {
    Pipeline::new("main").unwrap()
}

pub(crate) fn worker(name: &str) -> Worker {
    Worker::new(pipeline(), name)
}

/// A worker that has joined and owns every lane, with the epoch of lane 0.
pub(crate) async fn sole_owner(store: &PostgresStore) -> (Worker, Epoch) {
    let worker = worker("sole");
    let lanes = store.join(&worker).await.unwrap();
    store.heartbeat(&worker, LEASE).await.unwrap();
    store.acquire(&worker, lanes).await.unwrap();
    let leases = store.heartbeat(&worker, LEASE).await.unwrap();
    assert_eq!(leases.lanes.len(), usize::from(lanes));
    (worker, leases.lanes[0].epoch)
}

pub(crate) fn event(aggregate: &str, payload: &str) -> NewEvent {
    NewEvent::builder("order", aggregate, "Created").payload(payload.to_owned()).build().unwrap()
}

/// From the beginning of all lanes.
pub(crate) fn everything(lanes: u16) -> ClaimRequest {
    from(lanes, 0, Position::MAX)
}

pub(crate) fn from(lanes: u16, from: Position, read: Position) -> ClaimRequest {
    let cursors = (0..lanes).map(|lane| LaneCursor::new(lane, from, read, 10_000));
    ClaimRequest::new(pipeline(), cursors.collect(), 10_000, 64 << 20)
}

/// In the order of positions.
pub(crate) fn sorted(claimed: &Claimed) -> Vec<Event> {
    let mut events = claimed.events.clone();
    events.sort_by_key(Event::position);
    events
}

pub(crate) fn delivered(worker: &Worker, epoch: Epoch, events: &[Event]) -> Settlements {
    let mut settlements = settlements(worker, epoch, events);
    settlements.delivered =
        events.iter().map(|event| Delivered::new(event.receipt(), "topic")).collect();
    settlements
}

/// No verdict yet, over the lanes of these events.
pub(crate) fn settlements(worker: &Worker, epoch: Epoch, events: &[Event]) -> Settlements {
    let mut lanes: Vec<LaneId> = events.iter().map(Event::lane).collect();
    lanes.sort_unstable();
    lanes.dedup();
    let mut settlements = Settlements::new(worker.clone());
    settlements.lanes = lanes.into_iter().map(|lane| (lane, epoch)).collect();
    settlements
}

/// Runs statements of a session.
pub(crate) async fn run(session: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(session).await.unwrap();
}
