//! A database with accounts and what was booked on them, and an outbox and an inbox beside.

use outbox::async_trait;
use outbox::mysql::{MySqlConfig, MySqlInbox, MySqlOutbox};
use outbox::postgres::{PostgresConfig, PostgresInbox, PostgresOutbox};
use outbox::sqlite::{SqliteConfig, SqliteInbox, SqliteOutbox};
use outbox::{mysql, postgres, sqlite};
use sqlx::{
    AssertSqlSafe, MySql, MySqlPool, PgPool, Postgres, QueryBuilder, Sqlite, SqlitePool,
    Transaction,
};

use crate::support::job::Tables;
use crate::support::relay_process::StoreAt;

pub(crate) const ACCOUNTS: usize = 100;

const TABLES: &str = "
    create table accounts (id varchar(40) primary key, version bigint not null, balance bigint not null);
    create table bookings (event_id varchar(40) not null, amount bigint not null);
    create index by_event on bookings (event_id);";

/// The id of an account.
pub(crate) fn account(number: usize) -> String {
    format!("no {number}")
}

type Tx<L> = Transaction<'static, <L as Ledger>::Db>;

/// A ledger on one of the databases. Clones share their connections.
#[async_trait]
pub(crate) trait Ledger: Tables + Clone + Send + Sync + 'static {
    type Db: sqlx::Database;
    type Outbox: outbox::Writer<Transaction = Tx<Self>>;
    type Inbox: outbox::Inbox<Transaction = Tx<Self>>;

    /// A new database on this server.
    async fn create(server_url: &str) -> Self;

    /// The one at this URL.
    async fn open(url: &str) -> Self;

    /// Where it is.
    fn at(&self) -> StoreAt;

    fn outbox(&self) -> &Self::Outbox;

    fn inbox(&self) -> &Self::Inbox;

    async fn begin(&self) -> anyhow::Result<Tx<Self>>;

    /// Raises the account's counter, which locks it.
    async fn next_version(tx: &mut Tx<Self>, account: &str) -> sqlx::Result<i64>;

    /// Books an amount, as often as it is called.
    async fn book(
        tx: &mut Tx<Self>,
        account: &str,
        amount: i64,
        event_id: &str,
    ) -> sqlx::Result<()>;

    async fn has_booked(&self, event_id: &str) -> sqlx::Result<bool>;

    /// Account and balance of each.
    async fn balances(&self) -> Vec<(String, i64)>;

    /// Event and amount of each, by event.
    async fn bookings(&self) -> Vec<(String, i64)>;
}

/// A macro, since the adapters' functions have the same names and no trait in common, and a generic query needs a page of bounds.
macro_rules! ledger {
    ($(#[$doc:meta])* $name:ident: $at:ident, $db:ident, $pool:ident, [$config:ident, $schema:path, $outbox:ident, $inbox:ident],
     id: $id:literal, $(create: $create:literal)?) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub(crate) struct $name {
            url: String,
            pool: $pool,
            outbox: $outbox,
            inbox: $inbox,
        }

        #[async_trait]
        impl Ledger for $name {
            type Db = $db;
            type Outbox = $outbox;
            type Inbox = $inbox;

            async fn create(server_url: &str) -> Self {
                let (server, _) = server_url.rsplit_once('/').expect("the URL names a database");
                let name = format!("outbox_{:016x}", fastrand::u64(..));
                let url = format!("{server}/{name}");
                $(
                    let create = AssertSqlSafe(format!(concat!($create, " {}"), name));
                    let server = $pool::connect(server_url).await.unwrap();
                    sqlx::query(create).execute(&server).await.unwrap();
                    server.close().await;
                )?
                let config = $config::from_url(&url).unwrap();
                <$schema>::new(&config).unwrap().migrate().await.unwrap();
                let ledger = Self::open(&url).await;
                sqlx::raw_sql(TABLES).execute(&ledger.pool).await.unwrap();
                for number in 0..ACCOUNTS {
                    let mut insert = QueryBuilder::<$db>::new("insert into accounts values (");
                    insert.push_bind(account(number)).push(", 0, 0)");
                    insert.build().execute(&ledger.pool).await.unwrap();
                }
                ledger
            }

            async fn open(url: &str) -> Self {
                let config = $config::from_url(url).unwrap();
                let outbox = $outbox::new(&config).unwrap();
                let inbox = $inbox::new(&config).unwrap();
                let pool = $pool::connect(url).await.unwrap();
                Self { url: url.to_owned(), pool, outbox, inbox }
            }

            fn at(&self) -> StoreAt {
                StoreAt::$at(self.url.clone())
            }

            fn outbox(&self) -> &$outbox {
                &self.outbox
            }

            fn inbox(&self) -> &$inbox {
                &self.inbox
            }

            async fn begin(&self) -> anyhow::Result<Tx<Self>> {
                Ok(self.outbox.begin(&self.pool).await?)
            }

            async fn next_version(tx: &mut Tx<Self>, account: &str) -> sqlx::Result<i64> {
                let mut raise =
                    QueryBuilder::<$db>::new("update accounts set version = version + 1 where id = ");
                raise.push_bind(account).build().execute(&mut **tx).await?;
                let mut read =
                    QueryBuilder::<$db>::new("select version from accounts where id = ");
                read.push_bind(account).build_query_scalar().fetch_one(&mut **tx).await
            }

            async fn book(
                tx: &mut Tx<Self>,
                account: &str,
                amount: i64,
                event_id: &str,
            ) -> sqlx::Result<()> {
                let mut add =
                    QueryBuilder::<$db>::new("update accounts set balance = balance + ");
                add.push_bind(amount).push(" where id = ").push_bind(account);
                add.build().execute(&mut **tx).await?;
                let mut note = QueryBuilder::<$db>::new("insert into bookings values (");
                note.push_bind(event_id).push(", ").push_bind(amount).push(")");
                note.build().execute(&mut **tx).await?;
                Ok(())
            }

            async fn has_booked(&self, event_id: &str) -> sqlx::Result<bool> {
                let mut count =
                    QueryBuilder::<$db>::new("select count(*) from bookings where event_id = ");
                let count = count.push_bind(event_id).build_query_scalar::<i64>();
                Ok(count.fetch_one(&self.pool).await? > 0)
            }

            async fn balances(&self) -> Vec<(String, i64)> {
                let balances = sqlx::query_as("select id, balance from accounts order by id");
                balances.fetch_all(&self.pool).await.unwrap()
            }

            async fn bookings(&self) -> Vec<(String, i64)> {
                let bookings =
                    sqlx::query_as("select event_id, amount from bookings order by event_id");
                bookings.fetch_all(&self.pool).await.unwrap()
            }
        }

        impl Tables for $name {
            async fn ids(&self, table: &str) -> Vec<String> {
                let ids = AssertSqlSafe(format!("select {} from {table}", $id));
                sqlx::query_scalar(ids).fetch_all(&self.pool).await.unwrap()
            }

            async fn is_any_pending(&self) -> bool {
                let one = sqlx::query_scalar::<_, String>(concat!("select ", $id, " from outbox limit 1"));
                one.fetch_optional(&self.pool).await.unwrap().is_some()
            }
        }
    };
}

ledger! {
    PostgresLedger: Postgres, Postgres, PgPool,
    [PostgresConfig, postgres::Schema, PostgresOutbox, PostgresInbox],
    id: "id::text", create: "create database"
}
ledger! {
    /// On MySQL or MariaDB.
    MySqlLedger: MySql, MySql, MySqlPool,
    [MySqlConfig, mysql::Schema, MySqlOutbox, MySqlInbox],
    id: "id", create: "create database"
}
ledger! {
    SqliteLedger: Sqlite, Sqlite, SqlitePool,
    [SqliteConfig, sqlite::Schema, SqliteOutbox, SqliteInbox],
    id: "id",
}
