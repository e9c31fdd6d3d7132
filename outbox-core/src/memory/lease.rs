//! Who owns which lane of one pipeline.

use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use crate::{Epoch, LaneId, Leases, OwnedLane, StoreError, StoreErrorKind, TypeFilter};

/// Workers and lanes of one pipeline.
#[derive(Debug)]
pub(super) struct PipelineLeases {
    pub(super) types: TypeFilter,
    /// In the order in which they came: that is their rank.
    workers: Vec<WorkerLease>,
    lanes: Vec<Lane>,
}

/// The lease stands at the worker: a heartbeat extends it for all its lanes at once.
#[derive(Debug)]
struct WorkerLease {
    id: Uuid,
    until: Instant,
}

#[derive(Clone, Debug, Default)]
struct Lane {
    owner: Option<Uuid>,
    epoch: Epoch,
    crashes: u16,
}

impl PipelineLeases {
    pub(super) fn new(types: TypeFilter, lanes: u16) -> Self {
        Self { types, workers: Vec::new(), lanes: vec![Lane::default(); usize::from(lanes)] }
    }

    pub(super) fn has_live_workers(&self) -> bool {
        self.live().next().is_some()
    }

    pub(super) fn is_live(&self, id: Uuid) -> bool {
        self.live().any(|worker| worker.id == id)
    }

    /// Registers or extends. A worker whose lease ran out, but whom nobody has buried, has lost nothing.
    pub(super) fn heartbeat(&mut self, id: Uuid, lease: Duration) -> Leases {
        let until = Instant::now() + lease;
        match self.workers.iter_mut().find(|worker| worker.id == id) {
            Some(worker) => worker.until = until,
            None => self.workers.push(WorkerLease { id, until }),
        }
        let owned = self.lanes.iter().zip(0..).filter(|(lane, _)| lane.owner == Some(id));
        let owned =
            owned.map(|(row, lane)| OwnedLane { lane, epoch: row.epoch, crashes: row.crashes });
        let small = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
        Leases::new(
            owned.collect(),
            small(self.live().count()),
            small(self.live().take_while(|worker| worker.id != id).count()),
        )
    }

    /// Buries the others whose lease has run out, then takes free lanes: every change of owner raises the epoch.
    pub(super) fn acquire(&mut self, id: Uuid, count: u16) -> Result<(), StoreError> {
        if !self.workers.iter().any(|worker| worker.id == id) {
            let message = format!("worker {id} has no lease: it ran out and others have buried it");
            return Err(StoreError::new(StoreErrorKind::Stale, message));
        }
        let now = Instant::now();
        self.workers.retain(|worker| worker.id == id || worker.until > now);
        for lane in &mut self.lanes {
            if let Some(owner) = lane.owner
                && !self.workers.iter().any(|worker| worker.id == owner)
            {
                *lane = Lane { owner: None, epoch: lane.epoch + 1, crashes: lane.crashes + 1 };
            }
        }
        let free = self.lanes.iter_mut().filter(|lane| lane.owner.is_none());
        for lane in free.take(usize::from(count)) {
            lane.owner = Some(id);
            lane.epoch += 1;
        }
        Ok(())
    }

    pub(super) fn release(&mut self, id: Uuid, lanes: &[LaneId]) {
        for (row, lane) in self.lanes.iter_mut().zip(0..) {
            if row.owner == Some(id) && lanes.contains(&lane) {
                row.owner = None;
            }
        }
    }

    pub(super) fn leave(&mut self, id: Uuid) {
        for row in self.lanes.iter_mut().filter(|row| row.owner == Some(id)) {
            row.owner = None;
        }
        self.workers.retain(|worker| worker.id != id);
    }

    /// The fence of a settle: owner and epoch, whether or not the lease has run out meanwhile. As long as nobody has
    /// taken the lane, its owner may write.
    pub(super) fn owns(&self, id: Uuid, lane: LaneId, epoch: Epoch) -> bool {
        self.lanes
            .get(usize::from(lane))
            .is_some_and(|row| row.owner == Some(id) && row.epoch == epoch)
    }

    pub(super) fn recovered(&mut self, lane: LaneId) {
        if let Some(row) = self.lanes.get_mut(usize::from(lane)) {
            row.crashes = 0;
        }
    }

    fn live(&self) -> impl Iterator<Item = &WorkerLease> {
        let now = Instant::now();
        self.workers.iter().filter(move |worker| worker.until > now)
    }
}
