//! Reading: probes, claims and sweeps, one statement at a time.

use std::time::Duration;

use super::config::Timing;
use super::known::{Handle, Stage};
use super::pipeline::{Pipeline, Reply};
use super::reading::{self, Lane};
use super::watermark::Aside;
use crate::hint::Hint;
use crate::store::LaneRead;
use crate::{
    ClaimRequest, Claimed, Epoch, Event, LaneCursor, LaneId, Position, Probe, StoreError,
    Watermark as Mode, headers,
};

/// When to read next, and what is being read.
#[derive(Debug)]
pub(super) struct Reader {
    out: Out,
    next: Duration,
    pause: Duration,
    /// Until when a writer of this process may be about to commit.
    expecting: Duration,
    next_probe: Duration,
    next_sweep: Duration,
    /// Claims failed in a row.
    failures: u32,
    /// Where the lanes' turn begins in the next claim.
    turn: usize,
    /// What the last claim was answered by.
    server: String,
    /// Whether claims tell their snapshot.
    snapshots: bool,
    /// Average size of an event, for the byte budget.
    event_bytes: usize,
    /// Settled since the last claim started: that claim may still bring them.
    settled: Vec<Handle>,
    bell_out: bool,
}

#[derive(Debug)]
enum Out {
    Nothing,
    Probe,
    Claim(ClaimOut),
}

/// What was known when a claim started.
#[derive(Debug)]
struct ClaimOut {
    sweep: bool,
    lanes: Vec<(LaneCursor, Epoch)>,
    safe: Position,
    top: Position,
    aside: Vec<Aside>,
    /// Settled before it started: when it has returned, nothing can bring them again.
    forget: Vec<Handle>,
    started: Duration,
}

/// Aggregates to choose a probe from while the destination is down.
const PROBES: usize = 3;

impl Reader {
    pub(super) fn new(now: Duration, timing: &Timing) -> Self {
        Self {
            out: Out::Nothing,
            next: now,
            pause: timing.poll_min,
            expecting: Duration::ZERO,
            next_probe: now,
            next_sweep: now + timing.sweep,
            failures: 0,
            turn: 0,
            server: String::new(),
            snapshots: false,
            event_bytes: 512,
            settled: Vec::new(),
            bell_out: false,
        }
    }

    /// Whether a claim is out, so that no settle may begin or end a wait.
    pub(super) fn is_claiming(&self) -> bool {
        matches!(self.out, Out::Claim(_))
    }

    /// There is something new.
    pub(super) fn look_now(&mut self, now: Duration) {
        self.next = now;
        self.pause = Duration::ZERO;
    }

    /// There will be something new soon.
    pub(super) fn look_often(&mut self, now: Duration) {
        self.expecting = now + Hint::ARMED_FOR;
        self.look_now(now);
    }

    pub(super) fn bell(&mut self, now: Duration) {
        self.bell_out = false;
        self.look_now(now);
    }

    /// Something becomes due at this time.
    pub(super) fn look_at(&mut self, due: Duration) {
        self.next = self.next.min(due);
    }

    /// The event is settled; the next claim but one cannot bring it.
    pub(super) fn settled(&mut self, handle: Handle) {
        self.settled.push(handle);
    }
}

impl Pipeline {
    /// Starts the next statement of the reader if it may; else when to look again, unless an answer comes first.
    pub(super) fn pump_reader(&mut self, now: Duration) -> Option<Duration> {
        self.ring_bell();
        let waits_for_answer = !matches!(self.reader.out, Out::Nothing)
            || self.stopping.is_some()
            || self.settler.needs_quiet()
            || self.calls.is_abandoning()
            || !self.lanes.iter().any(|(id, lane)| self.has_room(*id, lane));
        if waits_for_answer {
            return None;
        }
        if now < self.reader.next {
            return Some(self.reader.next);
        }
        // To probe with, a few aggregates are enough while the destination is down; with one alone nobody would learn
        // whether it is the destination that fails or this event.
        if self.outage.is_down() && self.known.ready_len() >= PROBES {
            return self.outage.paused_until(now);
        }
        let limit = self.claim_limit()?;
        if self.watermark_is_probed() && now >= self.reader.next_probe {
            let (store, top) = (self.parts.store.clone(), self.watermark.top());
            self.reader.out = Out::Probe;
            self.statement(async move { store.probe(top).await }, Reply::Probed);
            return None;
        }
        self.start_claim(limit, now);
        None
    }

    fn ring_bell(&mut self) {
        if !self.reader.bell_out && self.stopping.is_none() {
            self.reader.bell_out = true;
            let store = self.parts.store.clone();
            self.task(async move {
                store.wait().await;
                Reply::Bell
            });
        }
    }

    pub(super) fn watermark_is_probed(&self) -> bool {
        self.parts.store.capabilities().watermark != Mode::None
    }

    /// How many events may come; `None` while the window has no room worth a claim.
    fn claim_limit(&self) -> Option<u32> {
        let limits = &self.parts.limits;
        let unsettled = self.known.unsettled();
        let room = limits.window_events.saturating_sub(unsettled);
        let bytes = limits.window_bytes.saturating_sub(self.known.bytes());
        let by_bytes = bytes.min(limits.claim_bytes) / self.reader.event_bytes.max(1);
        let limit = limits.claim_events.min(room).min(by_bytes.max(usize::from(unsettled == 0)));
        let worthwhile = limits.claim_events.min(limits.window_events) / 4;
        (limit > 0 && (limit >= worthwhile || unsettled == 0 || by_bytes < worthwhile))
            .then(|| u32::try_from(limit).unwrap_or(u32::MAX))
    }

    /// Whether a claim asks this lane: one whose aggregates stand still may not fill the window and stop all others.
    fn has_room(&self, id: LaneId, lane: &Lane) -> bool {
        let share = if self.lanes.len() > 1 { 2 } else { 1 };
        !lane.leaving && self.known.unsettled_of(id) * share < self.parts.limits.window_events
    }

    fn start_claim(&mut self, limit: u32, now: Duration) {
        let sweep = self.watermark_is_probed() && now >= self.reader.next_sweep;
        let take = reading::takes(&self.lanes, limit);
        let mut cursors: Vec<(LaneCursor, Epoch)> = self
            .lanes
            .iter()
            .filter(|(id, lane)| self.has_room(**id, lane))
            .map(|(id, lane)| (cursor(*id, lane, take, sweep), lane.epoch))
            .collect();
        self.reader.turn = (self.reader.turn + 1) % cursors.len();
        cursors.rotate_left(self.reader.turn);
        let exclude = self.excluded(sweep);
        let lanes = cursors.iter().map(|(cursor, _)| *cursor).collect();
        let request = ClaimRequest::new(
            self.worker.pipeline.clone(),
            lanes,
            limit,
            self.parts.limits.claim_bytes,
        )
        .excluding(exclude);
        self.reader.out = Out::Claim(ClaimOut {
            sweep,
            lanes: cursors,
            safe: self.watermark.safe(),
            // Without probes nothing tells how far the table goes; but behind its end there is nothing.
            top: if self.watermark_is_probed() { self.watermark.top() } else { Position::MAX },
            aside: self.watermark.aside(),
            forget: std::mem::take(&mut self.reader.settled),
            started: now,
        });
        let store = self.parts.store.clone();
        self.statement(async move { store.claim(&request).await }, Reply::Claimed);
    }

    /// What is known at or above where the claim starts, and everything that waits.
    fn excluded(&self, sweep: bool) -> Vec<Position> {
        let from = |lane: LaneId| match self.lanes.get(&lane) {
            Some(lane) if !sweep => lane.from(),
            _ => 0,
        };
        // While nobody writes, a claim starts above all that is known: the whole window need not be looked through.
        if !self.known.reaches_above(from) {
            return Vec::new();
        }
        self.known
            .iter()
            .filter(|(_, event, _)| event.is_waiting() || event.position() > from(event.lane()))
            .map(|(_, event, _)| event.position())
            .collect()
    }

    pub(super) fn probed(&mut self, result: Result<Probe, StoreError>, now: Duration) {
        self.reader.out = Out::Nothing;
        let timing = self.parts.timing;
        match result {
            Ok(probe) => {
                if self.is_other_server(&probe.server) {
                    self.forget_reading();
                }
                self.reader.failures = 0;
                self.watermark.observe(&probe, now, self.reader.snapshots);
                for lane in self.lanes.values_mut().filter(|lane| lane.inherited.is_none()) {
                    lane.inherited = Some(probe.top);
                }
                let idle = self.known.unsettled() == 0 && self.reader.pause >= timing.poll_max;
                self.reader.next_probe = now + timing.probe * if idle { 20 } else { 1 };
            }
            Err(error) => {
                self.store_failed("probe", &error);
                self.read_later(now);
            }
        }
    }

    pub(super) fn claimed(&mut self, result: Result<Claimed, StoreError>, now: Duration) {
        let Out::Claim(out) = std::mem::replace(&mut self.reader.out, Out::Nothing) else { return };
        let claimed = match result {
            Ok(claimed) => claimed,
            Err(error) => {
                self.store_failed("claim", &error);
                self.reader.settled.extend(out.forget);
                self.read_later(now);
                return;
            }
        };
        self.reader.failures = 0;
        self.reader.snapshots = claimed.snapshot.is_some();
        self.calls.set_database_clock(claimed.now_micros, now);
        if self.is_other_server(&claimed.server) || !self.may_believe(&out, &claimed) {
            self.reader.settled.extend(out.forget);
            self.reader.look_now(now);
            return;
        }
        let found = self.admit(&out, claimed);
        for handle in &out.forget {
            if self.known.is_known(*handle) && self.known.stage(*handle) == Stage::Settled {
                self.known.forget(*handle);
            }
        }
        self.schedule(&out, found, now);
    }

    /// Another server, or the same one after a restart: positions may mean something else there.
    fn is_other_server(&mut self, server: &str) -> bool {
        if server.is_empty() || self.reader.server == server {
            return false;
        }
        let other = !self.reader.server.is_empty();
        server.clone_into(&mut self.reader.server);
        if other {
            let pipeline = self.worker.pipeline.name();
            tracing::warn!(pipeline, server, "another database server answers: reading anew");
            self.forget_reading();
        }
        other
    }

    fn forget_reading(&mut self) {
        self.watermark.reset();
        self.lanes.values_mut().for_each(Lane::restart);
    }

    /// Whether the claim missed every writer that was set aside when it started. If one of them has ended, its rows have
    /// appeared where nobody looks any more: reading goes back to there first.
    fn may_believe(&mut self, out: &ClaimOut, claimed: &Claimed) -> bool {
        if out.aside.is_empty() {
            return true;
        }
        let stood = match &claimed.snapshot {
            Some(snapshot) => self.watermark.returned(&out.aside, snapshot),
            None => out.aside.iter().map(|aside| aside.stood).min(),
        };
        let Some(stood) = stood else { return true };
        // A claim from at or below there has read, or will read on, through everything that has appeared. A sweep has too
        // as far as it went, but nobody reads on from where it ended.
        let reads_on = out.lanes.iter().all(|(cursor, _)| cursor.from <= stood);
        let asked = |id: LaneId| out.lanes.iter().any(|(cursor, _)| cursor.lane == id);
        for (id, lane) in &mut self.lanes {
            if out.sweep || !reads_on || !asked(*id) {
                lane.distrust(stood);
            }
        }
        reads_on
    }

    /// Takes in what is new of lanes that are still owned under the same epoch. Returns how many events that were.
    fn admit(&mut self, out: &ClaimOut, claimed: Claimed) -> usize {
        let mut last: Vec<Position> = out.lanes.iter().map(|(cursor, _)| cursor.from).collect();
        let mut new = Vec::with_capacity(claimed.events.len());
        for event in claimed.events {
            let at = out.lanes.iter().position(|(cursor, epoch)| {
                cursor.lane == event.lane()
                    && self
                        .lanes
                        .get(&cursor.lane)
                        .is_some_and(|lane| lane.epoch == *epoch && !lane.leaving)
            });
            let Some(at) = at else { continue };
            if !event.is_waiting() {
                last[at] = last[at].max(event.position());
            } else if !event.holds_aggregate() && claimed.reads[at].is_short_of(event.position()) {
                // A scheduled event that became visible late, like predecessors of it that did not fit: they go first.
                self.lanes.entry(event.lane()).and_modify(|lane| lane.rewind(event.position()));
                continue;
            }
            if !self.known.contains(event.position()) {
                if out.sweep && !event.is_waiting() {
                    self.check_late(&event);
                }
                new.push(event);
            }
        }
        let probed = self.watermark_is_probed();
        for (((cursor, epoch), read), last) in out.lanes.iter().zip(&claimed.reads).zip(last) {
            if let Some(lane) = self.lanes.get_mut(&cursor.lane)
                && lane.epoch == *epoch
                && !out.sweep
            {
                lane.advance(*read, last, out.safe, out.top);
                if !probed && *read == LaneRead::ToEnd {
                    lane.inherited.get_or_insert(lane.read);
                }
            }
        }
        let found = new.len();
        let bytes: usize = new.iter().map(Event::size).sum();
        if let Some(average) = bytes.checked_div(found) {
            self.reader.event_bytes = (self.reader.event_bytes * 3 + average) / 4;
            self.telemetry.claim_batch.record(found as f64);
            self.known.begin_claim();
        }
        for event in new {
            self.take_on(event);
        }
        found
    }

    /// An event that a sweep found where nothing could appear any more: an assumption was wrong (a position that was not
    /// drawn from the sequence), or an operator has ended a wait by hand.
    fn check_late(&mut self, event: &Event) {
        let Some(lane) = self.lanes.get_mut(&event.lane()) else { return };
        let (position, covered) = (event.position(), lane.covered);
        if position <= lane.read {
            lane.distrust(position - 1);
        }
        if position <= covered {
            self.telemetry.late_rows.increment(1);
            let pipeline = self.worker.pipeline.name();
            tracing::warn!(pipeline, position, covered, id = %event.id(),
                "the sweep found an event that no claim would have found");
        }
    }

    fn take_on(&mut self, event: Event) {
        let fault = event.fault().map(str::to_owned);
        let headers = event.headers().filter(|_| fault.is_none());
        let headers = headers.and_then(|json| headers::for_each(json, &mut |_, _| {}).err());
        let handle = self.known.insert(event);
        if let Some(fault) = fault {
            self.bury_unreadable(handle, &fault);
        } else if let Some(reason) = headers.map(|error| error.to_string()) {
            self.condemn_queued(handle, crate::FailureClass::Permanent, &reason);
        }
    }

    fn schedule(&mut self, out: &ClaimOut, found: usize, now: Duration) {
        let timing = self.parts.timing;
        if out.sweep {
            let took = now.saturating_sub(out.started);
            let idle = found == 0 && self.known.unsettled() == 0;
            let every = timing.sweep * if idle { 6 } else { 1 };
            self.reader.next_sweep = now + every.max(took * 50);
            self.reader.next = now;
            return;
        }
        let hungry = self.lanes.iter().any(|(id, lane)| lane.hungry && self.has_room(*id, lane));
        self.reader.pause = if found > 0 || now < self.reader.expecting {
            timing.poll_min
        } else {
            (self.reader.pause * 2).clamp(timing.poll_min, timing.poll_max)
        };
        // Relays that started together do not stay together.
        let jitter = if timing.poll_min == timing.poll_max { 0.0 } else { fastrand::f64() * 0.1 };
        let pause = self.reader.pause.mul_f64(1.0 + jitter);
        self.reader.next = if hungry { now } else { now + pause };
    }

    fn read_later(&mut self, now: Duration) {
        self.reader.failures = self.reader.failures.saturating_add(1);
        let pause = self.outage_pause(self.reader.failures);
        self.reader.next = now + pause;
        self.reader.next_probe = now + pause;
    }

    /// How long to leave the database alone after this many failures in a row.
    pub(super) fn outage_pause(&self, failures: u32) -> Duration {
        let timing = &self.parts.timing;
        let base = timing.outage_base / 4;
        crate::RetryPolicy::default()
            .with_delays(base, timing.outage_max / 3)
            .delay(failures, fastrand::f64())
    }
}

fn cursor(id: LaneId, lane: &Lane, take: u32, sweep: bool) -> LaneCursor {
    let from = if sweep { 0 } else { lane.from() };
    LaneCursor { lane: id, from, read: lane.read, take }
}
