//! An outage is not the events' fault: nothing is written to the outbox table, nothing dies, everything arrives.

use std::time::{Duration, Instant};

use outbox::{NewEvent, RetryPolicies, RetryPolicy, Timing};
use xtask::services::Kafka;

use crate::support::database::Database;
use crate::support::job::Tables as _;
use crate::support::kafka::{create_topics, read_all};
use crate::support::relay_task::{RelayTask, relay};
use crate::support::{alone, server};

const EVENTS: i64 = 1000;
const ATTEMPTS: u32 = 3;
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// Ten times as long as the retries of an event that fails by its own fault, and several publish deadlines.
const DOWN_FOR: Duration = RETRY_DELAY.saturating_mul(ATTEMPTS * 10);
const LEASE: Duration = Duration::from_secs(3);
const DRAIN_LIMIT: Duration = Duration::from_secs(60);
/// A backend reports what it did after 10 s of idleness at the latest.
const STATISTICS_LIMIT: Duration = Duration::from_secs(20);

/// Covers B076, H044.
#[test]
fn a_stopped_broker_costs_no_write_no_attempt_and_no_event() {
    an_outage_costs_no_write_no_attempt_and_no_event(Kafka::stop, Kafka::start_again);
}

/// The connections stay open and nothing answers: every message is unconfirmed at its deadline. Covers B076, H046.
#[test]
fn a_frozen_broker_costs_no_write_no_attempt_and_no_event() {
    an_outage_costs_no_write_no_attempt_and_no_event(Kafka::freeze, Kafka::thaw);
}

fn an_outage_costs_no_write_no_attempt_and_no_event(begin: fn(&Kafka), end: fn(&Kafka)) {
    alone(async {
        let kafka = Kafka::start();
        let database = Database::create(&server("OUTBOX_TEST_POSTGRES_URL")).await;
        let topic = "outbox.event.order".to_owned();
        create_topics(&kafka.bootstrap(), std::slice::from_ref(&topic)).await;
        let retry = RetryPolicy::default()
            .with_delays(RETRY_DELAY / 2, RETRY_DELAY)
            .with_max_attempts(ATTEMPTS);
        let timing = Timing::default()
            .with_lease(LEASE)
            .with_outage(Duration::from_millis(100), Duration::from_secs(1));
        let relay = relay(&database, &kafka.bootstrap())
            .with_retry(RetryPolicies::new(retry))
            .with_timing(timing);
        let relay = RelayTask::start(relay);
        append(&database, 1).await;
        assert!(database.drained(DRAIN_LIMIT).await, "the relay does not work before the outage");
        assert_eq!(changes(&database, 1).await, (0, 1), "updates and deletes before");

        tokio::task::block_in_place(|| begin(&kafka));
        append(&database, EVENTS).await;
        tokio::time::sleep(DOWN_FOR).await;
        assert_eq!(changes(&database, 1 + EVENTS).await, (0, 1), "updates and deletes");
        assert_eq!(pending(&database).await, (EVENTS, 0), "events pending, highest attempts");

        tokio::task::block_in_place(|| end(&kafka));
        assert!(database.drained(DRAIN_LIMIT).await, "the relay does not work after the outage");
        relay.stop().await;
        assert!(database.ids("outbox_dead").await.is_empty());
        let arrivals = tokio::task::block_in_place(|| read_all(&kafka.bootstrap(), &[topic]));
        let mut keys: Vec<_> = arrivals.into_iter().map(|arrival| arrival.content.key).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len() as i64, EVENTS, "aggregates at the broker");
    });
}

/// One event for each of the first `count` aggregates.
async fn append(database: &Database, count: i64) {
    let event = |number| NewEvent::json("order", format!("no {number}"), "Created", &number);
    let events: Vec<NewEvent> = (0..count).map(|number| event(number).unwrap()).collect();
    let mut transaction = database.pool.begin().await.unwrap();
    database.outbox().append(&mut transaction, &events).await.unwrap();
    transaction.commit().await.unwrap();
}

/// Updates and deletes of the outbox table so far, once the statistics have all inserts and the first event's delete.
async fn changes(database: &Database, inserts: i64) -> (i64, i64) {
    let start = Instant::now();
    while start.elapsed() < STATISTICS_LIMIT {
        let (inserted, updated, deleted): (i64, i64, i64) = sqlx::query_as(
            "select n_tup_ins, n_tup_upd, n_tup_del from pg_stat_user_tables where relname = 'outbox'",
        )
        .fetch_one(&database.pool)
        .await
        .unwrap();
        if inserted >= inserts && deleted >= 1 {
            return (updated, deleted);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the statistics do not show {inserts} inserts after {STATISTICS_LIMIT:?}");
}

async fn pending(database: &Database) -> (i64, i32) {
    sqlx::query_as("select count(*), coalesce(max(attempts), 0)::int from outbox")
        .fetch_one(&database.pool)
        .await
        .unwrap()
}
