//! The relay's part in a rule: a worker that owns every lane.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::{
    ClaimRequest, Claimed, Dead, Delivered, Epoch, Event, EventId, LaneCursor, LaneId, NewEvent,
    Pipeline, Position, Retry, Settled, Settlements, Store, Worker,
};

use super::StoreHarness;

/// Longer than any rule takes.
pub(super) const LEASE: Duration = Duration::from_secs(600);

/// A retry that does not become due while a rule runs.
pub(super) const HOUR: Duration = Duration::from_secs(3600);

pub(super) struct Owner {
    pub(super) store: Arc<dyn Store>,
    pub(super) worker: Worker,
    pub(super) lanes: Vec<(LaneId, Epoch)>,
}

impl Owner {
    /// A worker of the pipeline `kit` that owns all lanes of the harness's store.
    pub(super) async fn new(harness: &dyn StoreHarness) -> Self {
        Self::on(harness.store(), pipeline()).await
    }

    /// A worker that has joined `pipeline`, has a lease and took every free lane.
    pub(super) async fn on(store: Arc<dyn Store>, pipeline: Pipeline) -> Self {
        let worker = Worker::new(pipeline, "conformance");
        let mut owner = Self { store, worker, lanes: Vec::new() };
        let count = owner.store.join(&owner.worker).await.expect("join works");
        owner.beat(LEASE).await;
        owner.acquire(count).await;
        owner
    }

    pub(super) async fn beat(&mut self, lease: Duration) -> outbox_core::Leases {
        let leases = self.store.heartbeat(&self.worker, lease).await.expect("heartbeat works");
        self.lanes = leases.lanes.iter().map(|owned| (owned.lane, owned.epoch)).collect();
        leases
    }

    pub(super) async fn acquire(&mut self, count: u16) {
        self.store.acquire(&self.worker, count).await.expect("acquire works");
        self.beat(LEASE).await;
    }

    /// A claim of everything from these lanes.
    pub(super) fn everything(&self) -> ClaimRequest {
        let cursor = |lane: LaneId| LaneCursor::new(lane, Position::MIN, Position::MAX, 10_000);
        let cursors = self.lanes.iter().map(|(lane, _)| cursor(*lane)).collect();
        ClaimRequest::new(self.worker.pipeline.clone(), cursors, 10_000, 64 << 20)
    }

    pub(super) async fn claim(&self, request: &ClaimRequest) -> Claimed {
        self.store.claim(request).await.expect("claim works")
    }

    /// Everything that can be claimed, in position order.
    pub(super) async fn events(&self) -> Vec<Event> {
        let mut events = self.claim(&self.everything()).await.events;
        events.sort_by_key(Event::position);
        events
    }

    /// The ids of everything that can be claimed, in position order.
    pub(super) async fn ids(&self) -> Vec<EventId> {
        ids(&self.events().await)
    }

    /// No verdict yet, on every lane.
    pub(super) fn settlements(&self) -> Settlements {
        let mut settlements = Settlements::new(self.worker.clone());
        settlements.lanes.clone_from(&self.lanes);
        settlements
    }

    pub(super) async fn settle(&self, fill: impl FnOnce(&mut Settlements)) -> Settled {
        let mut settlements = self.settlements();
        fill(&mut settlements);
        let settled = self.store.settle(&settlements).await.expect("settle works");
        assert_eq!(settled.held, all(&self.lanes), "the owner holds all its lanes");
        settled
    }

    pub(super) async fn deliver(&self, event: &Event) {
        let settled = self.settle(|it| it.delivered.push(delivered(event))).await;
        assert_eq!(settled.missing, 0, "{event:?} was there");
    }

    pub(super) async fn retry(&self, event: &Event, delay: Option<Duration>) {
        let settled = self.settle(|it| it.retries.push(retry(event, delay))).await;
        assert_eq!(settled.missing, 0, "{event:?} was there");
    }

    pub(super) async fn bury(&self, event: &Event) {
        let settled = self.settle(|it| it.dead.push(dead(event))).await;
        assert_eq!(settled.missing, 0, "{event:?} was there");
    }
}

pub(super) fn pipeline() -> Pipeline {
    Pipeline::new("kit").expect("a plain name")
}

pub(super) fn delivered(event: &Event) -> Delivered {
    Delivered::new(event.receipt(), "destination")
}

pub(super) fn retry(event: &Event, delay: Option<Duration>) -> Retry {
    Retry::new(event.receipt(), 1, delay, "not now")
}

pub(super) fn dead(event: &Event) -> Dead {
    Dead::new(event.receipt(), 3, "given up")
}

pub(super) fn all(lanes: &[(LaneId, Epoch)]) -> Vec<LaneId> {
    lanes.iter().map(|(lane, _)| *lane).collect()
}

pub(super) fn ids(events: &[Event]) -> Vec<EventId> {
    events.iter().map(|event| event.id().clone()).collect()
}

/// The ids of new events, in their order.
pub(super) fn ids_of(events: &[NewEvent]) -> Vec<EventId> {
    events.iter().map(|event| event.id().clone()).collect()
}

/// An event of this aggregate with a payload that every kind of column takes.
pub(super) fn event(aggregate: &str) -> NewEvent {
    event_of("order", aggregate)
}

pub(super) fn event_of(aggregate_type: &str, aggregate: &str) -> NewEvent {
    let builder = NewEvent::builder(aggregate_type, aggregate, "Created").payload("{}");
    builder.build().expect("within the limits")
}

/// One event for each of `count` aggregates: enough of them are spread over all lanes.
pub(super) fn spread(count: usize) -> Vec<NewEvent> {
    (0..count).map(|n| event(&format!("aggregate-{n}"))).collect()
}

/// Commits events in a transaction of their own.
pub(super) async fn commit(harness: &dyn StoreHarness, events: &[NewEvent]) {
    let mut transaction = harness.begin().await;
    transaction.append(events).await.expect("append works");
    transaction.commit().await;
}
