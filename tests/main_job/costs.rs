//! What a relay asks of the database, as the database counts it.

use std::time::{Duration, Instant};

use outbox::Limits;
use sqlx::PgPool;
use xtask::services::{Postgres, PostgresVersion};

use crate::support::database::Database;
use crate::support::job::Tables as _;
use crate::support::kafka::create_topics;
use crate::support::relay_task::{RelayTask, relay};
use crate::support::{alone, server};

/// Long enough that what comes every few seconds comes several times.
const IDLE_FOR: Duration = Duration::from_secs(12);
const BATCH: i64 = 1000;
const BATCHES: i64 = 40;
/// Claims that find nothing while the backlog is being written and behind its end, and settles of fewer events than a batch
/// has. With these a third statement per batch still shows; `outbox-bench/tests/counts.rs` counts a longer drain exactly.
const BESIDES: i64 = 32;
/// Statements that come with time and not with events: heartbeats, looks at open writers, figures for metrics.
const UPKEEP_PER_SECOND: f64 = 12.0;
const DRAIN_LIMIT: Duration = Duration::from_secs(60);

/// Covers H173.
#[test]
fn an_idle_relay_makes_three_statements_a_second_at_most() {
    alone(async {
        let postgres = counting_server();
        let database = Database::create(&postgres.url()).await;
        let counter = Counter::new(&postgres, &database).await;
        let relay = RelayTask::start(relay(&database, &server("OUTBOX_TEST_KAFKA_BOOTSTRAP")));
        counter.until_relay_is_at_work().await;
        counter.reset().await;
        let start = Instant::now();
        tokio::time::sleep(IDLE_FOR).await;
        let (statements, seconds) = (counter.statements().await, start.elapsed().as_secs_f64());
        counter.print(seconds).await;
        assert!(statements as f64 <= 3.0 * seconds, "{statements} statements in {seconds} s");
        relay.stop().await;
    });
}

/// Covers B051.
#[test]
fn a_batch_of_a_thousand_costs_two_statements_whatever_the_number_of_lanes() {
    alone(async {
        let postgres = counting_server();
        let kafka = server("OUTBOX_TEST_KAFKA_BOOTSTRAP");
        for lanes in [4, 64] {
            let database =
                Database::create_with(&postgres.url(), |config| config.with_lanes(lanes)).await;
            let counter = Counter::new(&postgres, &database).await;
            let kind = format!("order-{:08x}", fastrand::u32(..));
            create_topics(&kafka, &[format!("outbox.event.{kind}")]).await;
            let limits =
                Limits::default().with_window(4 * BATCH as usize).with_batch(BATCH as usize);
            let relay = RelayTask::start(relay(&database, &kafka).with_limits(limits));
            counter.until_relay_is_at_work().await;
            counter.reset().await;
            let start = Instant::now();
            append(&database, &kind, BATCH * BATCHES).await;
            assert!(database.drained(DRAIN_LIMIT).await);
            let (batches, upkeep) = counter.batches_and_upkeep().await;
            let seconds = start.elapsed().as_secs_f64();
            counter.print(seconds).await;
            relay.stop().await;
            assert!(
                batches <= 2 * BATCHES + BESIDES,
                "{batches} claims and settles for {BATCHES} batches, {lanes} lanes"
            );
            assert!(
                upkeep as f64 <= UPKEEP_PER_SECOND * seconds,
                "{upkeep} other statements in {seconds} s, {lanes} lanes"
            );
        }
    });
}

/// In one transaction, so that a backlog appears at once.
async fn append(database: &Database, kind: &str, events: i64) {
    sqlx::query(
        "insert into outbox (aggregatetype, aggregateid, type, payload)
         select $1, 'no ' || n % 5000, 'Created', json_build_object('n', n) from generate_series(1, $2) n",
    )
    .bind(kind)
    .bind(events)
    .execute(&database.pool)
    .await
    .unwrap();
}

fn counting_server() -> Postgres {
    let settings = [("shared_preload_libraries", "pg_stat_statements")];
    Postgres::start_with(PostgresVersion::V15, &settings)
}

/// Counts the statements of a database's relay, from another database of the server.
struct Counter {
    pool: PgPool,
    database: String,
}

impl Counter {
    async fn new(postgres: &Postgres, database: &Database) -> Self {
        let pool = PgPool::connect(&postgres.url()).await.unwrap();
        let create = sqlx::query("create extension if not exists pg_stat_statements");
        create.execute(&pool).await.unwrap();
        Self { pool, database: database.name.clone() }
    }

    async fn reset(&self) {
        sqlx::query("select pg_stat_statements_reset()").execute(&self.pool).await.unwrap();
    }

    /// The relay has its lanes and looks for events: it has claimed.
    async fn until_relay_is_at_work(&self) {
        let start = Instant::now();
        while !self.calls().await.iter().any(|(_, text)| text.contains("lateral")) {
            assert!(start.elapsed() < DRAIN_LIMIT, "the relay does not claim");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Without those by which the test itself writes and waits.
    async fn statements(&self) -> i64 {
        self.calls().await.iter().map(|(calls, _)| calls).sum()
    }

    /// Claims and settles, and everything else.
    async fn batches_and_upkeep(&self) -> (i64, i64) {
        let (mut batches, mut upkeep) = (0, 0);
        for (calls, text) in self.calls().await {
            let of_a_batch = text.contains("lateral") || text.contains("with fence");
            *(if of_a_batch { &mut batches } else { &mut upkeep }) += calls;
        }
        (batches, upkeep)
    }

    async fn print(&self, seconds: f64) {
        println!("in {seconds:.1} s:");
        for (calls, text) in self.calls().await {
            let words: Vec<&str> = text.split_whitespace().take(12).collect();
            println!("  {calls:>5}  {}", words.join(" "));
        }
    }

    async fn calls(&self) -> Vec<(i64, String)> {
        sqlx::query_as(
            "select calls, query from pg_stat_statements s join pg_database d on d.oid = s.dbid
              where d.datname = $1 and query not like '%generate_series%' and query not like 'select exists (select from outbox)'
              order by calls desc",
        )
        .bind(&self.database)
        .fetch_all(&self.pool)
        .await
        .unwrap()
    }
}
