//! A database of a test's own on a running PostgreSQL, with an outbox in it.

use std::process::Command;

use outbox::postgres::{PostgresConfig, PostgresOutbox, Schema};
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, query, query_scalar};

use super::job::Tables;

/// A database with a random name; it goes with this value.
#[derive(Debug)]
pub(crate) struct Database {
    pub(crate) url: String,
    pub(crate) pool: PgPool,
    pub(crate) name: String,
    pub(crate) config: PostgresConfig,
    server_url: String,
}

impl Database {
    /// Creates it on this server, with the outbox's tables in their default form.
    pub(crate) async fn create(server_url: &str) -> Self {
        Self::create_with(server_url, |config| config).await
    }

    /// As [`create`](Self::create), with other settings than the defaults.
    pub(crate) async fn create_with(
        server_url: &str,
        set: impl FnOnce(PostgresConfig) -> PostgresConfig,
    ) -> Self {
        let name = format!("outbox_{:016x}", fastrand::u64(..));
        let server = PgPool::connect(server_url).await.unwrap();
        query(AssertSqlSafe(format!("create database {name}"))).execute(&server).await.unwrap();
        server.close().await;
        let (host, _) = server_url.rsplit_once('/').expect("the URL names a database");
        let url = format!("{host}/{name}");
        let pool = PgPoolOptions::new().max_connections(32).connect(&url).await.unwrap();
        let config = set(PostgresConfig::from_url(&url).unwrap());
        Schema::new(&config).unwrap().migrate().await.unwrap();
        Self { url, pool, name, config, server_url: server_url.to_owned() }
    }

    /// A writer for its outbox.
    pub(crate) fn outbox(&self) -> PostgresOutbox {
        PostgresOutbox::new(&self.config).unwrap()
    }
}

impl Tables for Database {
    async fn ids(&self, table: &str) -> Vec<String> {
        let ids = AssertSqlSafe(format!("select id::text from {table}"));
        query_scalar(ids).fetch_all(&self.pool).await.unwrap()
    }

    async fn is_any_pending(&self) -> bool {
        let pending = query_scalar("select exists (select from outbox)");
        pending.fetch_one(&self.pool).await.unwrap()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let _ = Command::new("psql")
            .args(["--no-psqlrc", "--quiet", &self.server_url, "--command"])
            .arg(format!("drop database if exists {} with (force)", self.name))
            .status();
    }
}
