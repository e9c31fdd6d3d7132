//! Reading: probes and claims, one statement at a time. Between two claims there may be a [sweep](super::sweep).

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;

use super::config::Timing;
use super::known::{Handle, Stage};
use super::pipeline::{Pipeline, Reply};
use super::reach::Reach;
use super::reading::{self, Lane};
use super::sweep::{Part, Sweeper};
use super::watermark::Aside;
use crate::hint::Hint;
use crate::store::LaneRead;
use crate::{
    ClaimRequest, Claimed, Event, LaneCursor, LaneId, Position, Probe, StoreError,
    Watermark as Mode, headers,
};

/// When to read next, and what is being read.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) out: Reading,
    next: Duration,
    /// Nothing is read before, hint or no hint: the database has failed.
    not_before: Duration,
    pause: Duration,
    /// Until when a writer of this process may be about to commit.
    expecting: Duration,
    next_probe: Duration,
    pub(super) sweeper: Sweeper,
    /// Claims failed in a row, and probes: that probes are answered says nothing about claims.
    failed_claims: u32,
    failed_probes: u32,
    /// How many positions a claim goes through.
    reach: Reach,
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
pub(super) enum Reading {
    Nothing,
    Probe,
    Claim(Asked),
    Sweep(Part),
}

/// What was known when a claim started.
#[derive(Debug)]
pub(super) struct Asked {
    /// With the [taking](Lane::taking) of each.
    pub(super) lanes: Vec<(LaneCursor, u64)>,
    safe: Position,
    top: Position,
    aside: Vec<Aside>,
    /// Settled before it started: when it has returned, nothing can bring them again.
    pub(super) forget: Vec<Handle>,
    pub(super) started: Duration,
}

/// Aggregates to choose a probe from while the destination is down.
const PROBES: usize = 3;

impl Reader {
    pub(super) fn new(now: Duration, timing: &Timing) -> Self {
        Self {
            out: Reading::Nothing,
            next: now,
            pause: timing.poll_min,
            expecting: Duration::ZERO,
            not_before: now,
            next_probe: now,
            sweeper: Sweeper::new(now, timing),
            failed_claims: 0,
            failed_probes: 0,
            reach: Reach::default(),
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
        matches!(self.out, Reading::Claim(_) | Reading::Sweep(_))
    }

    /// There is something new.
    pub(super) fn look_now(&mut self, now: Duration) {
        self.next = now;
        self.pause = Duration::ZERO;
    }

    /// There will be something new soon. Not at once: under load there is always somebody who is about to commit.
    pub(super) fn look_often(&mut self, now: Duration, poll_min: Duration) {
        self.expecting = now + Hint::ARMED_FOR;
        self.pause = Duration::ZERO;
        self.look_at(now + poll_min);
    }

    /// It is a claim's turn.
    pub(super) fn claim_next(&mut self, now: Duration) {
        self.next = now;
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

    /// The claim that would have shown that these cannot come again counts for nothing.
    pub(super) fn unsettle(&mut self, forget: Vec<Handle>) {
        self.settled.extend(forget);
    }
}

/// Of the room in the window this part is left to due events.
const ROOM_FOR_DUE: usize = 8;

impl Pipeline {
    /// Starts the next statement of the reader if it may; else when to look again, unless an answer comes first.
    pub(super) fn pump_reader(&mut self, now: Duration) -> Option<Duration> {
        self.ring_bell();
        let waits_for_answer = !matches!(self.reader.out, Reading::Nothing)
            || self.stopping.is_some()
            || self.settler.needs_quiet()
            || self.calls.is_abandoning()
            || !self.lanes.iter().any(|(id, lane)| self.has_room(*id, lane));
        if waits_for_answer {
            return None;
        }
        let next = self.reader.next.max(self.reader.not_before);
        if now < next {
            return Some(next);
        }
        // To probe with, a few aggregates are enough while the destination is down; with one alone nobody would learn
        // whether it is the destination that fails or this event.
        if self.outage.is_down() && self.known.ready_len() >= PROBES {
            return self.outage.paused_until(now);
        }
        let limit = self.claim_limit()?;
        if self.watermark_is_probed() && now >= self.reader.next_probe {
            let (store, top) = (self.parts.store.clone(), self.watermark.top());
            self.reader.out = Reading::Probe;
            self.statement(async move { store.probe(top).await }, Reply::Probed);
            return None;
        }
        if !self.start_sweep(limit, now) {
            self.start_claim(limit, now);
        }
        None
    }

    pub(super) fn expect_commit(&mut self) {
        self.reader.look_often(self.now(), self.parts.timing.poll_min);
    }

    fn ring_bell(&mut self) {
        if !self.reader.bell_out && self.stopping.is_none() {
            self.reader.bell_out = true;
            let (store, pause) = (self.parts.store.clone(), self.parts.timing.outage_max);
            let pipeline = self.worker.pipeline.clone();
            self.task(async move {
                if AssertUnwindSafe(store.wait()).catch_unwind().await.is_err() {
                    let pipeline = pipeline.name();
                    tracing::error!(
                        pipeline,
                        ?pause,
                        "the store's wait panicked: polling goes on without it"
                    );
                    tokio::time::sleep(pause).await;
                }
                Reply::Bell
            });
        }
    }

    pub(super) fn watermark_is_probed(&self) -> bool {
        self.parts.store.capabilities().watermark != Mode::None
    }

    /// How many fresh events may come; `None` while the window has no room worth a claim. Some room is left to due events,
    /// which come beside them.
    fn claim_limit(&self) -> Option<u32> {
        let limits = &self.parts.limits;
        let unsettled = self.known.unsettled();
        let room = limits.window_events.saturating_sub(unsettled);
        let bytes = limits.window_bytes.saturating_sub(self.known.bytes());
        let by_bytes = bytes.min(limits.claim_bytes) / self.reader.event_bytes.max(1);
        let for_due = room.div_ceil(ROOM_FOR_DUE);
        let limit =
            limits.claim_events.min(room - for_due).min(by_bytes.max(usize::from(unsettled == 0)));
        let worthwhile = limits.claim_events.min(limits.window_events) / 4;
        (limit > 0 && (limit >= worthwhile || unsettled == 0 || by_bytes < worthwhile))
            .then(|| u32::try_from(limit).unwrap_or(u32::MAX))
    }

    /// How many bytes a claim may bring: what has room in the window. An event that is larger comes alone.
    pub(super) fn claim_bytes(&self) -> usize {
        let limits = &self.parts.limits;
        limits.window_bytes.saturating_sub(self.known.bytes()).clamp(1, limits.claim_bytes)
    }

    /// Whether a claim asks this lane: one whose aggregates stand still may not fill the window and stop all others.
    fn has_room(&self, id: LaneId, lane: &Lane) -> bool {
        let share = if self.lanes.len() > 1 { 2 } else { 1 };
        !lane.leaving && self.known.unsettled_of(id) * share < self.parts.limits.window_events
    }

    fn start_claim(&mut self, limit: u32, now: Duration) {
        let take = reading::takes(&self.lanes, limit);
        let mut lanes: Vec<(LaneCursor, u64)> = self
            .lanes
            .iter()
            .filter(|(id, lane)| self.has_room(**id, lane))
            .map(|(id, lane)| (self.cursor(*id, lane, take), lane.taking))
            .collect();
        self.reader.turn = (self.reader.turn + 1) % lanes.len();
        lanes.rotate_left(self.reader.turn);
        let request = ClaimRequest::new(
            self.worker.pipeline.clone(),
            lanes.iter().map(|(cursor, _)| *cursor).collect(),
            limit,
            self.claim_bytes(),
        )
        .excluding(self.excluded());
        let asked = self.asked(lanes, now);
        self.reader.out = Reading::Claim(asked);
        let store = self.parts.store.clone();
        self.statement(async move { store.claim(&request).await }, Reply::Claimed);
    }

    fn cursor(&self, id: LaneId, lane: &Lane, take: u32) -> LaneCursor {
        let mut cursor = LaneCursor::new(id, lane.from(), lane.read, take);
        // Without probes every claim starts at the beginning: one that ends before the end would never get there.
        if self.watermark_is_probed() {
            let start = lane.next_from(self.watermark.safe());
            cursor.to = self.reader.reach.bound(start, self.watermark.top());
        }
        cursor
    }

    pub(super) fn asked(&mut self, lanes: Vec<(LaneCursor, u64)>, now: Duration) -> Asked {
        Asked {
            lanes,
            safe: self.watermark.safe(),
            // Without probes nothing tells how far the table goes; but behind its end there is nothing.
            top: if self.watermark_is_probed() { self.watermark.top() } else { Position::MAX },
            aside: self.watermark.aside(),
            forget: std::mem::take(&mut self.reader.settled),
            started: now,
        }
    }

    /// What is known at or above where the claim starts, and everything that waits.
    fn excluded(&self) -> Vec<Position> {
        let from = |lane: LaneId| self.lanes.get(&lane).map_or(0, Lane::from);
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
        self.reader.out = Reading::Nothing;
        let timing = self.parts.timing;
        match result {
            Ok(probe) => {
                if self.is_other_server(&probe.server) {
                    self.forget_reading();
                }
                self.reader.failed_probes = 0;
                self.watermark.observe(&probe, now, self.reader.snapshots);
                for lane in self.lanes.values_mut().filter(|lane| lane.inherited.is_none()) {
                    lane.inherited = Some(probe.top);
                }
                let idle = self.known.unsettled() == 0 && self.reader.pause >= timing.poll_max;
                self.reader.next_probe = now + timing.probe * if idle { 20 } else { 1 };
            }
            Err(error) => {
                self.store_failed("probe", &error);
                self.reader.failed_probes = self.reader.failed_probes.saturating_add(1);
                self.read_later(self.reader.failed_probes, now);
            }
        }
    }

    pub(super) fn claimed(&mut self, result: Result<Claimed, StoreError>, now: Duration) {
        if let Ok(claimed) = &result {
            self.reader.snapshots = claimed.snapshot.is_some();
            self.calls.set_database_clock(claimed.now_micros, now);
        }
        match std::mem::replace(&mut self.reader.out, Reading::Nothing) {
            Reading::Claim(asked) => self.claim_returned(asked, result, now),
            Reading::Sweep(part) => self.swept(part, result, now),
            Reading::Nothing | Reading::Probe => {}
        }
    }

    fn claim_returned(&mut self, asked: Asked, result: Result<Claimed, StoreError>, now: Duration) {
        let mut claimed = match result {
            Ok(claimed) => claimed,
            Err(error) => {
                self.store_failed("claim", &error);
                self.reader.reach.failed(asked.span());
                self.reader.unsettle(asked.forget);
                self.reader.failed_claims = self.reader.failed_claims.saturating_add(1);
                self.read_later(self.reader.failed_claims, now);
                return;
            }
        };
        self.reader.failed_claims = 0;
        self.telemetry.monitor.tell(|report| report.failure = None);
        let took = now.saturating_sub(asked.started);
        self.reader.reach.answered(asked.span(), took, self.parts.timing.statement_deadline / 2);
        if self.is_other_server(&claimed.server) || !self.may_believe(&asked, &claimed) {
            self.reader.unsettle(asked.forget);
            self.reader.look_now(now);
            return;
        }
        for ((cursor, _), read) in asked.lanes.iter().zip(&mut claimed.reads) {
            *read = read.within(cursor.to);
        }
        let found = self.admit(&asked, claimed);
        self.forget_settled(&asked.forget);
        self.schedule(found, now);
    }

    pub(super) fn forget_settled(&mut self, forget: &[Handle]) {
        for handle in forget {
            if self.known.is_known(*handle) && self.known.stage(*handle) == Stage::Settled {
                self.known.forget(*handle);
            }
        }
    }

    /// Another server, or the same one after a restart: positions may mean something else there.
    pub(super) fn is_other_server(&mut self, server: &str) -> bool {
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
        self.reader.sweeper.restart();
        self.lanes.values_mut().for_each(Lane::restart);
    }

    /// Whether the claim missed every writer that was set aside when it started. If one of them has ended, its rows have
    /// appeared where nobody looks any more: reading goes back to there first.
    fn may_believe(&mut self, asked: &Asked, claimed: &Claimed) -> bool {
        let Some(stood) = self.appeared_above(asked, claimed) else { return true };
        // A claim from at or below there has read, or will read on, through everything that has appeared.
        let reads_on = asked.lanes.iter().all(|(cursor, _)| cursor.from <= stood);
        let asked = |id: LaneId| asked.lanes.iter().any(|(cursor, _)| cursor.lane == id);
        for (id, lane) in &mut self.lanes {
            if !reads_on || !asked(*id) {
                lane.distrust(stood);
            }
        }
        reads_on
    }

    /// Above which position rows have appeared, because a writer has ended that was set aside when the claim started.
    pub(super) fn appeared_above(&mut self, asked: &Asked, claimed: &Claimed) -> Option<Position> {
        if asked.aside.is_empty() {
            return None;
        }
        match &claimed.snapshot {
            Some(snapshot) => self.watermark.returned(&asked.aside, snapshot),
            None => asked.aside.iter().map(|aside| aside.stood).min(),
        }
    }

    /// Takes in what is new of lanes that were not lost meanwhile. Returns how many events that were.
    fn admit(&mut self, asked: &Asked, claimed: Claimed) -> usize {
        let mut last: Vec<Position> = asked.lanes.iter().map(|(cursor, _)| cursor.from).collect();
        let mut new = Vec::with_capacity(claimed.events.len());
        // Due events that find no room come again with a later claim: they stand where they stood.
        let room = self.parts.limits.window_events.saturating_sub(self.known.unsettled());
        let fresh = claimed.events.iter().filter(|event| !event.is_waiting()).count();
        let mut for_due = room.saturating_sub(fresh);
        for event in claimed.events {
            let at = asked.lanes.iter().position(|(cursor, taking)| {
                cursor.lane == event.lane()
                    && self
                        .lanes
                        .get(&cursor.lane)
                        .is_some_and(|lane| lane.taking == *taking && !lane.leaving)
            });
            let Some(at) = at else { continue };
            if !event.is_waiting() {
                last[at] = last[at].max(event.position());
            } else if !event.holds_aggregate() && claimed.reads[at].is_short_of(event.position()) {
                // A scheduled event that became visible late, like predecessors of it that did not fit: they go first.
                self.lanes.entry(event.lane()).and_modify(|lane| lane.rewind(event.position()));
                continue;
            }
            if self.known.contains(event.position()) {
                continue;
            }
            if event.is_waiting() {
                let Some(left) = for_due.checked_sub(1) else { continue };
                for_due = left;
            }
            new.push(event);
        }
        let probed = self.watermark_is_probed();
        for (((cursor, taking), read), last) in asked.lanes.iter().zip(&claimed.reads).zip(last) {
            if let Some(lane) = self.lanes.get_mut(&cursor.lane)
                && lane.taking == *taking
            {
                lane.advance(*read, last, asked.safe, asked.top);
                if !probed && *read == LaneRead::ToEnd && lane.inherited.is_none() {
                    let known = self.known.iter().map(|(_, event, _)| event);
                    let of_lane = known.filter(|event| event.lane() == cursor.lane);
                    let highest = of_lane.map(Event::position).max().unwrap_or(0);
                    lane.inherited = Some(highest.max(last));
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

    fn schedule(&mut self, found: usize, now: Duration) {
        let timing = self.parts.timing;
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

    fn read_later(&mut self, failures: u32, now: Duration) {
        self.reader.not_before = now + self.outage_pause(failures);
        self.reader.next = self.reader.not_before;
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

impl Asked {
    /// How many positions the claim goes through at most in one lane.
    fn span(&self) -> Position {
        let spans = self.lanes.iter();
        spans
            .map(|(cursor, _)| Reach::span(cursor.from, cursor.to.min(self.top)))
            .max()
            .unwrap_or(0)
    }
}
