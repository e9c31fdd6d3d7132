//! The examples do what they say. `main_job` runs `postgres_kafka`, which needs a broker of its own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use aws_config::Region;
use aws_sdk_sqs::config::{Credentials, SharedCredentialsProvider};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, PgConnection};

#[expect(dead_code, reason = "its main reads the environment")]
#[path = "../examples/mysql_rabbitmq.rs"]
mod mysql_rabbitmq;
#[expect(dead_code, reason = "its main reads the environment")]
#[path = "../examples/postgres_sqs.rs"]
mod postgres_sqs;
#[expect(dead_code, reason = "its main only prints")]
#[path = "../examples/saga.rs"]
mod saga;
#[expect(dead_code, reason = "its main only prints")]
#[path = "../examples/versioned_events.rs"]
mod versioned_events;

/// Ten pieces, of which the two confirmed orders took three; the declined one gave its own back.
#[tokio::test]
async fn a_saga_ends_with_every_step_taken_once_or_undone() {
    let end = saga::run().await.unwrap();
    let state = |order: usize| (end.orders[order].0.as_str(), end.orders[order].1.as_str());
    assert_eq!(state(0), ("order-1", "confirmed"));
    assert_eq!(state(1), ("order-2", "cancelled"));
    assert_eq!(state(2), ("order-3", "confirmed"));
    assert_eq!(end.stock, 10 - 2 - 1);
    assert_eq!(end.charged, 1250 + 399);
}

#[tokio::test]
async fn a_consumer_reads_both_versions_of_an_event_as_the_newest() {
    let orders = versioned_events::run().await.unwrap();
    let read: Vec<_> = orders.iter().map(|order| (order.amount, order.currency.as_str())).collect();
    assert_eq!(read, [(1250, "EUR"), (80, "USD"), (399, "EUR")]);
}

/// In the queue of the first run there may be nothing that the second one stumbles over.
#[tokio::test(flavor = "multi_thread")]
async fn a_shop_on_postgres_and_its_consumer_behind_sqs_run_twice() {
    let database = database_on::<PgConnection>("OUTBOX_TEST_POSTGRES_URL").await;
    let sdk = postgres_sqs::sdk().await.into_builder();
    let sdk = sdk
        .endpoint_url(server("OUTBOX_TEST_SQS_ENDPOINT"))
        .region(Region::new("us-east-1"))
        .credentials_provider(SharedCredentialsProvider::new(Credentials::new(
            "a", "b", None, None, "test",
        )))
        .build();
    let queue = format!("{}.fifo", random());
    for _ in 0..2 {
        postgres_sqs::run(&database, &sdk, &queue).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shop_on_mysql_and_its_consumer_behind_rabbitmq_run_twice() {
    let rabbitmq = server("OUTBOX_TEST_RABBITMQ_URL");
    for database in ["OUTBOX_TEST_MYSQL_URL", "OUTBOX_TEST_MARIADB_URL"] {
        let (database, queue) = (database_on::<MySqlConnection>(database).await, random());
        for _ in 0..2 {
            mysql_rabbitmq::run(&database, &rabbitmq, &queue).await.unwrap();
        }
    }
}

/// The URL of a new database.
async fn database_on<C>(variable: &str) -> String
where
    C: Connection,
    for<'c> &'c mut C: Executor<'c, Database = C::Database>,
{
    let (server, name) = (server(variable), random());
    let mut connection = C::connect(&server).await.unwrap();
    connection.execute(AssertSqlSafe(format!("create database {name}"))).await.unwrap();
    let (host, _) = server.rsplit_once('/').expect("the URL names a database");
    format!("{host}/{name}")
}

fn random() -> String {
    format!("example_{:016x}", fastrand::u64(..))
}

fn server(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: run `cargo xtask test`, or `eval \"$(cargo xtask services start)\"` first")
    })
}
