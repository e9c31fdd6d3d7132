//! A database of the bench's own, with a loaded outbox table.

use std::str::FromStr as _;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use outbox_postgres::{PostgresConfig, Schema};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};

use crate::events::{COLUMNS, Sample};

/// Events of one piece of the copy.
const PIECE: u64 = 1_000;

/// A database that [`create`](Table::create) made and [`remove`](Table::remove) removes.
#[derive(Debug)]
pub struct Table {
    url: String,
    database: String,
    lanes: u16,
}

impl Table {
    /// A new database with `events` pending events in `lanes` lanes, vacuumed and checkpointed.
    ///
    /// # Errors
    ///
    /// When the server at `url` does not answer or lets us create no database.
    pub async fn create(url: &str, events: u64, lanes: u16) -> Result<Self> {
        let database = format!("outbox_bench_{:016x}", fastrand::u64(..));
        let table = Self { url: url.to_owned(), database, lanes };
        table.admin(format!("create database {}", table.database)).await?;
        Schema::new(&table.config()?)?.migrate().await?;
        table.load(events).await?;
        Ok(table)
    }

    /// The database's name.
    #[must_use]
    pub fn database(&self) -> &str {
        &self.database
    }

    /// Settings of a store on the table.
    ///
    /// # Errors
    ///
    /// When the URL cannot be read.
    pub fn config(&self) -> Result<PostgresConfig> {
        config(&self.url, &self.database, self.lanes)
    }

    /// A session in the database.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub async fn connect(&self) -> Result<PgConnection> {
        connect(&self.url, &self.database).await
    }

    async fn load(&self, events: u64) -> Result<()> {
        let mut connection = self.connect().await?;
        let mut copy =
            connection.copy_in_raw(&format!("copy outbox ({COLUMNS}) from stdin")).await?;
        let mut text = String::new();
        for first in (0..events).step_by(usize::try_from(PIECE)?) {
            text.clear();
            for n in first..events.min(first + PIECE) {
                Sample::new(n).copy_into(&mut text);
            }
            copy.send(text.as_bytes()).await?;
        }
        let loaded = copy.finish().await?;
        ensure!(loaded == events, "{loaded} rows of {events} were loaded");
        for statement in ["vacuum analyze outbox", "checkpoint"] {
            sqlx::query(statement).execute(&mut connection).await?;
        }
        connection.close().await?;
        Ok(())
    }

    /// Rows that are still in the table.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub async fn pending(&self) -> Result<u64> {
        let mut connection = self.connect().await?;
        let row = sqlx::query("select count(*) from outbox").fetch_one(&mut connection).await?;
        Ok(u64::try_from(row.try_get::<i64, _>(0)?)?)
    }

    /// Transactions that have ended in the database: each statement of a relay is one. Waits until every session has ended,
    /// since a session reports its own then.
    ///
    /// # Errors
    ///
    /// When the server does not answer, or a session stays.
    pub async fn transactions(&self) -> Result<u64> {
        let mut admin = PgConnection::connect_with(&PgConnectOptions::from_str(&self.url)?).await?;
        for _ in 0..1_000 {
            let row = sqlx::query(
                "select (select count(*) from pg_stat_activity where datname = $1) as sessions,
                        xact_commit + xact_rollback as transactions from pg_stat_database where datname = $1",
            )
            .bind(&self.database)
            .fetch_one(&mut admin)
            .await?;
            if row.try_get::<i64, _>("sessions")? == 0 {
                return Ok(u64::try_from(row.try_get::<i64, _>("transactions")?)?);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        anyhow::bail!("a session in {} does not end", self.database)
    }

    /// Removes the database.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub async fn remove(self) -> Result<()> {
        self.admin(format!("drop database {} with (force)", self.database)).await
    }

    async fn admin(&self, sql: String) -> Result<()> {
        let mut connection =
            PgConnection::connect_with(&PgConnectOptions::from_str(&self.url)?).await.context(
                "cannot reach PostgreSQL: see --postgres-url, or run `cargo xtask services start`",
            )?;
        sqlx::query(AssertSqlSafe(sql)).execute(&mut connection).await?;
        connection.close().await?;
        Ok(())
    }
}

/// Settings of a store in this database.
///
/// # Errors
///
/// When the URL cannot be read, or the number of lanes is not allowed.
pub fn config(url: &str, database: &str, lanes: u16) -> Result<PostgresConfig> {
    let options = PgConnectOptions::from_str(url)?.database(database);
    Ok(PostgresConfig::new(options).with_lanes(lanes))
}

/// A session in this database.
///
/// # Errors
///
/// When the server does not answer.
pub async fn connect(url: &str, database: &str) -> Result<PgConnection> {
    let options = PgConnectOptions::from_str(url)?.database(database);
    PgConnection::connect_with(&options).await.context("cannot reach PostgreSQL")
}
