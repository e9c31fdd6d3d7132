//! One run of the main job: writers, two relays, what is done to them, and the verdict at the end.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::support::checker::{Fault, History, Report, check};
use crate::support::database::Database;
use crate::support::relay_process::{RelayProcess, RelaySettings};
use crate::support::{kafka, now_ms};
use crate::workload::Workload;

/// Events that one relay holds at most between claim and settle.
pub(crate) const WINDOW: usize = 500;
/// Time to publish everything that waits when the last fault is over, beside the two leases of promise I7.
const DRAIN_LIMIT: Duration = Duration::from_secs(120);

/// A run.
pub(crate) struct Job {
    database: Database,
    bootstrap: String,
    lease: Duration,
    workload: Workload,
    /// Transactions released so far.
    released: usize,
    pub(crate) relays: [RelayProcess; 2],
    faults: Vec<Fault>,
    logs: PathBuf,
}

impl Job {
    /// Prepares database, topics, writers and two relays with this lease.
    pub(crate) async fn start(server_url: &str, bootstrap: &str, lease: Duration) -> Self {
        let seed = fastrand::u64(..);
        let logs = tempfile::Builder::new().prefix("outbox-main-job-").tempdir().unwrap().keep();
        println!("seed {seed}, logs of the relays in {}", logs.display());
        let database = Database::create(server_url).await;
        let workload = Workload::start(&database, seed).await;
        kafka::create_topics(bootstrap, &workload.topics).await;
        let settings = RelaySettings {
            database_url: database.url.clone(),
            bootstrap: bootstrap.to_owned(),
            window_events: WINDOW,
            lease,
        };
        let relays =
            ["first", "second"].map(|name| RelayProcess::start(&settings, &logs.join(name)));
        let bootstrap = bootstrap.to_owned();
        Self { database, bootstrap, lease, workload, released: 0, relays, faults: Vec::new(), logs }
    }

    /// Makes this many transactions.
    pub(crate) async fn write(&mut self, transactions: usize) {
        self.released += transactions;
        self.workload.release(transactions);
        self.workload.written(self.released).await;
    }

    /// Makes this many transactions, and does something in the middle of them that may repeat up to `window`
    /// events.
    pub(crate) async fn write_through(
        &mut self,
        name: &'static str,
        window: usize,
        transactions: usize,
        fault: impl AsyncFnOnce(&mut Self),
    ) {
        self.released += transactions;
        self.workload.release(transactions);
        self.workload.written(self.released - transactions / 2).await;
        let from_ms = now_ms();
        fault(self).await;
        self.faults.push(Fault { name, from_ms, until_ms: now_ms(), window });
        self.workload.written(self.released).await;
    }

    /// Returns when this many events are pending.
    pub(crate) async fn pending(&self, events: usize) {
        while self.database.ids("outbox").await.len() < events {
            tokio::task::yield_now().await;
        }
    }

    /// Ends the writers, waits until nothing is pending, stops the relays, and compares.
    pub(crate) async fn finish(mut self) -> Report {
        let written = Instant::now();
        let topics = self.workload.topics.clone();
        let intents = self.workload.finish().await;
        let drained = self.database.drained(2 * self.lease + DRAIN_LIMIT).await;
        println!("drained: {drained}, {:.1} s after the end", written.elapsed().as_secs_f64());
        let arrivals = tokio::task::block_in_place(|| {
            self.relays.iter_mut().for_each(RelayProcess::stop);
            kafka::read_all(&self.bootstrap, &topics)
        });
        let rolled_back = intents.iter().filter(|intent| !intent.committed).count();
        let history = History {
            intents,
            arrivals,
            dead: self.database.ids("outbox_dead").await,
            open: self.database.ids("outbox").await,
            faults: self.faults,
            reach_ms: 2 * i64::try_from(self.lease.as_millis()).expect("a lease is short"),
        };
        let report = check(&history);
        println!(
            "{} transactions, {rolled_back} events rolled back, {} delivered, {} dead, repeats {:?}",
            self.released,
            report.delivered,
            history.dead.len(),
            report.repeats
        );
        if report.violations.is_empty() {
            std::fs::remove_dir_all(&self.logs).unwrap();
        }
        report
    }
}
