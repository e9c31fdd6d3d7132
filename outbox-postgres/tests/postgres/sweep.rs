//! The relay over a table that is full of rows which it cannot give.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_core::memory::MemoryPublisher;
use outbox_core::{
    Capabilities, ClaimRequest, Claimed, LaneId, Leases, Position, Probe, Relay, Settled,
    Settlements, Store, StoreError, Timing, Worker, async_trait,
};
use outbox_postgres::PostgresStore;

use crate::claim::dead_rows;
use crate::common::{Outbox, event};

const DEAD: u32 = 200_000;

/// No statement gets through more of them than this.
const PATIENCE: Position = 25_000;

/// B048, H074: nor do claims or sweeps that are too large stop the relay: both go on in parts, and what is written meanwhile
/// does not wait for either.
#[tokio::test]
async fn a_relay_gets_through_dead_rows_in_parts() {
    let outbox = Outbox::new().await;
    outbox.execute("alter table outbox set (autovacuum_enabled = off)").await;
    let _held = dead_rows(&outbox, DEAD).await;
    outbox.append(&[event("a", "1")]).await;

    let store = Arc::new(Impatient { store: outbox.store(), answered: Mutex::default() });
    let publisher = MemoryPublisher::new();
    let mut timing = Timing::default();
    timing.sweep = Duration::from_millis(100);
    let both = async {
        publisher.wait_for(1, Duration::from_secs(30)).await;
        // What was answered until now were claims.
        store.answered.lock().unwrap().clear();
        for written in 2.. {
            outbox.append(&[event("a", &written.to_string())]).await;
            publisher.wait_for(written, Duration::from_secs(2)).await;
            if store.swept() >= Position::from(DEAD) {
                break;
            }
            assert!(written < 1_000, "a sweep has come to {}", store.swept());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    Relay::new(store.clone(), Arc::new(publisher.clone()))
        .with_timing(timing)
        .run(both)
        .await
        .unwrap();
}

/// Gives no answer to what would take long, as if the server had run into its time-out.
#[derive(Debug)]
struct Impatient {
    store: PostgresStore,
    answered: Mutex<Vec<(Position, Position)>>,
}

impl Impatient {
    /// How far the parts from the beginning reach without a gap.
    fn swept(&self) -> Position {
        let mut reached = 0;
        for (from, to) in &*self.answered.lock().unwrap() {
            if *from <= reached {
                reached = reached.max(*to);
            }
        }
        reached
    }
}

#[async_trait]
impl Store for Impatient {
    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, StoreError> {
        let from = request.lanes.iter().map(|cursor| cursor.from).min().unwrap_or(0);
        let to = request
            .lanes
            .iter()
            .map(|cursor| cursor.to.min(Position::from(DEAD)))
            .max()
            .unwrap_or(0);
        if to - from.max(0) > PATIENCE {
            return Err(StoreError::unavailable("canceling statement due to statement timeout"));
        }
        // A sweep asks for no due rows.
        if request.lanes.iter().all(|cursor| cursor.read == Position::MIN)
            && request.lanes[0].to < Position::MAX
        {
            self.answered.lock().unwrap().push((from, to));
        }
        self.store.claim(request).await
    }

    async fn settle(&self, settlements: &Settlements) -> Result<Settled, StoreError> {
        self.store.settle(settlements).await
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn join(&self, worker: &Worker) -> Result<u16, StoreError> {
        self.store.join(worker).await
    }

    async fn heartbeat(&self, worker: &Worker, lease: Duration) -> Result<Leases, StoreError> {
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

    async fn probe(&self, after: Position) -> Result<Probe, StoreError> {
        self.store.probe(after).await
    }
}
