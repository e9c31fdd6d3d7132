//! Lanes whose owners died one after another: perhaps one of their events kills whoever sends it.
//!
//! Such a lane is worked on one event at a time, and the attempt is written before each call: whoever dies with an event
//! has counted it. One attempt at a time is written and not yet over, in all careful lanes together, so that a death costs
//! no event but that one.

use std::time::Duration;

use super::known::{Handle, Stage};
use super::pipeline::Pipeline;
use super::settles::Judged;
use crate::{Event, FailureClass, LaneId};

/// What is known about careful lanes beside their crash counts.
#[derive(Debug, Default)]
pub(super) struct Careful {
    /// The last event whose attempt was to be written before its call.
    charge: Option<Handle>,
    /// When lanes are next looked at for recovery.
    next_look: Duration,
}

/// A lane whose owners died this often in a row is worked on one event at a time, each counted before it is sent.
pub(super) const CAREFUL_AFTER: u16 = 3;

/// How often careful lanes are looked at: it costs a walk over all known events.
const LOOK: Duration = Duration::from_millis(100);

impl Pipeline {
    /// Whether events of this lane are counted before they are sent.
    pub(super) fn is_careful(&self, lane: LaneId) -> bool {
        self.lanes.get(&lane).is_some_and(|lane| lane.crashes >= CAREFUL_AFTER)
    }

    /// The event of a careful lane whose attempt is being written, or is written while its call is not over.
    pub(super) fn charge_out(&self) -> Option<Handle> {
        self.careful.charge.filter(|handle| self.known.is_being_tried(*handle))
    }

    /// Writes the attempt of an event in a careful lane before it is sent.
    pub(super) fn charge(&mut self, handle: Handle) {
        debug_assert_eq!(self.known.stage(handle), Stage::Queued);
        let event = self.known.event(handle);
        let destination = self.destinations.of(&self.parts.router, event);
        let event = self.known.event(handle);
        let policy = self.parts.retry.policy(event.event_type(), &destination);
        if event.attempts() >= policy.max_attempts {
            let reason = "relays died each time they sent this event";
            self.condemn_queued(handle, FailureClass::Permanent, reason);
            return;
        }
        let attempts = event.attempts() + 1;
        self.telemetry.attempt("charged");
        self.known.judge_queued(handle);
        self.settler.push(Judged::charge(handle, attempts));
        self.careful.charge = Some(handle);
    }

    /// An attempt that was written and will not be made now is taken back, down to the one that keeps the event holding its
    /// aggregate: nothing of its lane is sent any more, or a scheduled event of its aggregate has become due that goes first.
    pub(super) fn take_back_charge(&mut self) {
        let Some(handle) = self.charge_out() else { return };
        let event = self.known.event(handle);
        let leaving = self.lanes.get(&event.lane()).is_some_and(|lane| lane.leaving);
        let unsent = self.known.stage(handle) == Stage::Queued && self.known.is_charged(handle);
        if unsent && (leaving || self.stopping.is_some() || !self.known.is_next(handle)) {
            let attempts = event.attempts().max(1);
            self.known.judge_queued(handle);
            self.settler.push(Judged::take_back(handle, attempts));
        }
    }

    /// An attempt that cannot be written holds up no other.
    pub(super) fn forget_charge(&mut self, handle: Handle) {
        self.careful.charge.take_if(|charge| *charge == handle);
    }

    /// Lanes whose former owners died, and in which what was there then is settled.
    pub(super) fn recovered(&mut self, now: Duration) -> Vec<LaneId> {
        if now < self.careful.next_look {
            return Vec::new();
        }
        self.careful.next_look = now + LOOK;
        let probed = self.watermark_is_probed();
        // What is set aside was sent, or will be counted: it says nothing about who dies.
        let aside = self.settler.refused.handles();
        let recovered = |id: LaneId, inherited: i64| {
            let pending = |(handle, event, stage): (Handle, &Event, Stage)| {
                let pending = stage != Stage::Settled && !aside.contains(&handle);
                event.lane() == id && event.position() <= inherited && pending
            };
            !self.known.iter().any(pending)
        };
        self.lanes
            .iter()
            .filter(|(_, lane)| lane.crashes > 0 && !lane.leaving)
            .filter_map(|(id, lane)| {
                let inherited = lane.inherited?;
                // Without probes it became known when the lane had been read to its end.
                let read = !probed || (lane.read >= inherited && lane.covered >= inherited);
                (read && recovered(*id, inherited)).then_some(*id)
            })
            .collect()
    }
}
