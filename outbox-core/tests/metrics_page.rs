//! `docs/metrics.md` lists what a relay really emits.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    set_default_local_recorder,
};
use outbox_core::memory::{Fault, FaultRule, MemoryPublisher, MemoryStore};
use outbox_core::{
    Backlog, Batch, ClaimRequest, Claimed, Failure, FailureClass, LaneRead, NewEvent, Pipeline,
    Publisher, Relay, Settled, Settlements, Store, StoreError, Writer as _, async_trait,
};

/// Type and labels by name.
type Metrics = BTreeMap<String, (&'static str, BTreeSet<String>)>;

#[tokio::test(start_paused = true)]
async fn the_page_lists_every_metric_with_its_labels() {
    let recorder = Seen::default();
    let guard = set_default_local_recorder(&recorder);
    let store = MemoryStore::new();
    let publisher = MemoryPublisher::new();
    publisher.script(FaultRule::always(fails()).times(1));
    let mut transaction = store.begin();
    let event = NewEvent::builder("order", "a", "Created").build().unwrap();
    store.append(&mut transaction, &[event]).await.unwrap();
    transaction.commit();
    let relay = Relay::new(Arc::new(store.clone()), Arc::new(publisher)).with_virtual_time();
    relay.run(store.wait_until_nothing_pending(Duration::from_secs(60))).await.unwrap();
    let teller = Relay::new(Arc::new(Teller::default()), Arc::new(Teller::default()));
    teller.with_virtual_time().run(tokio::time::sleep(Duration::from_secs(60))).await.unwrap();
    drop(guard);

    let emitted = recorder.metrics.into_inner().unwrap();
    let page = metrics_of(&read("../docs/metrics.md"));
    for name in page.keys().chain(emitted.keys()) {
        assert_eq!(page.get(name), emitted.get(name), "{name}: docs/metrics.md, and a relay");
    }
    let constants = constants_of(&read("src/telemetry.rs"));
    assert_eq!(page.into_keys().collect::<BTreeSet<_>>(), constants);
}

/// However it ended: here its future is dropped in an outage.
#[tokio::test(start_paused = true)]
async fn a_relay_that_has_ended_leaves_no_gauge_behind() {
    let recorder = Seen::default();
    let guard = set_default_local_recorder(&recorder);
    let (store, publisher) = (MemoryStore::new(), MemoryPublisher::new());
    publisher.outage(true);
    let mut transaction = store.begin();
    let event = NewEvent::builder("order", "a", "Created").build().unwrap();
    store.append(&mut transaction, &[event]).await.unwrap();
    transaction.commit();
    let mut relay = Box::pin(
        Relay::new(Arc::new(store), Arc::new(publisher))
            .with_virtual_time()
            .run(std::future::pending()),
    );
    let value =
        |name: &str| f64::from_bits(recorder.gauges.lock().unwrap()[name].load(Ordering::Relaxed));
    let of_the_relay = [
        "outbox_lanes_owned",
        "outbox_window_events",
        "outbox_destination_down",
        "outbox_pending",
        "outbox_oldest_pending_age_seconds",
    ];
    assert!(tokio::time::timeout(Duration::from_secs(60), &mut relay).await.is_err());
    assert!(of_the_relay.iter().all(|name| value(name) > 0.0), "it works");
    drop(relay);
    // Its tasks are gone a moment later.
    tokio::time::sleep(Duration::from_secs(1)).await;
    drop(guard);
    for name in of_the_relay {
        assert_eq!(value(name), 0.0, "{name}");
    }
}

#[test]
fn the_page_lists_every_log_line_of_the_relay() {
    let mut source = String::new();
    for file in std::fs::read_dir(root().join("src/relay")).unwrap() {
        source += &std::fs::read_to_string(file.unwrap().path()).unwrap();
    }
    let emitted = ["error", "warn", "info", "debug", "trace"]
        .map(|level| source.matches(&format!("tracing::{level}!(")).count());
    let page = read("../docs/metrics.md");
    let lines: Vec<Vec<&str>> = rows(&page).filter(|row| row.len() == 4).collect();
    for line in &lines {
        assert!(source.contains(&format!("\"{}\"", line[1])), "no such log line: {}", line[1]);
    }
    assert_eq!(lines.len(), emitted.iter().sum::<usize>(), "docs/metrics.md has a line for each");
}

fn fails() -> Fault {
    Fault::Refuse(Failure::new(FailureClass::Transient, "x"))
}

/// A store and a publisher that tell everything a relay can pass on.
#[derive(Debug, Default)]
struct Teller {
    has_failed: AtomicBool,
}

#[async_trait]
impl Store for Teller {
    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, StoreError> {
        if !self.has_failed.swap(true, Ordering::Relaxed) {
            return Err(StoreError::unavailable("the first claim fails"));
        }
        Ok(Claimed::new(Vec::new(), vec![LaneRead::ToEnd; request.lanes.len()]))
    }

    async fn settle(&self, _: &Settlements) -> Result<Settled, StoreError> {
        Ok(Settled::default())
    }

    async fn backlog(&self, _: &Pipeline, _: u64) -> Result<Option<Backlog>, StoreError> {
        let mut backlog = Backlog::default();
        backlog.table_bytes = vec![("live", 1)];
        Ok(Some(backlog))
    }
}

#[async_trait]
impl Publisher for Teller {
    async fn publish(&self, _: Batch) {}

    async fn abandon(&self) {}

    fn stats(&self) -> Vec<(&'static str, f64)> {
        vec![("queue_events", 0.0)]
    }
}

#[derive(Debug, Default)]
struct Seen {
    metrics: Mutex<Metrics>,
    gauges: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
}

impl Seen {
    fn note(&self, key: &Key, kind: &'static str) {
        let labels = key.labels().map(|label| label.key().to_owned()).collect();
        let before = self.metrics.lock().unwrap().insert(key.name().to_owned(), (kind, labels));
        let now = &self.metrics.lock().unwrap()[key.name()];
        assert!(before.is_none_or(|before| before == *now), "{key} changes its labels");
    }
}

impl Recorder for Seen {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        self.note(key, "counter");
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.note(key, "gauge");
        let mut gauges = self.gauges.lock().unwrap();
        Gauge::from_arc(gauges.entry(key.name().to_owned()).or_default().clone())
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        self.note(key, "histogram");
        Histogram::noop()
    }
}

fn metrics_of(page: &str) -> Metrics {
    rows(page)
        .filter(|row| row.len() == 6)
        .map(|row| {
            let kind = ["counter", "gauge", "histogram"].into_iter().find(|kind| *kind == row[1]);
            let labels = row[2].split_whitespace().map(unquoted).collect();
            (unquoted(row[0]), (kind.expect("counter, gauge or histogram"), labels))
        })
        .collect()
}

/// The rows of all tables, without their heads.
fn rows(page: &str) -> impl Iterator<Item = Vec<&str>> {
    let lines = page.lines().zip(page.lines().skip(1).chain([""]));
    lines
        .filter(|(line, next)| !line.starts_with("|--") && !next.starts_with("|--"))
        .filter_map(|(line, _)| line.strip_prefix('|')?.strip_suffix('|'))
        .map(|cells| cells.split('|').map(str::trim).collect())
}

fn unquoted(cell: &str) -> String {
    cell.trim_matches('`').to_owned()
}

/// The texts of all `pub const … = "outbox_…";`.
fn constants_of(source: &str) -> BTreeSet<String> {
    source
        .lines()
        .filter(|line| line.starts_with("pub const"))
        .filter_map(|line| line.split('"').nth(1))
        .map(str::to_owned)
        .collect()
}

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
