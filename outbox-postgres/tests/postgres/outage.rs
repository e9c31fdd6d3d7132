//! The relay on a PostgreSQL that stands still, and on one that dies, while applications write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outbox_core::memory::MemoryPublisher;
use outbox_core::{Message, NewEvent, Relay, Timing};
use tokio::task::{JoinHandle, JoinSet};
use xtask::services::{Postgres, PostgresVersion};

use crate::common::Outbox;

const STATEMENT_DEADLINE: Duration = Duration::from_secs(1);
/// Several statement deadlines, and shorter than a lease.
const OUTAGE: Duration = Duration::from_secs(4);
/// Far longer than a delivered event waits for its settlement.
const SETTLED_BY_NOW: Duration = Duration::from_secs(2);
/// For what goes on at once when nothing is wrong.
const LIMIT: Duration = Duration::from_secs(60);
const WRITERS: u64 = 4;
const AGGREGATES: u64 = 10;
const SOME: usize = 300;

/// Nothing is lost, nothing comes twice, and the order holds: the same relay goes on with what it knew. H033, B211
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_server_costs_time_only() {
    let job = Job::start().await;
    job.goes_on(SOME).await;
    blocking(|| job.server.freeze());
    tokio::time::sleep(OUTAGE).await;
    blocking(|| job.server.thaw());
    job.goes_on(SOME).await;
    let arrivals = job.finish().await;
    assert_eq!(arrivals.twice(0..arrivals.0.len()), BTreeSet::new());
}

/// Nothing is lost and the order holds; what comes twice was published about when the server died. H033, H068
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_costs_duplicates_of_its_last_moments_only() {
    let job = Job::start().await;
    let settled = job.goes_on(SOME).await;
    tokio::time::sleep(SETTLED_BY_NOW).await;
    job.goes_on(SOME).await;
    blocking(|| job.server.kill9());
    tokio::time::sleep(OUTAGE).await;
    blocking(|| job.server.start_again());
    let after = job.goes_on(SOME).await;
    let arrivals = job.finish().await;
    assert_eq!(arrivals.twice(0..settled), BTreeSet::new(), "published long before");
    assert_eq!(arrivals.twice(after..arrivals.0.len()), BTreeSet::new(), "published after");
}

/// Writers and a relay on a server of their own.
struct Job {
    server: Postgres,
    outbox: Outbox,
    broker: MemoryPublisher,
    stop_writing: Arc<AtomicBool>,
    writers: JoinSet<()>,
    stop: tokio::sync::oneshot::Sender<()>,
    relay: JoinHandle<Result<(), outbox_core::StoreError>>,
}

impl Job {
    async fn start() -> Self {
        let server = blocking(|| Postgres::start(PostgresVersion::V15));
        let outbox = Outbox::on(&server.url(), |config| config).await;
        outbox.schema().migrate().await.unwrap();
        outbox
            .execute(&format!(
                "create table aggregates (id text primary key, version bigint not null default 0);
                 insert into aggregates select 'a' || n from generate_series(1, {AGGREGATES}) n;
                 create table written (id text, aggregate text, version bigint)"
            ))
            .await;
        let broker = MemoryPublisher::new();
        let mut timing = Timing::default();
        timing.statement_deadline = STATEMENT_DEADLINE;
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let relay = Relay::new(Arc::new(outbox.store()), Arc::new(broker.clone()));
        let relay = relay.with_timing(timing).run(async { _ = stopped.await });
        let stop_writing = Arc::new(AtomicBool::new(false));
        let mut writers = JoinSet::new();
        for seed in 0..WRITERS {
            let (outbox, stop) = (outbox.reconfigured(|config| config), stop_writing.clone());
            writers.spawn(async move {
                let mut random = fastrand::Rng::with_seed(seed);
                while !stop.load(Ordering::Relaxed) {
                    // The server may be gone; whether this one was committed, the table tells.
                    let _ = write(&outbox, &format!("a{}", random.u64(1..=AGGREGATES))).await;
                }
            });
        }
        Self { server, outbox, broker, stop_writing, writers, stop, relay: tokio::spawn(relay) }
    }

    /// Waits until `more` messages have arrived, and returns how many are there.
    async fn goes_on(&self, more: usize) -> usize {
        let there = self.broker.messages().len();
        self.broker.wait_for(there + more, LIMIT).await.len()
    }

    /// Drains, and compares what arrived with what was committed.
    async fn finish(mut self) -> Arrivals {
        self.stop_writing.store(true, Ordering::Relaxed);
        while self.writers.join_next().await.transpose().unwrap().is_some() {}
        let drained = async {
            while self.outbox.count("outbox").await > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(LIMIT, drained).await.expect("the relay goes on");
        drop(self.stop);
        self.relay.await.unwrap().unwrap();
        assert_eq!(self.outbox.count("outbox_dead").await, 0);

        let arrivals = Arrivals(self.broker.messages());
        let written: Vec<(String, String, i64)> =
            sqlx::query_as("select id, aggregate, version from written")
                .fetch_all(&self.outbox.pool)
                .await
                .unwrap();
        let mut versions = BTreeMap::<String, Vec<i64>>::new();
        let known: BTreeMap<&str, (&str, i64)> =
            written.iter().map(|(id, key, version)| (&**id, (&**key, *version))).collect();
        for message in arrivals.first() {
            let (aggregate, version) = known[message.id().to_string().as_str()];
            versions.entry(aggregate.to_owned()).or_default().push(version);
        }
        assert_eq!(versions.values().map(Vec::len).sum::<usize>(), written.len(), "events");
        for (aggregate, versions) in versions {
            let in_order: Vec<i64> = (1..).take(versions.len()).collect();
            assert_eq!(versions, in_order, "of {aggregate}");
        }
        arrivals
    }
}

/// One change of an aggregate, with its event.
async fn write(outbox: &Outbox, aggregate: &str) -> Result<(), Box<dyn std::error::Error>> {
    let mut tx = outbox.pool.begin().await?;
    let version: i64 = sqlx::query_scalar(
        "update aggregates set version = version + 1 where id = $1 returning version",
    )
    .bind(aggregate)
    .fetch_one(&mut *tx)
    .await?;
    let event = NewEvent::json("order", aggregate, "Changed", &version)?;
    outbox.writer().append(&mut tx, std::slice::from_ref(&event)).await?;
    sqlx::query("insert into written values ($1, $2, $3)")
        .bind(event.id().to_string())
        .bind(aggregate)
        .bind(version)
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(())
}

/// Everything that the broker took, in that order.
struct Arrivals(Vec<Message>);

impl Arrivals {
    /// Without repeats.
    fn first(&self) -> impl Iterator<Item = &Message> {
        let mut seen = BTreeSet::new();
        self.0.iter().filter(move |message| seen.insert(message.id().clone()))
    }

    /// Which of the messages that first arrived at these places came again.
    fn twice(&self, places: std::ops::Range<usize>) -> BTreeSet<String> {
        let ids = |messages: &[Message]| -> BTreeSet<String> {
            messages.iter().map(|message| message.id().to_string()).collect()
        };
        let earlier = ids(&self.0[..places.start]);
        let mut seen = BTreeSet::new();
        let mut twice = BTreeSet::new();
        let wanted = ids(&self.0[places.clone()]);
        for message in &self.0[places.start..] {
            let id = message.id().to_string();
            if wanted.contains(&id) && !earlier.contains(&id) && !seen.insert(id.clone()) {
                twice.insert(id);
            }
        }
        twice
    }
}

fn blocking<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}
