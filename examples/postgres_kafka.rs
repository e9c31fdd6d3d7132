//! A service and its relay in one process, on PostgreSQL and Kafka.
//!
//! ```text
//! cargo run --example postgres_kafka --features postgres,kafka -- postgres://user:password@host/database host:9092
//! ```
//!
//! The service places orders: each is one transaction that writes the order and appends its event. The relay publishes
//! the events to the topic `outbox.event.order`, which must exist unless the broker creates topics by itself. While a
//! server is down the relay waits for it, and says so in its log on standard error.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use outbox::kafka::{KafkaConfig, KafkaPublisher};
use outbox::postgres::{PostgresConfig, PostgresOutbox, PostgresStore, Schema};
use outbox::{Hint, NewEvent, Relay};
use sqlx::PgPool;
use tokio::sync::oneshot;

const USAGE: &str = "\
usage: postgres_kafka [POSTGRES_URL KAFKA_BOOTSTRAP]
  POSTGRES_URL     postgres://user:password@host:port/database, or the variable DATABASE_URL
  KAFKA_BOOTSTRAP  host:port of a broker, or the variable KAFKA_BOOTSTRAP";

#[tokio::main]
async fn main() -> ExitCode {
    // The relay logs through `tracing`: without a subscriber it would wait for a broker in silence.
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let mut args = std::env::args().skip(1);
    let mut setting = |variable| args.next().or_else(|| std::env::var(variable).ok());
    let (Some(database), Some(kafka)) = (setting("DATABASE_URL"), setting("KAFKA_BOOTSTRAP"))
    else {
        eprintln!("{USAGE}");
        return ExitCode::FAILURE;
    };
    match run(&database, &kafka).await {
        Ok(orders) => {
            println!("{} events are in Kafka: topic outbox.event.order", orders.len());
            ExitCode::SUCCESS
        }
        Err(error) => {
            // With `#` the causes follow: what the server said.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Places some orders while a relay publishes their events; returns the ids of the orders that were committed.
pub(crate) async fn run(database: &str, kafka: &str) -> anyhow::Result<Vec<String>> {
    let config = PostgresConfig::from_url(database)?;
    Schema::new(&config)?.migrate().await?;
    let pool = PgPool::connect(database).await?;
    sqlx::query("create table if not exists orders (id text primary key, total bigint not null)")
        .execute(&pool)
        .await?;

    // The hint lets the relay look at once when this process commits; without it, it looks twice a second.
    let hint = Hint::new();
    let outbox = PostgresOutbox::new(&config)?.with_hint(hint.clone());
    let store = Arc::new(PostgresStore::new(&config)?);
    let publisher = Arc::new(KafkaPublisher::new(&KafkaConfig::new(kafka))?);
    let relay = Relay::new(store, publisher).with_hint(hint);
    let (stop, stopped) = oneshot::channel::<()>();
    let mut relay = tokio::spawn(relay.run(async { _ = stopped.await }));

    let mut placed = Vec::new();
    for total in [1250, 80, 399] {
        placed.push(place_order(&pool, &outbox, total).await?);
    }
    refuse_order(&pool, &outbox).await?;

    println!("waiting until the broker has confirmed every event …");
    tokio::select! {
        published = published(&pool) => published?,
        ended = &mut relay => {
            ended??;
            anyhow::bail!("the relay ended before it was told to");
        }
    }
    drop(stop);
    relay.await?.context("the relay did not end well")?;
    Ok(placed)
}

/// The order and its event, both or none.
async fn place_order(pool: &PgPool, outbox: &PostgresOutbox, total: i64) -> anyhow::Result<String> {
    let id = format!("order-{:016x}", fastrand::u64(..));
    let mut transaction = pool.begin().await?;
    sqlx::query("insert into orders (id, total) values ($1, $2)")
        .bind(&id)
        .bind(total)
        .execute(&mut *transaction)
        .await?;
    let event = NewEvent::json("order", &id, "OrderPlaced", &[("total", total)])?;
    outbox.append(&mut transaction, &[event]).await?;
    outbox.commit(transaction).await?;
    println!("{id} is committed, and so is its event");
    Ok(id)
}

/// What is rolled back was never there, event included.
async fn refuse_order(pool: &PgPool, outbox: &PostgresOutbox) -> anyhow::Result<()> {
    let mut transaction = pool.begin().await?;
    let event = NewEvent::json("order", "order-refused", "OrderPlaced", &"never published")?;
    outbox.append(&mut transaction, &[event]).await?;
    transaction.rollback().await?;
    println!("order-refused is rolled back, and so is its event");
    Ok(())
}

/// A row in the table is an event that is not yet published: returns when there is none.
async fn published(pool: &PgPool) -> anyhow::Result<()> {
    while sqlx::query_scalar("select exists (select from outbox)").fetch_one(pool).await? {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
