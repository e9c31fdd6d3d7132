//! Lanes: leases are extended, lanes taken and handed over, and lost without harm.

use std::collections::BTreeMap;
use std::time::Duration;

use super::careful::CAREFUL_AFTER;
use super::pipeline::{Pipeline, Reply};
use super::reading::Lane;
use super::sharing::fair_share;
use crate::{Epoch, LaneId, Leases, StoreError, StoreErrorKind};

/// When the lease was extended, and when it is next.
#[derive(Debug)]
pub(super) struct Keeper {
    next: Duration,
    out: bool,
    /// A worker that owns less than its share asks for lanes no more often than [`HUNGRY`].
    next_acquire: Duration,
    /// The end of the lease, counted from before the heartbeat was sent.
    until: Duration,
    /// Whether the last heartbeat was answered in time: after a gap nobody is buried in the first round.
    steady: bool,
    /// Until when each lane that leaves may wait for its open messages.
    patience: BTreeMap<LaneId, Duration>,
    /// Lanes given back, and the epoch under which they were ours: a heartbeat that was on its way may still list them.
    given: BTreeMap<LaneId, Epoch>,
    /// How often a lane was taken.
    takings: u64,
}

/// A worker that owns less than its share asks again this soon.
const HUNGRY: Duration = Duration::from_secs(1);

impl Keeper {
    pub(super) fn new(now: Duration) -> Self {
        Self {
            next: now,
            out: false,
            next_acquire: now,
            until: now,
            steady: true,
            patience: BTreeMap::new(),
            given: BTreeMap::new(),
            takings: 0,
        }
    }
}

impl Pipeline {
    pub(super) fn lease_left(&self, now: Duration) -> Duration {
        self.keeper.until.saturating_sub(now)
    }

    /// Extends the lease when it is time, gives up what ran out, hands over what is drained.
    pub(super) fn pump_leases(&mut self, now: Duration) -> Option<Duration> {
        if !self.lanes.is_empty() && now + self.parts.timing.margin() / 2 >= self.keeper.until {
            let lanes: Vec<LaneId> = self.lanes.keys().copied().collect();
            for lane in lanes {
                self.lose_lane(lane, "the lease could not be extended in time");
            }
            self.keeper.steady = false;
        }
        self.hand_over(now);
        if !self.keeper.out && now >= self.keeper.next {
            self.keeper.out = true;
            let (store, worker) = (self.parts.store.clone(), self.worker.clone());
            let lease = self.parts.timing.lease;
            let beat = async move { store.heartbeat(&worker, lease).await };
            self.statement(beat, move |result| Reply::Leases(now, result));
        }
        (!self.keeper.out).then_some(self.keeper.next)
    }

    pub(super) fn leases(
        &mut self,
        asked: Duration,
        result: Result<Leases, StoreError>,
        now: Duration,
    ) -> Result<(), StoreError> {
        self.keeper.out = false;
        let timing = self.parts.timing;
        let leases = match result {
            Ok(leases) => leases,
            Err(error) => {
                self.store_failed("heartbeat", &error);
                if error.kind() == StoreErrorKind::Stale {
                    return Err(error);
                }
                self.keeper.next = now + (timing.heartbeat / 4).min(HUNGRY);
                return Ok(());
            }
        };
        self.keeper.next = asked + timing.heartbeat;
        self.keeper.until = asked + timing.lease;
        self.telemetry.monitor.tell(|report| report.failure = None);
        self.adopt(&leases, now);
        let steady = std::mem::replace(&mut self.keeper.steady, true);
        let share = fair_share(self.lane_count, &leases);
        let owned = u16::try_from(self.lanes.len()).unwrap_or(u16::MAX);
        if owned > share {
            self.leave_lanes(owned - share);
        } else if owned < share && self.stopping.is_none() {
            self.keeper.next = self.keeper.next.min(now + HUNGRY);
            if steady && now >= self.keeper.next_acquire {
                self.keeper.out = true;
                self.keeper.next_acquire = now + HUNGRY;
                let (store, worker) = (self.parts.store.clone(), self.worker.clone());
                let count = share - owned;
                let acquire = async move { store.acquire(&worker, count).await };
                self.statement(acquire, Reply::Acquired);
            }
        }
        Ok(())
    }

    /// The heartbeat's list is the truth.
    fn adopt(&mut self, leases: &Leases, now: Duration) {
        let gone: Vec<LaneId> = self
            .lanes
            .iter()
            .filter(|(id, lane)| {
                !leases.lanes.iter().any(|owned| owned.lane == **id && owned.epoch == lane.epoch)
            })
            .map(|(id, _)| *id)
            .collect();
        for lane in gone {
            self.lose_lane(lane, "the lane belongs to another worker");
        }
        if self.stopping.is_some() {
            return;
        }
        let pipeline = self.worker.pipeline.name();
        for owned in &leases.lanes {
            if self.keeper.given.get(&owned.lane).is_some_and(|given| owned.epoch <= *given) {
                continue;
            }
            self.lanes.entry(owned.lane).or_insert_with(|| {
                self.telemetry.lease_changed("taken");
                self.reader.look_now(now);
                tracing::debug!(pipeline, lane = owned.lane, epoch = owned.epoch, "lane taken");
                if owned.crashes >= CAREFUL_AFTER {
                    tracing::warn!(pipeline, lane = owned.lane, crashes = owned.crashes,
                        "owners of this lane died one after another: its events are sent one at a time");
                }
                self.keeper.takings += 1;
                Lane::new(*owned, self.keeper.takings)
            });
        }
        self.telemetry.lanes_owned(self.lanes.len());
    }

    pub(super) fn acquired(
        &mut self,
        result: Result<(), StoreError>,
        now: Duration,
    ) -> Result<(), StoreError> {
        self.keeper.out = false;
        match result {
            Ok(()) => {
                // What was taken, if anything, the next heartbeat tells.
                self.keeper.next = self.keeper.next.min(now + ACQUIRED);
            }
            Err(error) => {
                self.store_failed("acquire", &error);
                if error.kind() == StoreErrorKind::Stale {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Begins to hand over `count` lanes: nothing new of them is started.
    fn leave_lanes(&mut self, count: u16) {
        let staying = self.lanes.values().filter(|lane| !lane.leaving).count();
        let leaving = self.lanes.len() - staying;
        let more = usize::from(count).saturating_sub(leaving);
        let chosen: Vec<LaneId> = self
            .lanes
            .iter()
            .rev()
            .filter(|(_, lane)| !lane.leaving)
            .map(|(id, _)| *id)
            .take(more)
            .collect();
        for id in chosen {
            if let Some(lane) = self.lanes.get_mut(&id) {
                lane.leaving = true;
            }
            self.take_back_charge();
            self.known.drop_queued(id);
        }
    }

    /// Gives back the lanes that leave and of which nothing is on its way any more.
    fn hand_over(&mut self, now: Duration) {
        let ids: Vec<LaneId> =
            self.lanes.iter().filter(|(_, lane)| lane.leaving).map(|(id, _)| *id).collect();
        self.keeper.patience.retain(|id, _| ids.contains(id));
        for id in &ids {
            // What failed or was judged meanwhile comes back into the queue; what cannot be settled is left to the next owner.
            self.known.drop_queued(*id);
            self.drop_refused(*id);
            let patience = now + self.parts.timing.publish_deadline;
            let deadline = *self.keeper.patience.entry(*id).or_insert(patience);
            if now >= deadline && self.has_open(*id) && !self.calls.is_abandoning() {
                self.abandon("a lane with open messages is handed over");
            }
        }
        let drained: Vec<LaneId> =
            ids.into_iter().filter(|id| self.known.unsettled_of(*id) == 0).collect();
        if drained.is_empty() {
            return;
        }
        for id in &drained {
            self.known.drop_lane(*id);
            if let Some(lane) = self.lanes.remove(id) {
                self.keeper.given.insert(*id, lane.epoch);
            }
            self.telemetry.lease_changed("given");
        }
        self.telemetry.lanes_owned(self.lanes.len());
        let (store, worker) = (self.parts.store.clone(), self.worker.clone());
        self.statement(async move { store.release(&worker, &drained).await }, Reply::Released);
    }

    pub(super) fn released(&mut self, result: Result<(), StoreError>, now: Duration) {
        if let Err(error) = result {
            self.store_failed("release", &error);
            // The next heartbeat shows them again, and they leave again.
            self.keeper.given.clear();
            self.keeper.next = self.keeper.next.min(now + HUNGRY);
        }
    }

    /// The lane is another's, or will be: nothing of it is settled or sent by us any more.
    pub(super) fn lose_lane(&mut self, lane: LaneId, why: &str) {
        let open = self.has_open(lane);
        if self.lanes.remove(&lane).is_none() {
            return;
        }
        let pipeline = self.worker.pipeline.name();
        tracing::warn!(pipeline, lane, open, why, "lane lost: its open events may come twice");
        self.telemetry.leases_lost.increment(1);
        self.telemetry.lanes_owned(self.lanes.len());
        self.drop_refused(lane);
        self.known.drop_lane(lane);
        if open && !self.calls.is_abandoning() {
            self.abandon("a lane with open messages was lost");
        }
    }
}

/// After lanes were taken the list is read this soon.
const ACQUIRED: Duration = Duration::from_millis(1);
