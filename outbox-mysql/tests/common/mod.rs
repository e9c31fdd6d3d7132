//! Servers and a harness that all tests of this crate share.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::str::FromStr as _;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use outbox_conformance::{
    AdministrationHarness, DeadLetter, InboxHarness, InboxTransaction, PayloadKind, StoreHarness,
    WriterTransaction,
};
use outbox_core::{Arrival, EventId, NewEvent, Position, Purged, Store, StoreError, async_trait};
use outbox_mysql::{
    Administration, DeadLetterFilter, Keep, MySqlAdministration, MySqlConfig, MySqlInbox,
    MySqlOutbox, MySqlStore, Page, PayloadType, Schema,
};
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, MySql, MySqlConnection, MySqlPool, Transaction};
use uuid::Uuid;
use xtask::services;

pub(crate) const MYSQL: &str = "OUTBOX_TEST_MYSQL_URL";
pub(crate) const MARIADB: &str = "OUTBOX_TEST_MARIADB_URL";

/// The URL of a shared server.
pub(crate) fn shared(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!(
            "{variable} is not set: run the tests with `cargo xtask test`, which starts the servers"
        )
    })
}

/// What an administrator may have set, and what old versions have as default. The packet is a little larger than the
/// largest event of the kit.
const HOSTILE: &[(&str, &str)] = &[
    ("character_set_server", "latin1"),
    ("collation_server", "latin1_swedish_ci"),
    ("sql_mode", ""),
    ("default_time_zone", "+02:00"),
    ("max_allowed_packet", "2M"),
    ("transaction_isolation", "REPEATABLE-READ"),
    ("innodb_autoinc_lock_mode", "2"),
    ("autocommit", "0"),
];

/// A server on which all of that is set. One for all tests of this process.
pub(crate) fn hostile_mysql() -> String {
    static SERVER: OnceLock<services::MySql> = OnceLock::new();
    SERVER.get_or_init(|| services::MySql::start_with(HOSTILE)).url()
}

/// As [`hostile_mysql`], and with a table of locks, which MariaDB keeps only when told to.
pub(crate) fn hostile_mariadb() -> String {
    static SERVER: OnceLock<services::MariaDb> = OnceLock::new();
    let locks = [
        ("performance_schema", "ON"),
        ("performance-schema-instrument", "'wait/lock/metadata/sql/mdl=ON'"),
        ("performance-schema-consumer-events-transactions-current", "ON"),
    ];
    SERVER.get_or_init(|| services::MariaDb::start_with(&[HOSTILE, &locks].concat())).url()
}

/// A database of its own.
pub(crate) struct Harness {
    pub(crate) config: MySqlConfig,
    pub(crate) payload: PayloadType,
    pub(crate) store: Arc<MySqlStore>,
    pub(crate) admin: Arc<MySqlAdministration>,
    /// The application's own connections, with the server's settings.
    pub(crate) pool: MySqlPool,
    /// The database.
    pub(crate) name: String,
    /// The user of the store under test, which nobody else has.
    pub(crate) user: String,
    /// As the store under test connects.
    pub(crate) url: String,
    /// As an administrator connects.
    pub(crate) admin_url: String,
}

impl Harness {
    pub(crate) async fn new(server: &str, payload: PayloadType) -> Self {
        Self::keeping(server, payload, Keep::Delete).await
    }

    pub(crate) async fn keeping(server: &str, payload: PayloadType, keep: Keep) -> Self {
        let name = format!("kit_{}", Uuid::new_v4().simple());
        // User names have 32 characters at most.
        let user = name[..24].to_owned();
        let mut admin = MySqlConnection::connect(server).await.unwrap();
        let create = format!(
            "create database {name}; create user {user}@'127.0.0.1' identified by 'kit';
             grant all on {name}.* to {user}@'127.0.0.1';
             grant select on performance_schema.* to {user}@'127.0.0.1'"
        );
        sqlx::raw_sql(AssertSqlSafe(create)).execute(&mut admin).await.unwrap();
        admin.close().await.unwrap();
        let (base, _) = server.rsplit_once('/').unwrap();
        let (_, address) = base.rsplit_once('@').unwrap();
        let url = format!("mysql://{user}:kit@{address}/{name}");
        let admin_url = format!("{base}/{name}");
        let config = MySqlConfig::from_url(&url)
            .unwrap()
            .with_payload(payload)
            .with_keep(keep)
            .with_pool_size(3);
        // With the tables of numbers, which only some tests fill.
        let numbered = config.clone().with_sequence(true);
        Schema::new(&numbered).unwrap().migrate().await.unwrap();
        let store = Arc::new(MySqlStore::new(&config).unwrap());
        // Only then it knows whether the server tells of writers.
        store.probe(0).await.unwrap();
        // Nothing that sqlx would set: the application's sessions are as the server makes them.
        let application = MySqlConnectOptions::from_str(&admin_url)
            .unwrap()
            .timezone(None)
            .set_names(false)
            .pipes_as_concat(false)
            .no_engine_substitution(false);
        let pool = MySqlPoolOptions::new().connect_lazy_with(application);
        let admin = Arc::new(MySqlAdministration::new(&config).unwrap());
        Self { admin, store, config, payload, pool, name, user, url, admin_url }
    }

    pub(crate) async fn transaction(&self) -> HarnessTransaction {
        self.transaction_of(self.writer()).await
    }

    /// With this writer.
    async fn transaction_of(&self, writer: MySqlOutbox) -> HarnessTransaction {
        HarnessTransaction {
            transaction: self.pool.begin().await.unwrap(),
            outbox: writer,
            inbox: MySqlInbox::new(&self.config).unwrap(),
        }
    }

    pub(crate) fn writer(&self) -> MySqlOutbox {
        MySqlOutbox::new(&self.config).unwrap()
    }

    /// Runs statements as the administrator, each by itself.
    pub(crate) async fn execute(&self, sql: &str) {
        let sql = format!("set autocommit = 1; {sql}");
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&self.pool).await.unwrap();
    }

    /// A number that a statement of the administrator gives.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&self.pool).await.unwrap()
    }
}

#[async_trait]
impl StoreHarness for Harness {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    async fn second_store(&self) -> Arc<dyn Store> {
        Arc::new(MySqlStore::new(&self.config).unwrap())
    }

    async fn begin(&self) -> Box<dyn WriterTransaction> {
        Box::new(self.transaction().await)
    }

    async fn begin_numbered(&self) -> Option<Box<dyn WriterTransaction>> {
        let numbered = self.config.clone().with_sequence(true);
        Some(Box::new(self.transaction_of(MySqlOutbox::new(&numbered).unwrap()).await))
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
        self.execute(
            "set sql_mode = '';
             insert into outbox (aggregatetype, aggregateid, type, created_at)
             values ('order', 'bad', 'Changed', '0000-00-00 00:00:00')",
        )
        .await;
        Some(())
    }

    async fn insert_at(&self, position: Position) -> Option<()> {
        self.execute(&format!(
            "set sql_mode = 'NO_AUTO_VALUE_ON_ZERO';
             insert into outbox (position, aggregatetype, type) values ({position}, 'order', 'Created')"
        ))
        .await;
        Some(())
    }

    async fn refuse_dead_letters(&self, aggregate_id: &str) -> Option<()> {
        self.execute(&format!(
            "create trigger refuse before insert on outbox_dead for each row
             if new.aggregateid = '{aggregate_id}' then signal sqlstate 'KIT01' set mysql_errno = 30001; end if"
        ))
        .await;
        Some(())
    }

    async fn open_transactions(&self) -> Option<u64> {
        let open = format!(
            "select count(*) from information_schema.innodb_trx t
               join information_schema.processlist p on p.id = t.trx_mysql_thread_id
              where p.user = '{}'",
            self.user
        );
        Some(self.number(&open).await.cast_unsigned())
    }

    async fn break_connections(&self) -> Option<()> {
        let sessions = format!(
            "select cast(id as signed) from information_schema.processlist where user = '{}'",
            self.user
        );
        let sessions: Vec<i64> =
            sqlx::query_scalar(AssertSqlSafe(sessions)).fetch_all(&self.pool).await.unwrap();
        for session in sessions {
            // It may have ended by itself.
            let kill = format!("kill {session}");
            let _ = sqlx::raw_sql(AssertSqlSafe(kill)).execute(&self.pool).await;
            // The server only marks it, and goes on with it for a moment.
            let left =
                format!("select count(*) from information_schema.processlist where id = {session}");
            while self.number(&left).await > 0 {}
        }
        Some(())
    }

    fn payload_kind(&self) -> PayloadKind {
        match self.payload {
            PayloadType::LongBlob => PayloadKind::Bytes,
            _ => PayloadKind::Text,
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
        Box::new(self.transaction().await)
    }

    async fn purge(&self, older_than: Duration) -> Option<Result<Purged, StoreError>> {
        Some(MySqlInbox::new(&self.config).unwrap().purge(&self.pool, older_than).await)
    }

    async fn age(&self, by: Duration) {
        let seconds = by.as_secs();
        self.execute(&format!(
            "update outbox_inbox set seen_at = seen_at - interval {seconds} second"
        ))
        .await;
    }
}

pub(crate) struct HarnessTransaction {
    pub(crate) transaction: Transaction<'static, MySql>,
    pub(crate) outbox: MySqlOutbox,
    pub(crate) inbox: MySqlInbox,
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
