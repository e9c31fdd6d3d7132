//! Settling: verdicts become writes, one statement at a time.
//!
//! A settle that begins or ends a wait changes which rows a claim may see, so it runs while no claim is out, and no claim
//! starts before its reply. Settles of plainly delivered events overlap with claims freely.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::known::Handle;
use super::pipeline::{Pipeline, Reply};
use super::refused::Refused;
use super::verdict::Fate;
use crate::{
    Dead, Delivered, Epoch, LaneId, Retry, Settled, Settlements, StoreError, StoreErrorKind,
    cut_reason,
};

/// Verdicts on their way into the table.
#[derive(Debug, Default)]
pub(super) struct Settler {
    /// Delivered events that nothing waited for.
    plain: VecDeque<Judged>,
    /// Verdicts that begin or end a wait.
    waits: VecDeque<Judged>,
    /// Parts of a settle that failed as a whole: smaller and smaller, until the one bad event is known.
    pub(super) parts: VecDeque<Vec<Judged>>,
    pub(super) refused: Refused,
    out: Option<Writing>,
    last: Duration,
    not_before: Duration,
    failures: u32,
}

#[derive(Debug)]
struct Writing {
    judged: Vec<Judged>,
    lanes: Vec<(LaneId, Epoch)>,
    recovered: Vec<LaneId>,
    waits: bool,
}

/// An event and its verdict.
#[derive(Debug)]
pub(super) struct Judged {
    handle: Handle,
    settlement: Settlement,
    /// Whether it begins or ends a wait.
    waits: bool,
    /// Whether the database has refused it by itself.
    pub(super) refused: bool,
}

/// What a verdict does to its row: a database may refuse one and take another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Delivered,
    Waits,
    Dead,
}

impl Kind {
    pub(super) const COUNT: usize = 3;
}

#[derive(Debug)]
enum Settlement {
    Delivered(Arc<str>),
    Wait {
        attempts: u32,
        delay: Option<Duration>,
        reason: String,
    },
    Dead {
        attempts: u32,
        reason: String,
    },
    /// The attempt is written before the call: whoever dies with it has counted it.
    Charge {
        attempts: u32,
    },
}

const CRASH_SUSPECT: &str = "sent alone since relays died with this lane: counted before the call";

const NOT_SENT: &str = "counted before a call that did not take place";

impl Judged {
    pub(super) fn delivered(handle: Handle, destination: Arc<str>, ends_wait: bool) -> Self {
        Self {
            handle,
            settlement: Settlement::Delivered(destination),
            waits: ends_wait,
            refused: false,
        }
    }

    /// The attempt of this event is written before its call.
    pub(super) fn charge(handle: Handle, attempts: u32) -> Self {
        Self { handle, settlement: Settlement::Charge { attempts }, waits: true, refused: false }
    }

    /// The attempt was written, but its call will not take place.
    pub(super) fn take_back(handle: Handle, attempts: u32) -> Self {
        let (delay, reason) = (Some(Duration::ZERO), NOT_SENT.to_owned());
        Self {
            handle,
            settlement: Settlement::Wait { attempts, delay, reason },
            waits: true,
            refused: false,
        }
    }

    pub(super) fn failed(handle: Handle, fate: Fate, reason: &str) -> Self {
        let reason = cut_reason(reason);
        let settlement = match fate {
            Fate::Dead { attempts } => Settlement::Dead { attempts, reason },
            Fate::Wait { attempts, delay } => Settlement::Wait { attempts, delay, reason },
            Fate::Back => unreachable!("what goes back is not settled"),
        };
        // Even a dead letter: should it have waited, its successors are held back by the table.
        Self { handle, settlement, waits: true, refused: false }
    }
}

impl Judged {
    pub(super) fn handle(&self) -> Handle {
        self.handle
    }

    pub(super) fn kind(&self) -> Kind {
        match self.settlement {
            Settlement::Delivered(_) => Kind::Delivered,
            Settlement::Wait { .. } | Settlement::Charge { .. } => Kind::Waits,
            Settlement::Dead { .. } => Kind::Dead,
        }
    }

    pub(super) fn is_charge(&self) -> bool {
        matches!(self.settlement, Settlement::Charge { .. })
    }
}

impl Settler {
    pub(super) fn push(&mut self, judged: Judged) {
        let Some(judged) = self.refused.keep(judged) else { return };
        if judged.waits {
            self.waits.push_back(judged);
        } else {
            self.plain.push_back(judged);
        }
    }

    /// Takes out all verdicts of this kind that wait to be written.
    pub(super) fn take_kind(&mut self, kind: Kind) -> Vec<Judged> {
        let parts = std::mem::take(&mut self.parts).into_iter().flatten();
        let all =
            std::mem::take(&mut self.plain).into_iter().chain(std::mem::take(&mut self.waits));
        let (taken, others): (Vec<_>, Vec<_>) =
            parts.chain(all).partition(|judged| judged.kind() == kind);
        others.into_iter().for_each(|judged| self.push(judged));
        taken
    }

    pub(super) fn is_idle(&self) -> bool {
        self.out.is_none()
            && self.plain.is_empty()
            && self.waits.is_empty()
            && self.parts.is_empty()
    }

    /// Whether a settle is out.
    pub(super) fn is_writing(&self) -> bool {
        self.out.is_some()
    }

    /// Whether no claim may start: a settle that begins or ends a wait is out, or wants to be.
    pub(super) fn needs_quiet(&self) -> bool {
        !self.waits.is_empty()
            || self.out.as_ref().is_some_and(|out| out.waits)
            || self.parts.iter().any(|part| part.iter().any(|judged| judged.waits))
    }
}

impl Pipeline {
    /// Starts a settle if there is something to settle; else when to look again.
    pub(super) fn pump_settles(&mut self, now: Duration) -> Option<Duration> {
        self.pump_refused(now);
        if self.settler.out.is_some() {
            return None;
        }
        if now < self.settler.not_before {
            return Some(self.settler.not_before);
        }
        let recovered = self.recovered(now);
        loop {
            let judged = match self.next_settle(&recovered, now) {
                Ok(judged) => judged,
                Err(next) => return next,
            };
            // Nothing may be left of it, since lanes are lost and handed over.
            if self.start_settle(judged, recovered.clone(), now) {
                return None;
            }
        }
    }

    /// What to settle next; else when to look again.
    fn next_settle(
        &mut self,
        recovered: &[LaneId],
        now: Duration,
    ) -> Result<Vec<Judged>, Option<Duration>> {
        let quiet = !self.reader.is_claiming();
        let judged = match self.settler.parts.front() {
            Some(part) if quiet || !part.iter().any(|judged| judged.waits) => {
                self.settler.parts.pop_front().unwrap_or_default()
            }
            _ if quiet && !self.settler.waits.is_empty() => {
                let most = self.parts.limits.settle_events;
                let waits = self.settler.waits.len().min(most);
                let mut judged: Vec<Judged> = self.settler.waits.drain(..waits).collect();
                let room = most - judged.len();
                let plain = self.settler.plain.len().min(room);
                judged.extend(self.settler.plain.drain(..plain));
                judged
            }
            _ if !self.settler.plain.is_empty() => {
                let most = self.parts.limits.settle_events;
                let next = self.settler.last + self.parts.timing.settle_gap;
                let many = self.settler.plain.len() >= (most / 16).max(1);
                if !many && self.stopping.is_none() && now < next {
                    return Err(Some(next));
                }
                let plain = self.settler.plain.len().min(most);
                self.settler.plain.drain(..plain).collect()
            }
            _ if !recovered.is_empty() => Vec::new(),
            _ => return Err(None),
        };
        Ok(judged)
    }

    /// Starts a settle, unless nothing is left of it.
    fn start_settle(
        &mut self,
        mut judged: Vec<Judged>,
        recovered: Vec<LaneId>,
        now: Duration,
    ) -> bool {
        judged.retain(|judged| self.known.is_known(judged.handle));
        let mut settlements = Settlements::new(self.worker.clone());
        let mut lanes: BTreeMap<LaneId, Epoch> = BTreeMap::new();
        let touched = judged.iter().map(|judged| self.known.event(judged.handle).lane());
        for lane in touched.chain(recovered.iter().copied()) {
            if let Some(owned) = self.lanes.get(&lane) {
                lanes.insert(lane, owned.epoch);
            }
        }
        if lanes.is_empty() {
            return false;
        }
        for judged in &judged {
            let receipt = self.known.event(judged.handle).receipt();
            match &judged.settlement {
                Settlement::Delivered(destination) => {
                    let destination = destination.clone();
                    settlements.delivered.push(Delivered { receipt, destination });
                }
                Settlement::Wait { attempts, delay, reason } => {
                    let (attempts, delay, reason) = (*attempts, *delay, reason.clone());
                    settlements.retries.push(Retry { receipt, attempts, delay, reason });
                }
                Settlement::Charge { attempts } => {
                    let (attempts, delay) = (*attempts, Some(Duration::ZERO));
                    let reason = CRASH_SUSPECT.to_owned();
                    settlements.retries.push(Retry { receipt, attempts, delay, reason });
                }
                Settlement::Dead { attempts, reason } => {
                    let (attempts, reason) = (*attempts, reason.clone());
                    settlements.dead.push(Dead { receipt, attempts, reason });
                }
            }
        }
        settlements.lanes = lanes.iter().map(|(lane, epoch)| (*lane, *epoch)).collect();
        settlements.recovered.clone_from(&recovered);
        let waits = judged.iter().any(|judged| judged.waits);
        self.telemetry.settle_batch.record(judged.len() as f64);
        self.settler.last = now;
        self.settler.out =
            Some(Writing { judged, lanes: settlements.lanes.clone(), recovered, waits });
        let store = self.parts.store.clone();
        self.statement(async move { store.settle(&settlements).await }, Reply::Settled);
        true
    }

    pub(super) fn settled(
        &mut self,
        result: Result<Settled, StoreError>,
        now: Duration,
    ) -> Result<(), StoreError> {
        let Some(out) = self.settler.out.take() else { return Ok(()) };
        match result {
            Ok(settled) => {
                self.settler.failures = 0;
                self.written(&out.judged);
                self.apply(out, &settled, now);
            }
            Err(error) => {
                if error.kind() == StoreErrorKind::Rejected && !out.judged.is_empty() {
                    self.telemetry.store_error("settle", error.kind().as_str());
                    self.refused(out.judged, &error, now);
                    return Ok(());
                }
                self.store_failed("settle", &error);
                match error.kind() {
                    StoreErrorKind::Stale => return Err(error),
                    _ => {
                        self.settler.failures = self.settler.failures.saturating_add(1);
                        self.settler.not_before = now + self.outage_pause(self.settler.failures);
                        self.settler.parts.push_front(out.judged);
                    }
                }
            }
        }
        Ok(())
    }

    fn apply(&mut self, out: Writing, settled: &Settled, now: Duration) {
        if settled.missing > 0 {
            self.telemetry.settle_missing.increment(settled.missing);
        }
        for judged in out.judged {
            if self.known.is_known(judged.handle)
                && settled.held.contains(&self.known.event(judged.handle).lane())
            {
                self.apply_one(&judged, now);
            }
        }
        for lane in out.recovered.iter().filter(|lane| settled.held.contains(lane)) {
            if let Some(lane) = self.lanes.get_mut(lane) {
                lane.crashes = 0;
            }
        }
        for (lane, epoch) in out.lanes {
            let same = self.lanes.get(&lane).is_some_and(|owned| owned.epoch == epoch);
            if same && !settled.held.contains(&lane) {
                self.lose_lane(lane, "a settle was refused: the lane belongs to another worker");
            }
        }
    }

    fn apply_one(&mut self, judged: &Judged, now: Duration) {
        let handle = judged.handle;
        let event = self.known.event(handle);
        let (lane, position) = (event.lane(), event.position());
        let waited = event.is_waiting() || self.known.is_charged(handle);
        match &judged.settlement {
            Settlement::Charge { .. } => {
                self.known.evict_behind(handle);
                self.known.charged(handle);
                self.take_back_charge();
                return;
            }
            Settlement::Delivered(_) | Settlement::Dead { .. } => {
                self.outage.forget(position);
                if waited {
                    // What came into memory before those that were held back comes again behind them.
                    self.known.evict_behind(handle);
                    if let Some(lane) = self.lanes.get_mut(&lane) {
                        lane.rewind(position);
                    }
                    self.reader.look_now(now);
                }
            }
            Settlement::Wait { delay, .. } => {
                self.known.evict_behind(handle);
                if let Some(delay) = delay {
                    self.reader.look_at(now + *delay);
                }
            }
        }
        self.known.settled(handle);
        self.reader.settled(handle);
    }
}
