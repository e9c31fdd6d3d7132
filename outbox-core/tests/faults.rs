//! What goes wrong stays where it is: bad events, refusing destinations, panics, a silent broker, other pipelines.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use outbox_core::memory::{Fault, FaultRule, MemoryPublisher, MemoryStore};
use outbox_core::{
    Backlog, Capabilities, ClaimRequest, Claimed, Failure, FailureClass, LaneId, Leases, Limits,
    NewEvent, Pipeline, Position, Probe, Relay, RetryPolicies, RetryPolicy, Settled, Settlements,
    Store, StoreError, Timing, TypeFilter, Worker, Writer as _, async_trait,
};

const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(3600);

/// Covers B040, H043: an event that always fails costs the others nothing, and ends as a dead letter.
#[tokio::test(start_paused = true)]
async fn a_bad_event_does_not_slow_a_thousand_others() {
    let (store, publisher) = (MemoryStore::new(), MemoryPublisher::new());
    append(&store, "order", "poison", &["bad"]).await;
    for n in 0..1000 {
        append(&store, "order", &format!("a{n}"), &["good"]).await;
    }
    publisher.script(FaultRule::on_type("bad", refuse(FailureClass::Transient)));
    let running = async {
        publisher.wait_for(1000, SECOND).await;
        store.wait_until_nothing_pending(LONG).await;
    };
    relay(&store, &publisher).run(running).await.unwrap();
    assert_eq!(publisher.messages().len(), 1000);
    assert_eq!(store.dead()[0].event.attempts(), RetryPolicy::default().max_attempts);
    assert!(publisher.calls() < 50, "{} calls", publisher.calls());
}

/// Covers B044, H033: events that fail do not stand in the way of new ones.
#[tokio::test(start_paused = true)]
async fn failing_events_do_not_starve_new_ones() {
    let (store, publisher) = (MemoryStore::new(), MemoryPublisher::new());
    for n in 0..200 {
        append(&store, "order", &format!("b{n}"), &["bad"]).await;
    }
    publisher.script(FaultRule::on_type("bad", refuse(FailureClass::Transient)));
    let retry = RetryPolicy::default().with_delays(SECOND, SECOND).with_max_attempts(u32::MAX);
    let relay = relay(&store, &publisher)
        .with_limits(Limits::default().with_batch(50))
        .with_retry(RetryPolicies::new(retry));
    let running = async {
        tokio::time::sleep(20 * SECOND).await;
        for n in 0..200 {
            append(&store, "order", &format!("g{n}"), &["good"]).await;
        }
        publisher.wait_for(200, 2 * SECOND).await;
    };
    relay.run(running).await.unwrap();
    assert_eq!(store.pending().len(), 200);
}

/// Covers B094: only what failed is sent again.
#[tokio::test(start_paused = true)]
async fn of_a_call_only_what_failed_is_sent_again() {
    let (store, publisher) = (MemoryStore::new(), MemoryPublisher::new());
    for n in 0..10 {
        append(&store, "order", &format!("a{n}"), &[if n < 3 { "done" } else { "failed" }]).await;
    }
    publisher.script(FaultRule::on_type("failed", refuse(FailureClass::Transient)).times(7));
    relay(&store, &publisher).run(store.wait_until_nothing_pending(LONG)).await.unwrap();
    let attempts = publisher.messages().into_iter().map(|message| message.attempts());
    assert_eq!(attempts.collect::<Vec<_>>(), [0, 0, 0, 1, 1, 1, 1, 1, 1, 1]);
}

/// Covers B065: a destination that refuses holds its own events, for as long as it takes, and no others.
#[tokio::test(start_paused = true)]
async fn a_refusing_destination_stands_alone() {
    let (store, publisher) = (MemoryStore::new(), MemoryPublisher::new());
    for n in 0..100 {
        append(&store, "lost", &format!("a{n}"), &["x"]).await;
        append(&store, "found", &format!("a{n}"), &["x"]).await;
    }
    let lost = |message: &outbox_core::Message| message.destination().ends_with("lost");
    publisher.script(FaultRule::when(lost, refuse(FailureClass::Refused)));
    let running = async {
        publisher.wait_for(100, 2 * SECOND).await;
        assert_eq!(publisher.messages_to("outbox.event.found").len(), 100);
        tokio::time::sleep(600 * SECOND).await;
        assert!(store.dead().is_empty());
        assert!(store.pending().iter().all(|event| event.attempts() == 1));
        publisher.clear_script();
        publisher.wait_for(200, 70 * SECOND).await;
    };
    relay(&store, &publisher).run(running).await.unwrap();
}

/// Covers H044: a pipeline whose broker is down pauses alone.
#[tokio::test(start_paused = true)]
async fn an_outage_of_one_pipeline_leaves_the_other_alone() {
    let store = MemoryStore::new();
    let (up, down) = (MemoryPublisher::new(), MemoryPublisher::new());
    down.outage(true);
    for n in 0..100 {
        append(&store, "down", &format!("a{n}"), &["x"]).await;
        append(&store, "up", &format!("a{n}"), &["x"]).await;
    }
    let pipeline = |name: &str| {
        let types = TypeFilter::Only(BTreeSet::from([name.to_owned()]));
        Pipeline::with_types(name, types).unwrap()
    };
    let first = relay(&store, &up).with_pipeline(pipeline("up"));
    let second = relay(&store, &down).with_pipeline(pipeline("down"));
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let stopped = || {
        let mut stopped = stopped.clone();
        async move { drop(stopped.wait_for(|stop| *stop).await) }
    };
    let watching = async {
        up.wait_for(100, 2 * SECOND).await;
        tokio::time::sleep(LONG).await;
        assert_eq!(down.messages().len(), 0);
        down.outage(false);
        store.wait_until_nothing_pending(60 * SECOND).await;
        stop.send(true).unwrap();
    };
    let (first, second, ()) = tokio::join!(first.run(stopped()), second.run(stopped()), watching);
    first.unwrap();
    second.unwrap();
    assert!(down.messages().iter().all(|message| message.attempts() == 0));
}

/// Covers B037, H039: more relays do not try a failing event more often.
#[tokio::test(start_paused = true)]
async fn several_relays_try_a_failing_event_no_more_often_than_one() {
    let store = MemoryStore::new();
    append(&store, "order", "a", &["bad"]).await;
    let pause = 10 * SECOND;
    let retry = RetryPolicy::default().with_delays(pause, pause).with_max_attempts(100);
    let publishers: Vec<MemoryPublisher> = (0..8).map(|_| MemoryPublisher::new()).collect();
    let relays = publishers.iter().map(|publisher| {
        publisher.script(FaultRule::always(refuse(FailureClass::Transient)));
        let relay = relay(&store, publisher).with_retry(RetryPolicies::new(retry));
        tokio::spawn(relay.run(tokio::time::sleep(60 * SECOND)))
    });
    for relay in relays.collect::<Vec<_>>() {
        relay.await.unwrap().unwrap();
    }
    let tries: u64 = publishers.iter().map(MemoryPublisher::calls).sum();
    assert!((5..=7).contains(&tries), "{tries} tries in a minute, one every ten seconds");
}

/// Covers B067, H051: a publisher that panics costs its messages a second try, and nothing is counted.
#[tokio::test(start_paused = true)]
async fn a_publisher_that_panics_loses_nothing() {
    let (store, publisher) = (MemoryStore::new(), MemoryPublisher::new());
    for n in 0..10 {
        append(&store, "order", &format!("a{n}"), &["1", "2"]).await;
    }
    publisher.script(FaultRule::on_nth(5, Fault::Panic));
    relay(&store, &publisher).run(store.wait_until_nothing_pending(LONG)).await.unwrap();
    assert_eq!(ids(&publisher).len(), 20);
    assert!(publisher.messages().iter().all(|message| message.attempts() == 0));
}

/// Covers H046: silence is no confirmation and no failure: what was abandoned is sent again.
#[tokio::test(start_paused = true)]
async fn silence_is_neither_a_confirmation_nor_a_failure() {
    let (store, publisher) = (MemoryStore::new(), MemoryPublisher::new());
    append(&store, "order", "a", &["silent", "behind"]).await;
    publisher.script(FaultRule::on_type("silent", Fault::Silent).times(1));
    relay(&store, &publisher).run(store.wait_until_nothing_pending(LONG)).await.unwrap();
    let types: Vec<_> = publisher.messages().iter().map(|m| m.event_type().to_owned()).collect();
    assert_eq!(types, ["silent", "behind"]);
    assert!(store.dead().is_empty());
    assert!(publisher.abandoned() > 0);
}

/// Covers B061, B067, H052: a store that panics, before or after it has written, is waited out; nothing ends as
/// delivered that was not, and nothing is sent twice.
#[tokio::test(start_paused = true)]
async fn a_store_that_panics_is_waited_out() {
    let moments = [
        Moment::Heartbeat,
        Moment::Probe,
        Moment::Claim,
        Moment::BeforeSettle,
        Moment::AfterSettle,
    ];
    for moment in moments {
        let (store, publisher) = (MemoryStore::new(), MemoryPublisher::new());
        for n in 0..10 {
            append(&store, "order", &format!("a{n}"), &["1", "2", "3"]).await;
        }
        let brittle = Brittle::new(&store, Some(moment));
        Relay::new(brittle.clone(), Arc::new(publisher.clone()))
            .with_virtual_time()
            .run(store.wait_until_nothing_pending(LONG))
            .await
            .unwrap();
        assert!(brittle.panicked.load(Ordering::Relaxed), "{moment:?} was never reached");
        assert_eq!(publisher.messages().len(), 30, "{moment:?}");
        assert!(store.dead().is_empty(), "{moment:?}");
    }
}

/// Covers H052: a bell that broke once rings again; until then the relay polls.
#[tokio::test(start_paused = true)]
async fn a_bell_that_panics_once_is_heard_again() {
    let (store, publisher) = (MemoryStore::new(), MemoryPublisher::new());
    let brittle = Brittle::new(&store, Some(Moment::Wait));
    let mut timing = Timing::default();
    (timing.poll_max, timing.backlog) = (LONG, Duration::ZERO);
    let running = async {
        tokio::time::sleep(60 * SECOND).await;
        assert!(brittle.panicked.load(Ordering::Relaxed), "it never rang");
        append(&store, "order", "a", &["1"]).await;
        publisher.wait_for(1, SECOND).await;
    };
    Relay::new(brittle.clone(), Arc::new(publisher.clone()))
        .with_virtual_time()
        .with_timing(timing)
        .run(running)
        .await
        .unwrap();
}

/// Covers B259: after a standstill there is one heartbeat and one claim, not all that were missed.
#[tokio::test(start_paused = true)]
async fn what_was_missed_in_a_standstill_is_not_made_up_for() {
    let (store, publisher) = (MemoryStore::new(), MemoryPublisher::new());
    let counting = Brittle::new(&store, None);
    let running = async {
        tokio::time::sleep(60 * SECOND).await;
        tokio::time::advance(LONG).await;
        let before = counting.statements.load(Ordering::Relaxed);
        tokio::time::sleep(2 * SECOND).await;
        counting.statements.load(Ordering::Relaxed) - before
    };
    let mut after = 0;
    let relay = Relay::new(counting.clone(), Arc::new(publisher)).with_virtual_time();
    relay.run(async { after = running.await }).await.unwrap();
    assert!(after <= 20, "{after} statements in the two seconds after an hour's standstill");
}

/// Covers B248: as many rows as events, whatever they are.
#[tokio::test(start_paused = true)]
async fn as_many_events_arrive_as_were_appended() {
    let (store, publisher) = (MemoryStore::new(), MemoryPublisher::new());
    let event = |payload: Option<&'static [u8]>| {
        let builder = NewEvent::builder("order", "a", "x");
        let builder = match payload {
            Some(bytes) => builder.payload(bytes),
            None => builder,
        };
        builder.build().unwrap()
    };
    let mut transaction = store.begin();
    for slice in [&[None, Some(&b"x"[..])][..], &[None][..], &[Some(&b""[..]), None][..], &[][..]] {
        let events: Vec<NewEvent> = slice.iter().map(|payload| event(*payload)).collect();
        store.append(&mut transaction, &events).await.unwrap();
    }
    transaction.commit();
    relay(&store, &publisher).run(store.wait_until_nothing_pending(LONG)).await.unwrap();
    let payloads: Vec<_> =
        publisher.messages().iter().map(|m| m.payload().map(<[u8]>::to_vec)).collect();
    assert_eq!(payloads, [None, Some(b"x".to_vec()), None, Some(Vec::new()), None]);
}

fn relay(store: &MemoryStore, publisher: &MemoryPublisher) -> Relay {
    Relay::new(Arc::new(store.clone()), Arc::new(publisher.clone())).with_virtual_time()
}

async fn append(store: &MemoryStore, kind: &str, aggregate: &str, types: &[&str]) {
    let mut transaction = store.begin();
    let events: Vec<NewEvent> = types
        .iter()
        .map(|event_type| NewEvent::builder(kind, aggregate, *event_type).build().unwrap())
        .collect();
    store.append(&mut transaction, &events).await.unwrap();
    transaction.commit();
}

fn refuse(class: FailureClass) -> Fault {
    Fault::Refuse(Failure::new(class, "x"))
}

/// How often each event has arrived.
fn ids(publisher: &MemoryPublisher) -> BTreeMap<String, u32> {
    let mut ids = BTreeMap::new();
    for message in publisher.messages() {
        *ids.entry(message.id().to_string()).or_default() += 1;
    }
    ids
}

/// A memory store that counts the relay's statements, and panics once.
#[derive(Debug)]
struct Brittle {
    store: MemoryStore,
    panics: Option<Moment>,
    panicked: AtomicBool,
    statements: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Moment {
    Heartbeat,
    Probe,
    Claim,
    BeforeSettle,
    AfterSettle,
    Wait,
}

impl Brittle {
    fn new(store: &MemoryStore, panics: Option<Moment>) -> Arc<Self> {
        let (panicked, statements) = (AtomicBool::new(false), AtomicU64::new(0));
        Arc::new(Self { store: store.clone(), panics, panicked, statements })
    }

    fn step(&self, moment: Moment) {
        self.statements.fetch_add(1, Ordering::Relaxed);
        let panics = self.panics == Some(moment) && !self.panicked.swap(true, Ordering::Relaxed);
        assert!(!panics, "as the test wants it");
    }
}

#[async_trait]
impl Store for Brittle {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn join(&self, worker: &Worker) -> Result<u16, StoreError> {
        self.store.join(worker).await
    }

    async fn heartbeat(&self, worker: &Worker, lease: Duration) -> Result<Leases, StoreError> {
        self.step(Moment::Heartbeat);
        self.store.heartbeat(worker, lease).await
    }

    async fn acquire(&self, worker: &Worker, count: u16) -> Result<(), StoreError> {
        self.store.acquire(worker, count).await
    }

    async fn release(&self, worker: &Worker, lanes: &[LaneId]) -> Result<(), StoreError> {
        self.store.release(worker, lanes).await
    }

    async fn leave(&self, worker: &Worker) -> Result<(), StoreError> {
        self.store.leave(worker).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, StoreError> {
        self.step(Moment::Claim);
        self.store.claim(request).await
    }

    async fn settle(&self, settlements: &Settlements) -> Result<Settled, StoreError> {
        self.step(Moment::BeforeSettle);
        let settled = self.store.settle(settlements).await;
        self.step(Moment::AfterSettle);
        settled
    }

    async fn probe(&self, after: Position) -> Result<Probe, StoreError> {
        self.step(Moment::Probe);
        self.store.probe(after).await
    }

    async fn wait(&self) {
        let panics = self.panics == Some(Moment::Wait);
        assert!(!panics || self.panicked.swap(true, Ordering::Relaxed), "as the test wants it");
        self.store.wait().await;
    }

    async fn backlog(&self, pipeline: &Pipeline, cap: u64) -> Result<Option<Backlog>, StoreError> {
        self.store.backlog(pipeline, cap).await
    }
}
