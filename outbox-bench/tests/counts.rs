//! Counts on real servers: statements, WAL bytes and allocations per event. They do not depend on how busy the machine is;
//! times are the business of `outbox-bench drain`.

#![allow(clippy::unwrap_used, reason = "also in the helpers of these tests")]

use std::alloc::System;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox_bench::counted::Calls;
use outbox_bench::relay::{Options, Tuning, relay};
use outbox_bench::table::Table;
use outbox_bench::topic::{Content, Topic};
use outbox_core::{
    ClaimRequest, Delivered, LaneCursor, Pipeline, Settlements, Store as _, Timing, Worker,
};
use outbox_postgres::PostgresStore;
use sqlx::Row as _;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tokio::sync::oneshot;
use xtask::services::{Postgres, PostgresVersion};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Claim, publish and settle allocate at most three times per event on the Rust side, everything per batch included.
#[test]
fn the_hot_path_allocates_at_most_three_times_per_event() {
    let _alone = alone();
    let drained = drain(&variable("OUTBOX_TEST_POSTGRES_URL"), 50_000, 16, None);
    let per_event = drained.allocations as f64 / 50_000.0;
    println!("{per_event:.2} allocations per event");
    assert!(per_event <= 3.0, "{per_event:.2} allocations per event");
}

/// One statement claims and one settles, for all lanes together: two per batch of 1,000, however many lanes there are.
/// Besides come polls that find nothing, and upkeep (leases, open writers), by time and not by events.
#[test]
fn a_batch_of_a_thousand_costs_two_statements_whatever_the_number_of_lanes() {
    let _alone = alone();
    // Autovacuum's transactions would count.
    let server = Postgres::start_with(PostgresVersion::V15, &[("autovacuum", "off")]);
    for lanes in [1, 128] {
        let batches = 100;
        let drained = drain(&server.url(), batches * 1_000, lanes, Some(1_000));
        let Drained { calls, transactions, .. } = drained;
        println!("{lanes} lanes: {transactions} statements, {calls:?}");
        let used = calls.claims - calls.empty_claims + calls.settles;
        assert!(used <= 2 * batches, "{lanes} lanes: {calls:?} for {batches} batches");
        // A call of upkeep is two statements at most. Five connections, what is prepared on them, joining and leaving: 50.
        let explained = calls.claims + calls.settles + calls.probes + 2 * calls.upkeep + 50;
        assert!(
            transactions <= explained,
            "{lanes} lanes: {transactions} statements, {explained} are explained by {calls:?}"
        );
    }
}

/// A delivered event leaves by a delete of at most 90 bytes of WAL, its share of fence and commit included.
#[test]
fn settling_a_thousand_events_writes_at_most_ninety_bytes_of_wal_each() {
    let _alone = alone();
    // WAL is the server's: nobody else may write. Without full-page images, as long after a checkpoint.
    let settings = [("full_page_writes", "off"), ("autovacuum", "off")];
    let server = Postgres::start_with(PostgresVersion::V15, &settings);
    block_on(async {
        let table = Table::create(&server.url(), 20_000, 16).await.unwrap();
        let store = PostgresStore::new(&table.config().unwrap()).unwrap();
        let mut monitor = table.connect().await.unwrap();
        let worker = Worker::new(Pipeline::new("counts").unwrap(), "");
        let lease = Duration::from_secs(30);
        let lanes = store.join(&worker).await.unwrap();
        store.heartbeat(&worker, lease).await.unwrap();
        store.acquire(&worker, lanes).await.unwrap();
        let leases = store.heartbeat(&worker, lease).await.unwrap();
        let owned: Vec<_> = leases.lanes.iter().map(|owned| (owned.lane, owned.epoch)).collect();

        let (mut wal, mut settled) = (0, 0);
        loop {
            let cursor = |lane| LaneCursor::new(lane, 0, 0, 1_000);
            let cursors = owned.iter().map(|(lane, _)| cursor(*lane)).collect();
            let request = ClaimRequest::new(worker.pipeline.clone(), cursors, 1_000, 8 << 20);
            let events = store.claim(&request).await.unwrap().events;
            if events.is_empty() {
                break;
            }
            let mut settlements = Settlements::new(worker.clone());
            settlements.lanes.clone_from(&owned);
            settlements.delivered =
                events.iter().map(|event| Delivered::new(event.receipt(), "t")).collect();
            let before = wal_position(&mut monitor).await;
            assert_eq!(store.settle(&settlements).await.unwrap().missing, 0);
            wal += wal_position(&mut monitor).await - before;
            settled += events.len();
        }
        assert_eq!(settled, 20_000);
        let per_event = wal as f64 / 20_000.0;
        println!("{per_event:.1} bytes of WAL per settled event");
        assert!(per_event <= 90.0, "{per_event:.1} bytes of WAL per settled event");
    });
}

/// What a drain cost.
struct Drained {
    calls: Calls,
    transactions: u64,
    allocations: usize,
}

/// Drains a table of `events` events to Kafka, and sees that each arrived once, unaltered and in order.
fn drain(postgres_url: &str, events: u64, lanes: u16, batch: Option<usize>) -> Drained {
    let bootstrap = variable("OUTBOX_TEST_KAFKA_BOOTSTRAP");
    block_on(async {
        let table = Table::create(postgres_url, events, lanes).await.unwrap();
        let topic = Topic::create(&bootstrap).await.unwrap();
        let transactions = table.transactions().await.unwrap();
        let options = Options {
            postgres_url: postgres_url.to_owned(),
            database: table.database().to_owned(),
            bootstrap,
            topic: topic.name().to_owned(),
            events,
            tuning: Tuning { lanes, window: None, batch, calls: None, threads: 1 },
        };
        let before = allocations();
        let (relay, counts) = relay(&table.config().unwrap(), &options).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let mut timing = Timing::default();
        // Sweeps come by time too, and are counted as claims.
        timing.sweep = Duration::from_secs(3600);
        let relay = tokio::spawn(relay.with_timing(timing).run(async {
            let _ = stopped.await;
        }));
        counts.all_settled().await;
        let (allocations, calls) = (allocations() - before, counts.calls());
        drop(stop);
        relay.await.unwrap().unwrap();
        let transactions = table.transactions().await.unwrap() - transactions;
        let content = topic.read_back(events).unwrap();
        assert_eq!(content, Content { messages: events, ..Content::default() });
        topic.remove().await.unwrap();
        table.remove().await.unwrap();
        Drained { calls, transactions, allocations }
    })
}

/// Allocations of the Rust side so far; librdkafka's own are not among them.
fn allocations() -> usize {
    let stats = ALLOCATOR.stats();
    stats.allocations + stats.reallocations
}

async fn wal_position(connection: &mut sqlx::PgConnection) -> i64 {
    let position = "select (pg_current_wal_insert_lsn() - '0/0')::int8";
    sqlx::query(position).fetch_one(connection).await.unwrap().get(0)
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: run `cargo xtask test`, or start the servers by `cargo xtask services start`")
    })
}

fn block_on<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test)
}

/// Counts are of the whole process: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
