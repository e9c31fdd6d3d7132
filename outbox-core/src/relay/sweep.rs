//! The sweep: a look at what lies behind the claims, where nothing should appear any more.
//!
//! It finds nothing unless an assumption was wrong: a position that was not drawn from the sequence, a wait that was ended
//! by hand. It takes nothing in: what it finds sends reading back, and the next claim brings it in its order. It goes
//! through the table in parts if it must, with a claim between any two, and a part that got no answer is put off like one
//! that did: whatever becomes of a sweep, claims go on.

use std::time::Duration;

use super::claims::{Asked, Reading};
use super::config::Timing;
use super::pipeline::{Pipeline, Reply};
use super::reach::Reach;
use super::reading::BEGINNING;
use crate::store::LaneRead;
use crate::{ClaimRequest, Claimed, LaneCursor, Position, StoreError};

/// When to sweep next, and from where.
#[derive(Debug)]
pub(super) struct Sweeper {
    next: Duration,
    /// Where the next part begins: at the [beginning](BEGINNING) a new sweep.
    at: Position,
    reach: Reach,
    /// Whether the last statement of the reader was a part of a sweep: then it is the turn of a claim.
    was_last: bool,
}

/// What was known when a part of a sweep started.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) asked: Asked,
    at: Position,
    /// Where it ends, unless a lane ends before it.
    end: Position,
    span: Position,
}

/// A part pauses this many times as long as it took: a sweep takes 2 % of the time at most.
const PAUSES: u32 = 50;

impl Sweeper {
    pub(super) fn new(now: Duration, timing: &Timing) -> Self {
        let next = now + timing.sweep;
        Self { next, at: BEGINNING, reach: Reach::default(), was_last: false }
    }

    /// Positions mean something else now.
    pub(super) fn restart(&mut self) {
        self.at = BEGINNING;
    }

    fn is_due(&self, now: Duration) -> bool {
        now >= self.next && !self.was_last
    }
}

impl Pipeline {
    /// Starts the next part of a sweep if it is due. It looks no further than where claims start: from there on they see
    /// everything themselves.
    pub(super) fn start_sweep(&mut self, limit: u32, now: Duration) -> bool {
        let sweep = self.watermark_is_probed() && self.reader.sweeper.is_due(now);
        self.reader.sweeper.was_last = sweep;
        if !sweep {
            return false;
        }
        let at = self.reader.sweeper.at;
        let behind = self.lanes.iter().filter(|(_, lane)| !lane.leaving && lane.from() > at);
        let Some(top) = behind.clone().map(|(_, lane)| lane.from()).max() else {
            self.reader.sweeper.restart();
            self.reader.sweeper.next = now + self.parts.timing.sweep;
            return false;
        };
        let end = self.reader.sweeper.reach.bound(at, top);
        let take = (limit / u32::try_from(behind.clone().count()).unwrap_or(u32::MAX)).max(1);
        let lanes: Vec<(LaneCursor, u64)> = behind
            .map(|(id, lane)| {
                // Due rows are the claims' business.
                let mut cursor = LaneCursor::new(*id, at, BEGINNING, take);
                cursor.to = lane.from().min(end);
                (cursor, lane.taking)
            })
            .collect();
        let known = self.known.iter().map(|(_, event, _)| event.position());
        let known = known.filter(|position| *position > at && *position <= top.min(end)).collect();
        let cursors = lanes.iter().map(|(cursor, _)| *cursor).collect();
        let bytes = self.parts.limits.claim_bytes;
        let request =
            ClaimRequest::new(self.worker.pipeline.clone(), cursors, limit, bytes).excluding(known);
        let asked = self.asked(lanes, now);
        let part = Part { asked, at, end, span: Reach::span(at, top.min(end)) };
        self.reader.out = Reading::Sweep(part);
        let store = self.parts.store.clone();
        self.statement(async move { store.claim(&request).await }, Reply::Claimed);
        true
    }

    pub(super) fn swept(&mut self, part: Part, result: Result<Claimed, StoreError>, now: Duration) {
        let took = now.saturating_sub(part.asked.started);
        let (pause, every) = (took * PAUSES, self.parts.timing.sweep);
        self.reader.claim_next(now);
        let claimed = match result {
            Ok(claimed) => claimed,
            Err(error) => {
                self.store_failed("sweep", &error);
                self.reader.unsettle(part.asked.forget);
                self.reader.sweeper.reach.failed(part.span);
                self.reader.sweeper.next = now + every.max(pause);
                return;
            }
        };
        // So short that a claim which comes meanwhile does not wait for long.
        let enough = self.parts.timing.statement_deadline / PAUSES;
        self.reader.sweeper.reach.answered(part.span, took, enough);
        self.reader.sweeper.next = now + pause;
        if self.is_other_server(&claimed.server) {
            self.reader.unsettle(part.asked.forget);
            return;
        }
        if let Some(stood) = self.appeared_above(&part.asked, &claimed) {
            self.lanes.values_mut().for_each(|lane| lane.distrust(stood));
        }
        let found = self.find_late(&part, &claimed);
        self.forget_settled(&part.asked.forget);
        self.reader.sweeper.at = part
            .asked
            .lanes
            .iter()
            .zip(&claimed.reads)
            .map(|((cursor, _), read)| match read {
                LaneRead::ToEnd => part.end,
                LaneRead::UpTo(position) => (*position).max(cursor.from),
            })
            .min()
            .unwrap_or(part.end);
        if self.lanes.values().all(|lane| lane.from() <= self.reader.sweeper.at) {
            let idle = !found && self.known.unsettled() == 0;
            self.reader.sweeper.restart();
            self.reader.sweeper.next = now + (every * if idle { 6 } else { 1 }).max(pause);
        }
    }

    /// Looks for events that no claim would have found, and sends reading back to before them. Whether there were any.
    fn find_late(&mut self, part: &Part, claimed: &Claimed) -> bool {
        let mut found = false;
        for (cursor, taking) in &part.asked.lanes {
            let lane = self.lanes.get_mut(&cursor.lane).filter(|lane| lane.taking == *taking);
            let Some(lane) = lane else { continue };
            let from = lane.from();
            for event in &claimed.events {
                let (position, is_fresh) = (event.position(), !event.is_waiting());
                // Where reading has gone back meanwhile, a claim will find it.
                let is_late = event.lane() == cursor.lane && is_fresh && position <= from;
                if !is_late || self.known.contains(position) {
                    continue;
                }
                found = true;
                // An earlier one of its aggregate may have appeared in a part that was over.
                let back =
                    if part.at == BEGINNING { position.saturating_sub(1) } else { BEGINNING };
                lane.distrust(back);
                self.telemetry.late_rows.increment(1);
                let pipeline = self.worker.pipeline.name();
                tracing::warn!(pipeline, position, from, id = %event.id(), event_type = event.event_type(),
                    "the sweep found an event that no claim would have found");
            }
        }
        found
    }
}
