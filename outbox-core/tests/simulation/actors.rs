//! Who acts: writers, relay processes, an operator.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use outbox_core::memory::MemoryTransaction;
use outbox_core::{Due, NewEvent, Pipeline, Relay, StoreError, TypeFilter, Writer as _};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::broker::SimBroker;
use super::ledger::Written;
use super::store::SimStore;
use super::world::{World, pass};

/// The aggregates that open transactions have locked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Locks(Arc<Mutex<BTreeSet<usize>>>);

const TYPES: [&str; 2] = ["order", "invoice"];

/// One transaction: it changes a few aggregates, so it has locked them, appends, and ends after a while.
pub(crate) async fn write(world: World, locks: Locks) {
    let mut wanted = Vec::new();
    let (fate, open_for) = {
        let mut state = world.state();
        for _ in 0..state.rng.usize(1..3) {
            let aggregate = state.rng.usize(..world.scenario().aggregates);
            if locks.0.lock().unwrap().insert(aggregate) {
                wanted.push(aggregate);
            }
        }
        let long = world.scenario().long_transactions && state.rng.u32(..8) == 0;
        let open_for = match state.rng.u32(..3) {
            0 => 0,
            _ if long => state.rng.u64(1000..4000),
            _ => state.rng.u64(..300),
        };
        (state.rng.u32(..10), Duration::from_millis(open_for))
    };
    let mut transaction = world.store().begin();
    for aggregate in &wanted {
        append(&world, &mut transaction, Some(*aggregate)).await;
    }
    if wanted.is_empty() || fate == 2 {
        append(&world, &mut transaction, None).await;
    }
    pass(open_for / 2).await;
    if fate == 0 {
        let savepoint = transaction.savepoint();
        for aggregate in &wanted {
            append(&world, &mut transaction, Some(*aggregate)).await;
        }
        transaction.rollback_to(savepoint);
    }
    if fate > 4 {
        for aggregate in &wanted {
            append(&world, &mut transaction, Some(*aggregate)).await;
        }
    }
    pass(open_for / 2).await;
    if fate == 1 {
        drop(transaction);
        world.tell(|| format!("writer of {wanted:?} rolls back"));
    } else {
        commit(&world, transaction);
    }
    let mut locked = locks.0.lock().unwrap();
    locked.retain(|aggregate| !wanted.contains(aggregate));
}

async fn append(world: &World, transaction: &mut MemoryTransaction, aggregate: Option<usize>) {
    let count = world.state().rng.usize(1..4);
    for _ in 0..count {
        let event = new_event(world, aggregate);
        world.tell(|| format!("writes {} of {aggregate:?} due {:?}", event.id(), event.due()));
        world.store().append(transaction, &[event]).await.unwrap();
    }
}

fn new_event(world: &World, aggregate: Option<usize>) -> NewEvent {
    let now = world.now();
    let mut state = world.state();
    let delay = (state.rng.u32(..8) == 0).then(|| Duration::from_millis(state.rng.u64(..2500)));
    let payload = match state.rng.u32(..8) {
        0 => None,
        1 => Some(Vec::new()),
        _ => Some((0..state.rng.usize(1..60)).map(|_| state.rng.u8(..)).collect()),
    };
    let header = state.rng.bool().then(|| ("tenant".to_owned(), state.rng.u32(..).to_string()));
    let written = Written {
        aggregate_type: TYPES[aggregate.map_or_else(|| state.rng.usize(..2), |it| it % 2)]
            .to_owned(),
        aggregate_id: aggregate.map(|aggregate| format!("a{aggregate}")),
        event_type: format!("T{}", state.rng.u32(..3)),
        payload: payload.clone(),
        headers: header.iter().cloned().collect(),
    };
    let id = state.ledger.written(written.clone(), delay.map(|delay| now + delay));
    let mut event = NewEvent::builder(
        written.aggregate_type,
        written.aggregate_id.clone().unwrap_or_default(),
        written.event_type,
    )
    .id(id);
    if written.aggregate_id.is_none() {
        event = event.unordered();
    }
    if let Some(payload) = payload {
        event = event.payload(payload);
    }
    if let Some((name, value)) = header {
        event = event.header(name, value);
    }
    if let Some(delay) = delay {
        event = event.due(Due::After(delay));
    }
    event.build().unwrap()
}

fn commit(world: &World, transaction: MemoryTransaction) {
    let mine: BTreeSet<_> = transaction.appended().iter().map(|event| event.id().clone()).collect();
    transaction.commit();
    // Some stores draw the position at the commit.
    let visible = world.store().pending().into_iter().filter(|event| mine.contains(event.id()));
    for event in visible {
        world.tell(|| {
            format!("commits {} at {} in lane {}", event.id(), event.position(), event.lane())
        });
        world.state().ledger.committed(&event);
    }
}

/// Decides on a dead letter or a blocked head.
pub(crate) fn operate(world: &World, discards: bool) {
    let chosen = {
        let mut state = world.state();
        let undecided = state.ledger.undecided();
        if undecided.is_empty() {
            return;
        }
        undecided[state.rng.usize(..undecided.len())]
    };
    let id = super::ledger::id(chosen);
    let discards = discards && world.chance(300);
    world.tell(|| format!("operator {} {id}", if discards { "discards" } else { "requeues" }));
    if discards {
        assert!(world.store().discard(&id));
        world.state().ledger.discarded(chosen);
    } else {
        assert!(world.store().requeue(&id));
        world.state().ledger.requeued(chosen);
    }
}

/// A relay process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) number: usize,
    pub(crate) pipeline: usize,
    broker: SimBroker,
    stop: Option<oneshot::Sender<()>>,
    run: JoinHandle<Result<(), StoreError>>,
}

impl Process {
    pub(crate) fn start(world: &World, number: usize, pipeline: usize) -> Self {
        let scenario = world.scenario();
        let broker = SimBroker::new(world.clone(), number);
        let store = SimStore { world: world.clone(), process: number };
        let name =
            Pipeline::with_types(&format!("p{pipeline}"), types(scenario.pipelines, pipeline));
        let relay = Relay::new(Arc::new(store), Arc::new(broker.clone()))
            .with_virtual_time()
            .with_pipeline(name.unwrap())
            .with_retry(scenario.retry())
            .with_limits(scenario.limits)
            .with_timing(scenario.timing);
        let (stop, stopped) = oneshot::channel::<()>();
        world.tell(|| format!("r{number} starts in pipeline {pipeline}"));
        let run = relay.run(async move {
            let _ = stopped.await;
        });
        let run =
            Freezable { world: world.clone(), process: number, run: Box::pin(run), thaw: None };
        Self { number, pipeline, broker, stop: Some(stop), run: tokio::spawn(run) }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.run.is_finished()
    }

    /// Ends at once, like a process: what is in the network may still arrive.
    pub(crate) fn kill(self, world: &World) {
        world.tell(|| format!("r{} is killed", self.number));
        let now = world.now();
        let lease = world.scenario().timing.lease;
        world.state().ledger.disrupted(now + lease * 2);
        world.state().ledger.over(self.number);
        self.run.abort();
        let network = world.delay(Duration::from_millis(500));
        tokio::spawn(async move {
            pass(network).await;
            self.broker.end();
        });
    }

    /// Asks for a clean stop and waits for it.
    pub(crate) async fn stop(mut self, world: &World) -> Result<(), String> {
        world.tell(|| format!("r{} is told to stop", self.number));
        drop(self.stop.take());
        let timing = world.scenario().timing;
        let bound = timing.shutdown_deadline + timing.publish_deadline + timing.lease * 2;
        match tokio::time::timeout(bound, &mut self.run).await {
            Ok(Ok(Ok(()))) => {
                self.broker.end();
                world.state().ledger.over(self.number);
                Ok(())
            }
            Ok(Ok(Err(error))) => Err(format!("r{} ended with: {error}", self.number)),
            Ok(Err(error)) => Err(format!("r{} ended with: {error}", self.number)),
            Err(_) => Err(format!("r{} does not stop", self.number)),
        }
    }
}

fn types(pipelines: usize, pipeline: usize) -> TypeFilter {
    let orders = BTreeSet::from(["order".to_owned()]);
    match (pipelines, pipeline) {
        (1, _) => TypeFilter::All,
        (_, 0) => TypeFilter::Only(orders),
        _ => TypeFilter::Except(orders),
    }
}

/// A process that can stand still.
struct Freezable<F> {
    world: World,
    process: usize,
    run: Pin<Box<F>>,
    thaw: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl<F: Future> Future for Freezable<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let frozen =
            self.world.state().frozen.iter().find(|one| one.0 == self.process).map(|it| it.1);
        if let Some(until) = frozen.filter(|until| *until > Instant::now()) {
            let thaw = self.thaw.insert(Box::pin(tokio::time::sleep_until(until)));
            if thaw.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
        self.thaw = None;
        self.run.as_mut().poll(context)
    }
}
