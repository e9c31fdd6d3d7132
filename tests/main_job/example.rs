//! The example `postgres_kafka` does what it says.

use xtask::services::Kafka;

use crate::support::database::Database;
use crate::support::kafka::{create_topics, read_all};
use crate::support::{alone, server};

#[expect(dead_code, reason = "its main reads the command line")]
#[path = "../../examples/postgres_kafka.rs"]
mod postgres_kafka;

#[test]
fn the_example_publishes_the_orders_that_it_commits() {
    alone(async {
        let database = Database::create(&server("OUTBOX_TEST_POSTGRES_URL")).await;
        let kafka = Kafka::start();
        let topic = ["outbox.event.order".to_owned()];
        create_topics(&kafka.bootstrap(), &topic).await;
        let mut placed = postgres_kafka::run(&database.url, &kafka.bootstrap()).await.unwrap();
        let arrivals = tokio::task::block_in_place(|| read_all(&kafka.bootstrap(), &topic));
        let keys = arrivals.into_iter().map(|arrival| arrival.content.key.unwrap());
        let mut keys: Vec<String> = keys.map(|key| String::from_utf8(key).unwrap()).collect();
        keys.sort_unstable();
        placed.sort_unstable();
        assert_eq!(keys, placed);
    });
}
