//! The schedules by which each rule of reading, order and outages was found, against the relay's own code: statements stop
//! and go on where the test says, on virtual time.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod careful;
mod leases;
mod outages;
mod positions;
mod reading;
mod refused;
mod script;

use std::sync::Arc;
use std::time::Duration;

use outbox_core::memory::{Fault, MemoryPublisher, MemoryStore, MemoryTransaction};
use outbox_core::{
    Capabilities, ClaimRequest, Due, Failure, FailureClass, Hint, Limits, NewEvent, Publisher,
    Relay, RetryPolicies, RetryPolicy, Timing, Watermark, Writer as _,
};
use script::Script;

const LONG: Duration = Duration::from_secs(600);

/// A table (with one lane, unless said otherwise), a broker, and a relay between them that sweeps only when told so.
struct Stage {
    table: MemoryStore,
    script: Script,
    broker: MemoryPublisher,
    timing: Timing,
    limits: Limits,
    retry: RetryPolicy,
}

impl Stage {
    fn new() -> Self {
        Self::with_lanes(1)
    }

    fn with_lanes(lanes: u16) -> Self {
        Self::with_watermark(lanes, Watermark::Writers)
    }

    fn with_watermark(lanes: u16, watermark: Watermark) -> Self {
        let capabilities = Capabilities::default().with_leases(true).with_watermark(watermark);
        let table = MemoryStore::with_capabilities(lanes, capabilities);
        let mut timing = Timing::default();
        timing.sweep = LONG * 100;
        timing.backlog = Duration::ZERO;
        Self {
            script: Script::new(&table),
            broker: MemoryPublisher::new(),
            table,
            timing,
            limits: Limits::default(),
            retry: RetryPolicy::default().with_jitter(0.0),
        }
    }

    /// Runs the relay beside `test`, and stops it cleanly after that.
    async fn run(&self, test: impl Future<Output = ()> + Send) {
        self.relay().run(test).await.unwrap();
    }

    fn relay(&self) -> Relay {
        self.relay_to(Arc::new(self.broker.clone()))
    }

    fn relay_to(&self, publisher: Arc<dyn Publisher>) -> Relay {
        Relay::new(Arc::new(self.script.clone()), publisher)
            .with_virtual_time()
            .with_timing(self.timing)
            .with_limits(self.limits)
            .with_retry(RetryPolicies::new(self.retry))
    }

    /// Commits events of one aggregate.
    async fn write(&self, aggregate: &str, names: &[&str]) {
        self.begin(aggregate, names).await.commit();
    }

    /// Writes events of one aggregate and leaves the transaction open.
    async fn begin(&self, aggregate: &str, names: &[&str]) -> MemoryTransaction {
        let mut transaction = self.table.begin();
        self.append(&mut transaction, aggregate, names).await;
        transaction
    }

    async fn append(&self, transaction: &mut MemoryTransaction, aggregate: &str, names: &[&str]) {
        for name in names {
            let mut event = NewEvent::builder("order", aggregate, *name);
            if let Some(after) = name.strip_prefix("due ") {
                event = event.due(Due::After(Duration::from_millis(after.parse().unwrap())));
            }
            self.table.append(transaction, &[event.build().unwrap()]).await.unwrap();
        }
    }

    /// What has arrived, by event type, in order.
    fn arrived(&self) -> Vec<String> {
        self.broker.messages().iter().map(|message| message.event_type().to_owned()).collect()
    }

    async fn until_arrived(&self, count: usize) {
        self.broker.wait_for(count, LONG).await;
    }

    async fn until_settled(&self) {
        self.table.wait_until_nothing_pending(LONG).await;
    }

    async fn after(&self, millis: u64) {
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }
}

fn refuse(class: FailureClass) -> Fault {
    Fault::Refuse(Failure::new(class, "as scripted"))
}
