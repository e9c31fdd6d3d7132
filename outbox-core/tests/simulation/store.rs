//! The store as one relay process sees it: statements take their snapshot at a random moment, answer late, fail, or lose
//! their reply.

use std::future::Future;
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::memory::MemoryStore;
use outbox_core::{
    Backlog, Capabilities, ClaimRequest, Claimed, Event, LaneId, Leases, Pipeline, Position, Probe,
    Settled, Settlements, Store, StoreError, StoreErrorKind, Worker,
};

use super::ledger::{is_refused_by_the_database, number};
use super::world::{World, pass};

#[derive(Clone, Debug)]
pub(crate) struct SimStore {
    pub(crate) world: World,
    pub(crate) process: usize,
}

/// What goes wrong with a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// It is not applied.
    Fails,
    /// It is applied, but the answer is an error.
    LosesReply,
    /// It is applied, and there is no answer.
    Hangs,
    /// It is applied after its caller has given up.
    Zombie,
}

impl SimStore {
    /// Runs `work`, which takes effect at once when it is polled.
    async fn statement<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.world.thawed(self.process).await;
        let fault = self.fault();
        let longest = self.world.scenario().statement;
        let (before, after) = (self.world.delay(longest), self.world.delay(longest));
        if fault != Fault::None {
            self.world.tell(|| format!("r{} {name}: {fault:?}", self.process));
        }
        let failed = Err(StoreError::unavailable("simulated"));
        let result = match fault {
            Fault::None => {
                pass(before).await;
                work.await
            }
            Fault::Fails => {
                pass(before).await;
                failed
            }
            Fault::LosesReply => {
                pass(before).await;
                let _ = work.await;
                failed
            }
            Fault::Hangs => {
                pass(before).await;
                let _ = work.await;
                std::future::pending().await
            }
            Fault::Zombie => {
                let late = self.world.scenario().timing.statement_deadline + before;
                tokio::spawn(async move {
                    pass(late).await;
                    let _ = work.await;
                });
                std::future::pending().await
            }
        };
        pass(after).await;
        self.world.thawed(self.process).await;
        result
    }

    fn fault(&self) -> Fault {
        if !self.world.state().faults.statements || !self.world.chance(30) {
            return Fault::None;
        }
        let now = self.world.now();
        let deadline = self.world.scenario().timing.statement_deadline;
        let lease = self.world.scenario().timing.lease;
        let mut state = self.world.state();
        state.ledger.disrupted(now + deadline * 2 + lease);
        match state.rng.u32(..5) {
            0 | 1 => Fault::Fails,
            2 => Fault::LosesReply,
            3 => Fault::Hangs,
            _ => Fault::Zombie,
        }
    }

    /// Whether the database refuses this data: some events cannot be written while it is in that mood.
    fn rejects(&self, settlements: &Settlements) -> bool {
        let state = self.world.state();
        if !state.faults.rejects {
            return false;
        }
        let all = state.ledger.refuses_all;
        drop(state);
        let delivered = settlements.delivered.iter().map(|it| &it.receipt.id);
        let retries = settlements.retries.iter().map(|it| &it.receipt.id);
        let dead = settlements.dead.iter().map(|it| &it.receipt.id);
        delivered.chain(retries).chain(dead).any(|id| all || is_refused_by_the_database(number(id)))
    }
}

/// The rows that a claim goes through, whether it gives them or not.
fn looked_at(table: &MemoryStore, request: &ClaimRequest) -> usize {
    let is_in_range = |event: &Event| {
        request.lanes.iter().any(|cursor| {
            let is_above = cursor.from < event.position();
            cursor.lane == event.lane() && is_above && event.position() <= cursor.to
        })
    };
    table.pending().iter().filter(|event| is_in_range(event)).count()
}

#[async_trait]
impl Store for SimStore {
    fn capabilities(&self) -> Capabilities {
        self.world.store().capabilities()
    }

    async fn join(&self, worker: &Worker) -> Result<u16, StoreError> {
        let (store, worker) = (self.world.store().clone(), worker.clone());
        self.world.tell(|| format!("r{} join", self.process));
        self.statement("join", async move { store.join(&worker).await }).await
    }

    async fn heartbeat(&self, worker: &Worker, lease: Duration) -> Result<Leases, StoreError> {
        let (world, process, worker) = (self.world.clone(), self.process, worker.clone());
        let work = async move {
            let leases = world.store().heartbeat(&worker, lease).await;
            world.tell(|| format!("r{process} heartbeat {leases:?}"));
            leases
        };
        self.statement("heartbeat", work).await
    }

    async fn acquire(&self, worker: &Worker, count: u16) -> Result<(), StoreError> {
        let (world, process, worker) = (self.world.clone(), self.process, worker.clone());
        let work = async move {
            let acquired = world.store().acquire(&worker, count).await;
            world.tell(|| format!("r{process} acquire {count} {:?}", acquired.is_ok()));
            acquired
        };
        self.statement("acquire", work).await
    }

    async fn release(&self, worker: &Worker, lanes: &[LaneId]) -> Result<(), StoreError> {
        let (world, process) = (self.world.clone(), self.process);
        let (worker, lanes) = (worker.clone(), lanes.to_vec());
        let work = async move {
            world.tell(|| format!("r{process} release {lanes:?}"));
            world.store().release(&worker, &lanes).await
        };
        self.statement("release", work).await
    }

    async fn leave(&self, worker: &Worker) -> Result<(), StoreError> {
        let (world, process, worker) = (self.world.clone(), self.process, worker.clone());
        let work = async move {
            world.tell(|| format!("r{process} leave"));
            world.store().leave(&worker).await
        };
        self.statement("leave", work).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, StoreError> {
        let (world, process, request) = (self.world.clone(), self.process, request.clone());
        world.tell(|| {
            format!(
                "r{process} claim {:?} limit {} without {:?}",
                request.lanes, request.limit, request.exclude
            )
        });
        let work = async move {
            if looked_at(world.store(), &request) > world.scenario().look {
                world.tell(|| format!("r{process} looks at too much"));
                return Err(StoreError::unavailable("simulated: it takes too long"));
            }
            let mut claimed = world.store().claim(&request).await?;
            claimed.server = format!("server {}", world.state().server);
            world.tell(|| {
                let ids = claimed
                    .events
                    .iter()
                    .map(|event| format!("{}@{}", event.id(), event.position()));
                format!("r{process} sees {:?} {:?}", ids.collect::<Vec<_>>(), claimed.reads)
            });
            Ok(claimed)
        };
        self.statement("claim", work).await
    }

    async fn settle(&self, settlements: &Settlements) -> Result<Settled, StoreError> {
        if self.rejects(settlements) {
            let message = "simulated: this data is refused";
            return Err(StoreError::new(StoreErrorKind::Rejected, message));
        }
        let (world, process, settlements) = (self.world.clone(), self.process, settlements.clone());
        let work = async move {
            let settled = world.store().settle(&settlements).await?;
            world.tell(|| {
                let delivered = settlements.delivered.iter().map(|it| it.receipt.id.to_string());
                let retries = settlements
                    .retries
                    .iter()
                    .map(|it| format!("{} {} {:?}", it.receipt.id, it.attempts, it.delay));
                let dead = settlements.dead.iter().map(|it| it.receipt.id.to_string());
                format!(
                    "r{process} settles {:?} retries {:?} dead {:?} recovered {:?}: {settled:?}",
                    delivered.collect::<Vec<_>>(),
                    retries.collect::<Vec<_>>(),
                    dead.collect::<Vec<_>>(),
                    settlements.recovered
                )
            });
            let checked = world.state().ledger.settled(process, &settlements, &settled);
            world.check(checked);
            Ok(settled)
        };
        self.statement("settle", work).await
    }

    async fn probe(&self, after: Position) -> Result<Probe, StoreError> {
        let (world, process) = (self.world.clone(), self.process);
        let work = async move {
            let mut probe = world.store().probe(after).await?;
            probe.server = format!("server {}", world.state().server);
            world.tell(|| format!("r{process} probe {probe:?}"));
            Ok(probe)
        };
        self.statement("probe", work).await
    }

    async fn wait(&self) {
        if !self.world.scenario().bell {
            std::future::pending::<()>().await;
        }
        self.world.store().wait().await;
    }

    async fn backlog(&self, pipeline: &Pipeline, cap: u64) -> Result<Option<Backlog>, StoreError> {
        self.world.store().backlog(pipeline, cap).await
    }
}
