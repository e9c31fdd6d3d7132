//! One run: writers, two relays, what is done to them, and the verdict at the end.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::checker::{Arrival, Fault, History, Report, check};
use super::now_ms;
use super::relay_process::{RelayProcess, RelaySettings};
use super::workload::Workload;

/// Time to publish everything that waits when the last fault is over, beside the two leases of promise I7.
const DRAIN_LIMIT: Duration = Duration::from_secs(120);
/// How often a wait looks again.
const POLL: Duration = Duration::from_millis(50);

/// The outbox's tables, as a run looks at them.
pub(crate) trait Tables {
    /// The ids in this table.
    async fn ids(&self, table: &str) -> Vec<String>;

    /// Whether an event is in the outbox.
    async fn is_any_pending(&self) -> bool;

    /// Waits until no event is pending; says whether that came about in time.
    async fn drained(&self, limit: Duration) -> bool {
        let start = Instant::now();
        while start.elapsed() < limit {
            if !self.is_any_pending().await {
                return true;
            }
            tokio::time::sleep(POLL).await;
        }
        false
    }
}

/// A run.
pub(crate) struct Job<D> {
    pub(crate) database: D,
    lease: Duration,
    workload: Workload,
    /// Transactions released so far.
    released: usize,
    pub(crate) relays: [RelayProcess; 2],
    faults: Vec<Fault>,
    logs: PathBuf,
}

impl<D: Tables> Job<D> {
    /// Starts two relays.
    pub(crate) fn start(database: D, workload: Workload, settings: &RelaySettings) -> Self {
        let logs = tempfile::Builder::new().prefix("outbox-job-").tempdir().unwrap().keep();
        println!("logs of the relays are in {}", logs.display());
        let relays =
            ["first", "second"].map(|name| RelayProcess::start(settings, &logs.join(name)));
        let lease = settings.lease;
        Self { database, lease, workload, released: 0, relays, faults: Vec::new(), logs }
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

    /// Ends the writers, waits until nothing is pending, stops the relays, reads what has arrived, and compares.
    pub(crate) async fn finish(mut self, read: impl AsyncFnOnce() -> Vec<Arrival>) -> Report {
        let written = Instant::now();
        let intents = self.workload.finish().await;
        let drained = self.database.drained(2 * self.lease + DRAIN_LIMIT).await;
        println!("drained: {drained}, {:.1} s after the end", written.elapsed().as_secs_f64());
        tokio::task::block_in_place(|| self.relays.iter_mut().for_each(RelayProcess::stop));
        let arrivals = read().await;
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
