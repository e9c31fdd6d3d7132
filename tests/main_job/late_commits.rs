//! Transactions that commit long after they appended: their events leave soon after the commit, and slow nobody.
//!
//! Latency is from the end of the commit at the writer to the time at which Kafka took the message; one clock, since all
//! run on this machine. What is compared with a bound is the latency of the fastest quarter: other load on the machine
//! delays many events and hurries none, while a relay that finds late events by its sweep only delays nearly all of
//! them, by up to 5 s.

use std::collections::HashMap;
use std::time::Duration;

use outbox::postgres::PostgresOutbox;
use outbox::{EventId, NewEvent};
use sqlx::PgPool;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::support::database::Database;
use crate::support::job::Tables as _;
use crate::support::kafka::{create_topics, read_all};
use crate::support::relay_task::{RelayTask, relay};
use crate::support::{alone, now_ms, server};

const BOUND_MS: i64 = 100;
/// Writers that make the load, and their pause between two transactions.
const WRITERS: usize = 4;
const PAUSE: Duration = Duration::from_millis(10);
const DRAIN_LIMIT: Duration = Duration::from_secs(30);

/// Short ones are behind the reader's watermark; those of more than a second are set aside by it.
/// Covers B001, B022; H001, H002.
#[test]
fn a_late_commit_is_published_within_a_tenth_of_a_second() {
    alone(async {
        let scene = Scene::start().await;
        let (short, long) = tokio::join!(
            scene.late_commits(24, Duration::from_millis(300)),
            scene.late_commits(8, Duration::from_millis(1800)),
        );
        let latencies = scene.finish().await;
        for (name, events) in [("open for 0.3 s", short), ("open for 1.8 s", long)] {
            assert!(latencies.of(name, &events) <= BOUND_MS, "{name}");
        }
    });
}

/// Covers B007, B022; H002.
#[test]
fn a_writer_that_stays_open_slows_nobody() {
    let stays_open = if crate::full() { Duration::from_secs(60) } else { Duration::from_secs(8) };
    alone(async {
        let scene = Scene::start().await;
        tokio::time::sleep(stays_open / 2).await;
        let from_ms = now_ms();
        let long = scene.late_commits(1, stays_open).await;
        let until_ms = long[0].committed_ms;
        let latencies = scene.finish().await;
        let alone = latencies.ordinary("alone", |at_ms| at_ms < from_ms);
        let beside =
            latencies.ordinary("beside it", |at_ms| at_ms > from_ms + 2000 && at_ms < until_ms);
        let itself = latencies.of("itself", &long);
        assert!(beside <= alone + BOUND_MS / 2, "{beside} ms beside it, {alone} ms alone");
        assert!(itself <= 10 * BOUND_MS, "{itself} ms");
    });
}

/// A relay, and writers that keep it busy.
struct Scene {
    database: Database,
    bootstrap: String,
    kind: String,
    relay: RelayTask,
    stop: watch::Sender<bool>,
    writers: JoinSet<Vec<Committed>>,
}

/// An event, and when its commit had ended.
#[derive(Clone, Debug)]
struct Committed {
    id: String,
    committed_ms: i64,
}

impl Scene {
    async fn start() -> Self {
        let bootstrap = server("OUTBOX_TEST_KAFKA_BOOTSTRAP");
        let database = Database::create(&server("OUTBOX_TEST_POSTGRES_URL")).await;
        let kind = format!("order-{:08x}", fastrand::u32(..));
        create_topics(&bootstrap, &[format!("outbox.event.{kind}")]).await;
        let relay = RelayTask::start(relay(&database, &bootstrap));
        let (pool, outbox) = (database.pool.clone(), database.outbox());
        commit_late(&pool, &outbox, &kind, Duration::ZERO).await;
        assert!(database.drained(DRAIN_LIMIT).await, "the relay does not work");
        let (stop, stopped) = watch::channel(false);
        let mut writers = JoinSet::new();
        for _ in 0..WRITERS {
            let (pool, outbox) = (database.pool.clone(), database.outbox());
            let (kind, stopped) = (kind.clone(), stopped.clone());
            writers.spawn(async move {
                let mut committed = Vec::new();
                while !*stopped.borrow() {
                    committed.push(commit_late(&pool, &outbox, &kind, Duration::ZERO).await);
                    tokio::time::sleep(PAUSE).await;
                }
                committed
            });
        }
        Self { database, bootstrap, kind, relay, stop, writers }
    }

    /// So many transactions, one after the other, that stay open for this long after their append.
    async fn late_commits(&self, count: usize, open_for: Duration) -> Vec<Committed> {
        let mut committed = Vec::new();
        for _ in 0..count {
            let outbox = self.database.outbox();
            committed.push(commit_late(&self.database.pool, &outbox, &self.kind, open_for).await);
        }
        committed
    }

    /// Ends everything; the latency of every event.
    async fn finish(self) -> Latencies {
        self.stop.send_replace(true);
        let ordinary = self.writers.join_all().await.concat();
        assert!(self.database.drained(DRAIN_LIMIT).await);
        self.relay.stop().await;
        let topic = format!("outbox.event.{}", self.kind);
        let arrivals = tokio::task::block_in_place(|| read_all(&self.bootstrap, &[topic]));
        let arrived = arrivals.iter().map(|a| (a.content.id().unwrap().to_owned(), a.at_ms));
        Latencies { ordinary, arrived: arrived.collect() }
    }
}

/// Appends an event of an aggregate of its own, waits, and commits.
async fn commit_late(
    pool: &PgPool,
    outbox: &PostgresOutbox,
    kind: &str,
    open_for: Duration,
) -> Committed {
    let id = EventId::generate();
    let aggregate_id = format!("no {}", fastrand::u32(..1000));
    let event = NewEvent::builder(kind, aggregate_id, "Created").json(&7).id(id.clone()).build();
    let mut transaction = pool.begin().await.unwrap();
    outbox.append(&mut transaction, &[event.unwrap()]).await.unwrap();
    tokio::time::sleep(open_for).await;
    transaction.commit().await.unwrap();
    Committed { id: id.to_string(), committed_ms: now_ms() }
}

struct Latencies {
    ordinary: Vec<Committed>,
    /// By id, in milliseconds since 1970.
    arrived: HashMap<String, i64>,
}

impl Latencies {
    /// As [`of`](Self::of), of the writers that make the load and the commits that lie in this time.
    fn ordinary(&self, name: &str, when: impl Fn(i64) -> bool) -> i64 {
        let chosen: Vec<Committed> =
            self.ordinary.iter().filter(|event| when(event.committed_ms)).cloned().collect();
        self.of(name, &chosen)
    }

    /// The latency in milliseconds of the fastest quarter of these events.
    fn of(&self, name: &str, events: &[Committed]) -> i64 {
        let mut latencies: Vec<i64> =
            events.iter().map(|event| self.arrived[&event.id] - event.committed_ms).collect();
        latencies.sort_unstable();
        let (quarter, worst) = (latencies[latencies.len() / 4], latencies[latencies.len() - 1]);
        println!(
            "{name}: {} events, a quarter within {quarter} ms, all within {worst} ms",
            latencies.len()
        );
        quarter
    }
}
