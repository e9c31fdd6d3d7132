//! The contracts of store, writer and inbox, on both journals.

#![allow(clippy::unwrap_used, reason = "also in the harness")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Fixture, fixture_with, rollback_journal};
use outbox_conformance::{
    AdministrationHarness, DeadLetter, InboxHarness, InboxTransaction, StoreHarness,
    WriterTransaction,
};
use outbox_core::{Arrival, EventId, NewEvent, Position, Purged, Store, StoreError, async_trait};
use outbox_sqlite::{
    Administration, DeadLetterFilter, Keep, Page, SqliteAdministration, SqliteConfig, SqliteInbox,
    SqliteOutbox, SqliteStore,
};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Sqlite, SqliteConnection, Transaction};

mod wal {
    use super::*;

    async fn harness() -> Harness {
        Harness::new(fixture_with(patient).await)
    }

    outbox_conformance::store_conformance!(harness);

    mod inbox {
        use super::*;

        outbox_conformance::inbox_conformance!(harness);
    }
}

mod rollback {
    use super::*;

    async fn harness() -> Harness {
        Harness::new(fixture_with(|config| rollback_journal(patient(config))).await)
    }

    outbox_conformance::store_conformance!(harness);

    mod inbox {
        use super::*;

        outbox_conformance::inbox_conformance!(harness);
    }
}

mod administration {
    use super::*;

    async fn harness() -> Harness {
        Harness::new(fixture_with(|config| config.with_keep(Keep::Archive)).await)
    }

    outbox_conformance::administration_conformance!(harness);
}

/// With the tables of numbers. SQLite's lock has no queue, and the inbox's rules have sixteen tasks fight for it.
fn patient(config: SqliteConfig) -> SqliteConfig {
    config.with_busy_timeout(Duration::from_secs(60)).with_sequence(true)
}

struct Harness {
    fixture: Fixture,
    store: Arc<SqliteStore>,
    admin: Arc<SqliteAdministration>,
}

impl Harness {
    fn new(fixture: Fixture) -> Self {
        let store = Arc::new(SqliteStore::new(&fixture.config).unwrap());
        let admin = Arc::new(SqliteAdministration::new(&fixture.config).unwrap());
        Self { fixture, store, admin }
    }

    async fn transaction(&self, sequence: bool) -> HarnessTransaction {
        let writer = self.fixture.config.clone().with_sequence(sequence);
        HarnessTransaction {
            transaction: self.fixture.outbox.begin(&self.fixture.pool).await.unwrap(),
            outbox: SqliteOutbox::new(&writer).unwrap(),
            inbox: SqliteInbox::new(&self.fixture.config).unwrap(),
        }
    }
}

#[async_trait]
impl StoreHarness for Harness {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    async fn second_store(&self) -> Arc<dyn Store> {
        Arc::new(SqliteStore::new(&self.fixture.config).unwrap())
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
        self.fixture
            .execute(
                "insert into outbox (aggregatetype, aggregateid, type, payload)
                 values ('order', cast(x'ff' as text), 'Changed', '{}')",
            )
            .await;
        Some(())
    }

    async fn insert_at(&self, position: Position) -> Option<()> {
        let insert =
            "insert into outbox (position, aggregatetype, type) values (?1, 'order', 'Created')";
        sqlx::query(insert).bind(position).execute(&self.fixture.pool).await.unwrap();
        Some(())
    }

    /// With an error that a function finds in the row: what a trigger raises by itself is always the same one.
    async fn refuse_dead_letters(&self, aggregate_id: &str) -> Option<()> {
        let trigger = format!(
            "create trigger refuse before insert on outbox_dead when new.aggregateid = '{aggregate_id}'
             begin select json_extract('{{', '$'); end"
        );
        sqlx::raw_sql(AssertSqlSafe(trigger)).execute(&self.fixture.pool).await.unwrap();
        Some(())
    }

    /// A reader keeps the log from being truncated, or the file from being locked for one; a writer keeps the lock.
    async fn open_transactions(&self) -> Option<u64> {
        let options = self.fixture.config.connect_options().busy_timeout(Duration::ZERO);
        let Ok(mut connection) = options.connect().await else { return Some(1) };
        let is_free = has_no_reader(&mut connection).await
            && connection.begin_with("begin exclusive").await.is_ok();
        Some(u64::from(!is_free))
    }
}

async fn has_no_reader(connection: &mut SqliteConnection) -> bool {
    let checkpoint = sqlx::query_as("pragma wal_checkpoint(truncate)");
    let checkpoint: Result<(i64, i64, i64), _> = checkpoint.fetch_one(connection).await;
    checkpoint.is_ok_and(|(busy, _, _)| busy == 0)
}

impl AdministrationHarness for Harness {
    fn administration(&self) -> Arc<dyn Administration> {
        self.admin.clone()
    }

    fn archives(&self) -> bool {
        self.fixture.config.keep == Keep::Archive
    }
}

#[async_trait]
impl InboxHarness for Harness {
    async fn begin(&self) -> Box<dyn InboxTransaction> {
        Box::new(self.transaction(false).await)
    }

    fn concurrent(&self) -> bool {
        false
    }

    async fn purge(&self, older_than: Duration) -> Option<Result<Purged, StoreError>> {
        let inbox = SqliteInbox::new(&self.fixture.config).unwrap();
        Some(inbox.purge(&self.fixture.pool, older_than).await)
    }

    async fn age(&self, by: Duration) {
        let update = sqlx::query("update outbox_inbox set seen_at = seen_at - ?1");
        let micros = i64::try_from(by.as_micros()).unwrap();
        update.bind(micros).execute(&self.fixture.pool).await.unwrap();
    }
}

struct HarnessTransaction {
    transaction: Transaction<'static, Sqlite>,
    outbox: SqliteOutbox,
    inbox: SqliteInbox,
}

impl HarnessTransaction {
    async fn execute(&mut self, sql: &'static str) {
        sqlx::query(sql).execute(&mut *self.transaction).await.unwrap();
    }
}

#[async_trait]
impl WriterTransaction for HarnessTransaction {
    async fn append(&mut self, events: &[NewEvent]) -> Result<(), StoreError> {
        self.outbox.append(&mut self.transaction, events).await
    }

    async fn savepoint(&mut self) {
        self.execute("savepoint kit").await;
    }

    async fn rollback_to_savepoint(&mut self) {
        self.execute("rollback to kit").await;
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
