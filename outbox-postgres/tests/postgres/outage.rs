//! The relay on a PostgreSQL that stands still, and on one that dies, while applications write. H033, H068, B211

use std::error::Error;
use std::sync::Arc;

use outbox_core::{NewEvent, Store};
use xtask::services::{Postgres, PostgresVersion};

use crate::common::Outbox;
use crate::job::{self, Application};

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_server_costs_time_only() {
    let server = Postgres::start(PostgresVersion::V15);
    let application = application(&server.url()).await;
    job::a_frozen_server_costs_time_only(server, application).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_costs_duplicates_of_its_last_moments_only() {
    let server = Postgres::start(PostgresVersion::V15);
    let application = application(&server.url()).await;
    job::a_killed_server_costs_duplicates_of_its_last_moments_only(server, application).await;
}

async fn application(url: &str) -> Outbox {
    let outbox = Outbox::on(url, |config| config).await;
    outbox.schema().migrate().await.unwrap();
    outbox.execute(&job::tables()).await;
    outbox
}

impl Application for Outbox {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(Self::store(self))
    }

    async fn write(&self, aggregate: &str) -> Result<(), Box<dyn Error>> {
        let mut tx = self.pool.begin().await?;
        let version: i64 = sqlx::query_scalar(
            "update aggregates set version = version + 1 where id = $1 returning version",
        )
        .bind(aggregate)
        .fetch_one(&mut *tx)
        .await?;
        let event = NewEvent::json("order", aggregate, "Changed", &version)?;
        self.writer().append(&mut tx, std::slice::from_ref(&event)).await?;
        sqlx::query("insert into written values ($1, $2, $3)")
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
        Self::count(self, table).await
    }
}
