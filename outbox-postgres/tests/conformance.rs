//! The contracts of store, writer and inbox: on PostgreSQL 15, on PostgreSQL 18, and behind pgbouncer in transaction mode,
//! each with a json and a bytea payload; once with jsonb.
#![allow(clippy::unwrap_used, reason = "also in the harness")]

use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use outbox_conformance::{
    AdministrationHarness, DeadLetter, InboxHarness, InboxTransaction, PayloadKind, StoreHarness,
    WriterTransaction,
};
use outbox_core::{Arrival, EventId, NewEvent, Position, Purged, Store, StoreError, async_trait};
use outbox_postgres::{
    Administration, DeadLetterFilter, Keep, Page, PayloadType, PostgresAdministration,
    PostgresConfig, PostgresInbox, PostgresOutbox, PostgresStore, Schema,
};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool, Postgres, Transaction};
use tokio::sync::OnceCell;
use uuid::Uuid;

macro_rules! conformance {
    ($module:ident, $server:literal, $pooled:literal, $payload:expr) => {
        mod $module {
            use super::*;

            async fn harness() -> Harness {
                Harness::new($server, $pooled, $payload).await
            }

            outbox_conformance::store_conformance!(harness);
        }
    };
}

conformance!(postgres_15_json, "OUTBOX_TEST_POSTGRES_URL", false, PayloadType::Json);
conformance!(postgres_15_bytea, "OUTBOX_TEST_POSTGRES_URL", false, PayloadType::Bytea);
conformance!(postgres_18_json, "OUTBOX_TEST_POSTGRES_NEW_URL", false, PayloadType::Json);
conformance!(postgres_18_bytea, "OUTBOX_TEST_POSTGRES_NEW_URL", false, PayloadType::Bytea);
conformance!(postgres_18_jsonb, "OUTBOX_TEST_POSTGRES_NEW_URL", false, PayloadType::Jsonb);
conformance!(pgbouncer_json, "OUTBOX_TEST_PGBOUNCER_URL", true, PayloadType::Json);
conformance!(pgbouncer_bytea, "OUTBOX_TEST_PGBOUNCER_URL", true, PayloadType::Bytea);

macro_rules! administration_conformance {
    ($module:ident, $server:literal) => {
        mod $module {
            use super::*;

            async fn harness() -> Harness {
                Harness::keeping($server, false, PayloadType::Json, Keep::Archive).await
            }

            outbox_conformance::administration_conformance!(harness);
        }
    };
}

administration_conformance!(postgres_15_administration, "OUTBOX_TEST_POSTGRES_URL");
administration_conformance!(postgres_18_administration, "OUTBOX_TEST_POSTGRES_NEW_URL");

mod inbox {
    use super::*;

    async fn harness() -> Harness {
        Harness::new("OUTBOX_TEST_POSTGRES_NEW_URL", false, PayloadType::Json).await
    }

    outbox_conformance::inbox_conformance!(harness);
}

/// A schema of its own in a database that all tests of one server share, because making a database takes longer than most
/// tests. Behind the pooler each test has a database: sessions are shared there, and one rule breaks them.
struct Harness {
    config: PostgresConfig,
    payload: PayloadType,
    store: Arc<PostgresStore>,
    admin: Arc<PostgresAdministration>,
    /// The application's own connections.
    pool: PgPool,
    /// The schema, and the application name of the store under test.
    name: String,
}

impl Harness {
    async fn new(server: &str, pooled: bool, payload: PayloadType) -> Self {
        Self::keeping(server, pooled, payload, Keep::Delete).await
    }

    async fn keeping(server: &str, pooled: bool, payload: PayloadType, keep: Keep) -> Self {
        let url = if pooled { new_database(server).await } else { database(server).await };
        let name = format!("kit_{}", Uuid::new_v4().simple());
        let options = PgConnectOptions::from_str(&url).unwrap();
        let cache = if pooled { 0 } else { 100 };
        // Behind the pooler a session keeps the name of the client before, unless the next one has a name too.
        let application = options.clone().application_name("kit").statement_cache_capacity(cache);
        let pool = PgPoolOptions::new().connect_lazy_with(application);
        let config = PostgresConfig::new(options.application_name(&name))
            .with_schema(&name)
            .with_payload(payload)
            .with_keep(keep)
            .with_sequence(true)
            .with_pooled(pooled)
            .with_pool_size(3);
        Schema::new(&config).unwrap().migrate().await.unwrap();
        Self {
            store: Arc::new(PostgresStore::new(&config).unwrap()),
            admin: Arc::new(PostgresAdministration::new(&config).unwrap()),
            config,
            payload,
            pool,
            name,
        }
    }

    async fn transaction(&self, sequence: bool) -> HarnessTransaction {
        let writer = self.config.clone().with_sequence(sequence);
        HarnessTransaction {
            transaction: self.pool.begin().await.unwrap(),
            outbox: PostgresOutbox::new(&writer).unwrap(),
            inbox: PostgresInbox::new(&self.config).unwrap(),
        }
    }

    async fn execute(&self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&self.pool).await.unwrap();
    }
}

/// The shared database on this server, new for each run.
async fn database(server: &str) -> String {
    static SERVERS: [OnceCell<String>; 2] = [const { OnceCell::const_new() }; 2];
    let cell = &SERVERS[usize::from(server == "OUTBOX_TEST_POSTGRES_URL")];
    cell.get_or_init(|| new_database(server)).await.clone()
}

async fn new_database(server: &str) -> String {
    let url = std::env::var(server).unwrap_or_else(|_| {
        panic!(
            "{server} is not set: run the tests with `cargo xtask test`, which starts the servers"
        )
    });
    let name = format!("outbox_kit_{}", Uuid::new_v4().simple());
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let create = format!("create database {name} template template0");
    sqlx::raw_sql(AssertSqlSafe(create)).execute(&mut connection).await.unwrap();
    let (base, _) = url.rsplit_once('/').unwrap();
    format!("{base}/{name}")
}

#[async_trait]
impl StoreHarness for Harness {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    async fn second_store(&self) -> Arc<dyn Store> {
        Arc::new(PostgresStore::new(&self.config).unwrap())
    }

    async fn begin(&self) -> Box<dyn WriterTransaction> {
        Box::new(self.transaction(false).await)
    }

    async fn begin_numbered(&self) -> Option<Box<dyn WriterTransaction>> {
        Some(Box::new(self.transaction(true).await))
    }

    async fn dead(&self) -> Vec<DeadLetter> {
        let (all, page) = (DeadLetterFilter::default(), Page::default().with_limit(10_000));
        let letters = self.admin.dead_letters(&all, page).await.unwrap().into_iter();
        letters.map(DeadLetter::from).collect()
    }

    async fn requeue(&self, id: &EventId) -> Option<bool> {
        let filter = DeadLetterFilter::default().with_id(id.clone());
        if self.admin.requeue_all(&filter, Page::default()).await.unwrap() > 0 {
            return Some(true);
        }
        let blocked = self.admin.blocked_heads(Page::default()).await.unwrap();
        match blocked.iter().find(|head| head.id == *id) {
            Some(head) => Some(self.admin.unblock(head.position).await.unwrap()),
            None => Some(false),
        }
    }

    async fn insert_bad_row(&self) -> Option<()> {
        let insert = format!(
            "insert into {}.outbox (aggregatetype, aggregateid, type, created_at)
             values ('order', 'bad', 'Changed', 'infinity')",
            self.name
        );
        self.execute(&insert).await;
        Some(())
    }

    async fn insert_at(&self, position: Position) -> Option<()> {
        let insert = format!(
            "insert into {}.outbox (position, aggregatetype, type) overriding system value
             values ({position}, 'order', 'Created')",
            self.name
        );
        self.execute(&insert).await;
        Some(())
    }

    async fn refuse_dead_letters(&self, aggregate_id: &str) -> Option<()> {
        let schema = &self.name;
        self.execute(&format!(
            "create function {schema}.refuse() returns trigger language plpgsql as
               $$ begin raise 'no' using errcode = 'KIT01'; end $$;
             create trigger refuse before insert on {schema}.outbox_dead for each row
               when (new.aggregateid = '{aggregate_id}') execute function {schema}.refuse()"
        ))
        .await;
        Some(())
    }

    async fn open_transactions(&self) -> Option<u64> {
        let open = format!(
            "select count(*) from pg_stat_activity
              where application_name = '{}' and (xact_start is not null or state like 'idle in%')",
            self.name
        );
        let open: i64 = sqlx::query_scalar(AssertSqlSafe(open))
            .persistent(false)
            .fetch_one(&mut *self.pool.begin().await.unwrap())
            .await
            .unwrap();
        Some(open.cast_unsigned())
    }

    async fn break_connections(&self) -> Option<()> {
        let end = format!(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = '{}'",
            self.name
        );
        self.execute(&end).await;
        Some(())
    }

    fn payload_kind(&self) -> PayloadKind {
        match self.payload {
            PayloadType::Json => PayloadKind::Json,
            PayloadType::Jsonb => PayloadKind::JsonValue,
            _ => PayloadKind::Bytes,
        }
    }
}

impl AdministrationHarness for Harness {
    fn administration(&self) -> Arc<dyn Administration> {
        self.admin.clone()
    }

    fn archives(&self) -> bool {
        self.config.keep == Keep::Archive
    }
}

#[async_trait]
impl InboxHarness for Harness {
    async fn begin(&self) -> Box<dyn InboxTransaction> {
        Box::new(self.transaction(false).await)
    }

    async fn purge(&self, older_than: Duration) -> Option<Result<Purged, StoreError>> {
        let inbox = PostgresInbox::new(&self.config).unwrap();
        Some(inbox.purge(&self.pool, older_than).await)
    }

    async fn age(&self, by: Duration) {
        let (schema, seconds) = (&self.name, by.as_secs());
        self.execute(&format!(
            "update {schema}.outbox_inbox set seen_at = seen_at - interval '{seconds} s'"
        ))
        .await;
    }
}

struct HarnessTransaction {
    transaction: Transaction<'static, Postgres>,
    outbox: PostgresOutbox,
    inbox: PostgresInbox,
}

#[async_trait]
impl WriterTransaction for HarnessTransaction {
    async fn append(&mut self, events: &[NewEvent]) -> Result<(), StoreError> {
        self.outbox.append(&mut self.transaction, events).await
    }

    async fn savepoint(&mut self) {
        sqlx::raw_sql("savepoint kit").execute(&mut *self.transaction).await.unwrap();
    }

    async fn rollback_to_savepoint(&mut self) {
        sqlx::raw_sql("rollback to kit").execute(&mut *self.transaction).await.unwrap();
    }

    async fn commit(self: Box<Self>) {
        self.transaction.commit().await.unwrap();
    }

    async fn rollback(self: Box<Self>) {
        self.transaction.rollback().await.unwrap();
    }
}

#[async_trait]
impl InboxTransaction for HarnessTransaction {
    async fn first_seen(&mut self, consumer: &str, event_id: &str) -> Result<bool, StoreError> {
        self.inbox.first_seen(&mut self.transaction, consumer, event_id).await
    }

    async fn first_seen_from(
        &mut self,
        source: &str,
        consumer: &str,
        event_id: &str,
    ) -> Option<Result<bool, StoreError>> {
        let inbox = self.inbox.clone().with_source(source).unwrap();
        Some(inbox.first_seen(&mut self.transaction, consumer, event_id).await)
    }

    async fn arrival(
        &mut self,
        consumer: &str,
        key: &str,
        sequence: Option<u64>,
    ) -> Option<Result<Arrival, StoreError>> {
        Some(self.inbox.arrival(&mut self.transaction, consumer, key, sequence).await)
    }

    async fn accept(&mut self, consumer: &str, key: &str, sequence: u64) -> Result<(), StoreError> {
        self.inbox.accept(&mut self.transaction, consumer, key, sequence).await
    }

    async fn commit(self: Box<Self>) {
        self.transaction.commit().await.unwrap();
    }

    async fn rollback(self: Box<Self>) {
        self.transaction.rollback().await.unwrap();
    }
}
