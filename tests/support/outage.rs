//! The relay on a database that stands still, and on one that dies, while applications write.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outbox_core::memory::MemoryPublisher;
use outbox_core::{Message, Relay, Store, StoreError, Timing};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use xtask::services::{MariaDb, MySql, Postgres};

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

/// A database server of a test's own.
pub(crate) trait Server {
    fn freeze(&self);
    fn thaw(&self);
    fn kill9(&self);
    fn start_again(&self);
}

/// The methods of this name are those of the server itself.
macro_rules! server {
    ($name:ident) => {
        impl Server for $name {
            fn freeze(&self) {
                self.freeze();
            }
            fn thaw(&self) {
                self.thaw();
            }
            fn kill9(&self) {
                self.kill9();
            }
            fn start_again(&self) {
                self.start_again();
            }
        }
    };
}
server!(MySql);
server!(MariaDb);
server!(Postgres);

/// The outbox on it, and beside it the tables `aggregates (id, version)` and `written (id, aggregate, version)`.
pub(crate) trait Application: Send + Sync + 'static {
    fn store(&self) -> Arc<dyn Store>;

    /// Raises the version of an aggregate, appends an event about it and notes the two in `written`, in one transaction.
    fn write(&self, aggregate: &str) -> impl Future<Output = Result<(), Box<dyn Error>>> + Send;

    /// Event id, aggregate and version of all that was committed.
    fn written(&self) -> impl Future<Output = Vec<(String, String, i64)>> + Send;

    /// How many rows a table has.
    fn count(&self, table: &str) -> impl Future<Output = i64> + Send;
}

/// The statements that make the application's tables.
pub(crate) fn tables() -> String {
    let aggregates: Vec<String> = (1..=AGGREGATES).map(|n| format!("('a{n}', 0)")).collect();
    format!(
        "create table aggregates (id varchar(9) primary key, version bigint not null);
         insert into aggregates values {};
         create table written (id varchar(36), aggregate varchar(9), version bigint)",
        aggregates.join(", ")
    )
}

/// Nothing is lost, nothing comes twice, and the order holds: the same relay goes on with what it knew.
pub(crate) async fn a_frozen_server_costs_time_only(
    server: impl Server,
    application: impl Application,
) {
    let job = Job::start(application);
    job.goes_on(SOME).await;
    blocking(|| server.freeze());
    tokio::time::sleep(OUTAGE).await;
    blocking(|| server.thaw());
    job.goes_on(SOME).await;
    let arrivals = job.finish().await;
    assert_eq!(arrivals.twice(0..arrivals.0.len()), BTreeSet::new());
}

/// Nothing is lost and the order holds; what comes twice was published about when the server died.
pub(crate) async fn a_killed_server_costs_duplicates_of_its_last_moments_only(
    server: impl Server,
    application: impl Application,
) {
    let job = Job::start(application);
    let settled = job.goes_on(SOME).await;
    tokio::time::sleep(SETTLED_BY_NOW).await;
    job.goes_on(SOME).await;
    blocking(|| server.kill9());
    tokio::time::sleep(OUTAGE).await;
    blocking(|| server.start_again());
    let after = job.goes_on(SOME).await;
    let arrivals = job.finish().await;
    assert_eq!(arrivals.twice(0..settled), BTreeSet::new(), "published long before");
    assert_eq!(arrivals.twice(after..arrivals.0.len()), BTreeSet::new(), "published after");
}

/// Writers and a relay.
struct Job<A> {
    application: Arc<A>,
    broker: MemoryPublisher,
    stop_writing: Arc<AtomicBool>,
    writers: JoinSet<()>,
    stop: oneshot::Sender<()>,
    relay: JoinHandle<Result<(), StoreError>>,
}

impl<A: Application> Job<A> {
    fn start(application: A) -> Self {
        let application = Arc::new(application);
        let broker = MemoryPublisher::new();
        let mut timing = Timing::default();
        timing.statement_deadline = STATEMENT_DEADLINE;
        let (stop, stopped) = oneshot::channel::<()>();
        let relay = Relay::new(application.store(), Arc::new(broker.clone()));
        let relay = relay.with_timing(timing).run(async { _ = stopped.await });
        let stop_writing = Arc::new(AtomicBool::new(false));
        let mut writers = JoinSet::new();
        for seed in 0..WRITERS {
            let (application, stop) = (application.clone(), stop_writing.clone());
            writers.spawn(async move {
                let mut random = fastrand::Rng::with_seed(seed);
                while !stop.load(Ordering::Relaxed) {
                    // The server may be gone; whether this one was committed, the table tells.
                    let _ = application.write(&format!("a{}", random.u64(1..=AGGREGATES))).await;
                }
            });
        }
        Self { application, broker, stop_writing, writers, stop, relay: tokio::spawn(relay) }
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
            while self.application.count("outbox").await > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(LIMIT, drained).await.expect("the relay goes on");
        drop(self.stop);
        self.relay.await.unwrap().unwrap();
        assert_eq!(self.application.count("outbox_dead").await, 0);

        let arrivals = Arrivals(self.broker.messages());
        assert!(arrivals.0.iter().all(|message| message.attempts() == 0), "an attempt was counted");
        let written = self.application.written().await;
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

/// Everything that the broker took, in that order.
struct Arrivals(Vec<Message>);

impl Arrivals {
    /// Without repeats.
    fn first(&self) -> impl Iterator<Item = &Message> {
        let mut seen = BTreeSet::new();
        self.0.iter().filter(move |message| seen.insert(message.id().clone()))
    }

    /// Which of the messages that first arrived at these places came again.
    fn twice(&self, places: Range<usize>) -> BTreeSet<String> {
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
