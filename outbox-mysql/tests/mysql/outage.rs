//! The relay on a server that stands still, and on one that dies, while applications write. H033, H068, B211

use std::error::Error;
use std::sync::Arc;

use outbox_core::{NewEvent, Store};
use outbox_mysql::PayloadType;
use xtask::services;

use crate::common::Harness;
use crate::job::{self, Application};

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_mysql_costs_time_only() {
    let server = services::MySql::start();
    let application = application(&server.url()).await;
    job::a_frozen_server_costs_time_only(server, application).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_mariadb_costs_time_only() {
    let server = services::MariaDb::start();
    let application = application(&server.url()).await;
    job::a_frozen_server_costs_time_only(server, application).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_mysql_costs_duplicates_of_its_last_moments_only() {
    let server = services::MySql::start();
    let application = application(&server.url()).await;
    job::a_killed_server_costs_duplicates_of_its_last_moments_only(server, application).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_mariadb_costs_duplicates_of_its_last_moments_only() {
    let server = services::MariaDb::start();
    let application = application(&server.url()).await;
    job::a_killed_server_costs_duplicates_of_its_last_moments_only(server, application).await;
}

async fn application(url: &str) -> Harness {
    let outbox = Harness::new(url, PayloadType::LongText).await;
    outbox.execute(&job::tables()).await;
    outbox
}

impl Application for Harness {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    async fn write(&self, aggregate: &str) -> Result<(), Box<dyn Error>> {
        let mut tx = self.pool.begin().await?;
        sqlx::query("update aggregates set version = version + 1 where id = ?")
            .bind(aggregate)
            .execute(&mut *tx)
            .await?;
        let version: i64 = sqlx::query_scalar("select version from aggregates where id = ?")
            .bind(aggregate)
            .fetch_one(&mut *tx)
            .await?;
        let event = NewEvent::json("order", aggregate, "Changed", &version)?;
        self.writer().append(&mut tx, std::slice::from_ref(&event)).await?;
        sqlx::query("insert into written values (?, ?, ?)")
            .bind(event.id().to_string())
            .bind(aggregate)
            .bind(version)
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(())
    }

    async fn written(&self) -> Vec<(String, String, i64)> {
        let written = "select id, aggregate, version from written";
        sqlx::query_as(written).fetch_all(&self.pool).await.unwrap()
    }

    async fn count(&self, table: &str) -> i64 {
        self.number(&format!("select count(*) from {table}")).await
    }
}
