//! The events that the pipeline knows: from the claim that brought them until nobody can bring them again.
//!
//! An event enters a call only without an open predecessor of its aggregate outside that call. So events queue by
//! aggregate, in position order; an aggregate is *ready* when something is queued, nothing of it is in a call, and no
//! verdict other than "delivered" waits to be settled. Calls are formed from ready aggregates only: there is nothing to
//! look at twice.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry as MapEntry, HashMap};
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};

use crate::{Event, LaneId, Position};

/// Names a known event until it is forgotten; later it names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Handle {
    at: u32,
    generation: u32,
}

/// Where a known event stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Waits for its turn in its aggregate.
    Queued,
    /// Is in a publish call, or open after one.
    Called,
    /// Has a verdict that is not settled yet.
    Judged,
    /// Is settled, but a claim that is out may still bring it.
    Settled,
}

#[derive(Debug)]
struct Slot {
    event: Event,
    stage: Stage,
    /// Whether its verdict is other than "delivered": its aggregate is closed until that is settled.
    closes: bool,
    aggregate: u32,
    /// The next queued event of its aggregate.
    next: Option<u32>,
    bytes: u32,
    claim: u32,
    /// Attempts written by the relay itself before a careful call.
    charged: bool,
}

#[derive(Debug, Default)]
struct Aggregate {
    /// `None` for an unordered event, which is an aggregate by itself.
    hash: Option<u64>,
    first: Option<u32>,
    last: Option<u32>,
    /// Events of it that are in calls or have a verdict that closes it.
    closed_by: u32,
    /// Slots that point here.
    members: u32,
    ready: bool,
}

/// Counts of a lane.
#[derive(Clone, Copy, Debug, Default)]
struct OfLane {
    unsettled: usize,
    queued: usize,
}

/// All known events of a pipeline.
#[derive(Debug)]
pub(crate) struct Known {
    slots: Vec<Option<Slot>>,
    /// How often each slot was emptied.
    generations: Vec<u32>,
    free_slots: Vec<u32>,
    by_position: HashMap<Position, u32, BuildHasherDefault<PositionHasher>>,
    aggregates: Vec<Aggregate>,
    free_aggregates: Vec<u32>,
    by_hash: HashMap<u64, u32, BuildHasherDefault<PositionHasher>>,
    hasher: RandomState,
    ready: VecDeque<u32>,
    /// Whether aggregates join the line at its front.
    preferred: bool,
    /// Slots by the claim that brought them: a claim's buffer is copied out of when it has grown old.
    claims: VecDeque<Vec<u32>>,
    claim: u32,
    /// The highest position by lane, of what is known or was.
    highest: Vec<Position>,
    waiting: usize,
    unsettled: usize,
    by_lane: Vec<OfLane>,
    queued: usize,
    bytes: usize,
}

/// Claims whose buffers may be kept alive by their events; older events get buffers of their own.
const SHARED_BUFFERS: usize = 16;

impl Known {
    pub(crate) fn new() -> Self {
        Self {
            slots: Vec::new(),
            generations: Vec::new(),
            free_slots: Vec::new(),
            by_position: HashMap::default(),
            aggregates: Vec::new(),
            free_aggregates: Vec::new(),
            by_hash: HashMap::default(),
            hasher: RandomState::new(),
            ready: VecDeque::new(),
            preferred: false,
            claims: VecDeque::new(),
            claim: 0,
            highest: Vec::new(),
            waiting: 0,
            unsettled: 0,
            by_lane: Vec::new(),
            queued: 0,
            bytes: 0,
        }
    }

    /// Events that are not settled.
    pub(crate) fn unsettled(&self) -> usize {
        self.unsettled
    }

    /// Events of a lane that are not settled.
    pub(crate) fn unsettled_of(&self, lane: LaneId) -> usize {
        self.by_lane.get(usize::from(lane)).map_or(0, |of_lane| of_lane.unsettled)
    }

    /// Events that wait for their turn.
    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    /// Bytes of the events that are not settled.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether some event can be sent.
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(crate) fn contains(&self, position: Position) -> bool {
        self.by_position.contains_key(&position)
    }

    /// Whether something may be known above `from` of its lane, or waits: without a look at every event. False only if not.
    pub(crate) fn reaches_above(&self, from: impl Fn(LaneId) -> Position) -> bool {
        self.waiting > 0 || (0..).zip(&self.highest).any(|(lane, highest)| *highest > from(lane))
    }

    pub(crate) fn event(&self, handle: Handle) -> &Event {
        &self.slot(handle.at).event
    }

    pub(crate) fn stage(&self, handle: Handle) -> Stage {
        self.slot(handle.at).stage
    }

    /// Whether the handle still names a known event.
    pub(crate) fn is_known(&self, handle: Handle) -> bool {
        self.generations[handle.at as usize] == handle.generation
    }

    /// The handle of a known event.
    pub(crate) fn find(&self, position: Position) -> Option<Handle> {
        self.by_position.get(&position).map(|at| self.handle(*at))
    }

    pub(crate) fn is_charged(&self, handle: Handle) -> bool {
        self.slot(handle.at).charged
    }

    /// Whether the event's attempt is being written before its call, or is written and the call not over.
    pub(crate) fn is_being_tried(&self, handle: Handle) -> bool {
        self.is_known(handle)
            && match self.stage(handle) {
                Stage::Queued | Stage::Called => true,
                Stage::Judged => !self.is_charged(handle),
                Stage::Settled => false,
            }
    }

    /// Whether the queued event is the first of its aggregate.
    pub(crate) fn is_next(&self, handle: Handle) -> bool {
        let aggregate = self.slot(handle.at).aggregate;
        self.aggregates[aggregate as usize].first == Some(handle.at)
    }

    /// Every known event.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Handle, &Event, Stage)> {
        self.slots.iter().enumerate().filter_map(|(at, slot)| {
            let slot = slot.as_ref()?;
            let at = u32::try_from(at).expect("slots fit u32");
            Some((self.handle(at), &slot.event, slot.stage))
        })
    }

    /// A new claim has returned: what it brings shares a buffer, what is old gets a buffer of its own.
    pub(crate) fn begin_claim(&mut self) {
        self.claim = self.claim.wrapping_add(1);
        self.claims.push_back(Vec::new());
        if self.claims.len() > SHARED_BUFFERS {
            let claim = self.claim.wrapping_sub(u32::try_from(SHARED_BUFFERS).expect("small"));
            for at in self.claims.pop_front().unwrap_or_default() {
                if let Some(slot) = &mut self.slots[at as usize]
                    && slot.claim == claim
                    && slot.stage != Stage::Settled
                {
                    slot.event = slot.event.detach();
                }
            }
        }
    }

    /// Takes in an event that is not known yet and queues it behind its predecessors.
    pub(crate) fn insert(&mut self, event: Event) -> Handle {
        let aggregate = self.aggregate_of(&event);
        let bytes = u32::try_from(event.size()).unwrap_or(u32::MAX);
        let (position, lane) = (event.position(), event.lane());
        self.highest.resize(self.highest.len().max(usize::from(lane) + 1), 0);
        self.highest[usize::from(lane)] = self.highest[usize::from(lane)].max(position);
        self.waiting += usize::from(event.is_waiting());
        let slot = Slot {
            event,
            stage: Stage::Queued,
            closes: false,
            aggregate,
            next: None,
            bytes,
            claim: self.claim,
            charged: false,
        };
        let at = match self.free_slots.pop() {
            Some(at) => {
                self.slots[at as usize] = Some(slot);
                at
            }
            None => {
                self.slots.push(Some(slot));
                self.generations.push(0);
                u32::try_from(self.slots.len() - 1).expect("the window is far below 2^32 events")
            }
        };
        let before = self.by_position.insert(position, at);
        debug_assert!(before.is_none(), "the caller checked that the event is unknown");
        if let Some(claim) = self.claims.back_mut() {
            claim.push(at);
        }
        self.aggregates[aggregate as usize].members += 1;
        self.count_in(lane, bytes);
        self.enqueue(at);
        self.handle(at)
    }

    /// Takes the events of the aggregate whose turn it is out of the queue, in order: at most `events` of `bytes` in all
    /// (at least one), and none behind one that `last` picks. They count as called.
    pub(crate) fn take(
        &mut self,
        events: usize,
        bytes: usize,
        mut last: impl FnMut(&Event) -> bool,
        taken: &mut Vec<Handle>,
    ) {
        let Some(aggregate) = self.ready.pop_front() else { return };
        self.aggregates[aggregate as usize].ready = false;
        let mut left = bytes;
        for count in 0..events {
            let Some(at) = self.aggregates[aggregate as usize].first else { break };
            let size = self.slot(at).bytes as usize;
            if count > 0 && size > left {
                break;
            }
            left = left.saturating_sub(size);
            self.unlink_first(aggregate);
            self.slot_mut(at).stage = Stage::Called;
            self.aggregates[aggregate as usize].closed_by += 1;
            taken.push(self.handle(at));
            if last(&self.slot(at).event) {
                break;
            }
        }
    }

    /// The first event of the aggregate whose turn is next.
    pub(crate) fn peek(&self) -> Option<Handle> {
        let aggregate = *self.ready.front()?;
        self.aggregates[aggregate as usize].first.map(|at| self.handle(at))
    }

    /// From now on aggregates that become ready go to the front of the line, or no longer do.
    pub(crate) fn prefer(&mut self, preferred: bool) {
        self.preferred = preferred;
    }

    /// Sends the aggregate whose turn is next to the end of the line.
    pub(crate) fn rotate(&mut self) {
        if let Some(aggregate) = self.ready.pop_front() {
            self.ready.push_back(aggregate);
        }
    }

    /// Puts the aggregate of this event at the front of the line, if it is ready.
    pub(crate) fn bring_forward(&mut self, handle: Handle) {
        let aggregate = self.slot(handle.at).aggregate;
        if self.aggregates[aggregate as usize].ready {
            self.ready.retain(|ready| *ready != aggregate);
            self.ready.push_front(aggregate);
        }
    }

    /// Aggregates in line.
    pub(crate) fn ready_len(&self) -> usize {
        self.ready.len()
    }

    /// A queued event is judged without a call.
    pub(crate) fn judge_queued(&mut self, handle: Handle) {
        debug_assert_eq!(self.stage(handle), Stage::Queued);
        self.unlink(handle.at);
        let slot = self.slot_mut(handle.at);
        slot.stage = Stage::Judged;
        slot.closes = true;
        let aggregate = slot.aggregate;
        self.aggregates[aggregate as usize].closed_by += 1;
        self.make_ready(aggregate);
    }

    /// A called event has been delivered: its aggregate goes on.
    pub(crate) fn delivered(&mut self, handle: Handle) {
        let slot = self.slot_mut(handle.at);
        debug_assert_eq!(slot.stage, Stage::Called);
        slot.stage = Stage::Judged;
        let aggregate = slot.aggregate;
        self.open_one(aggregate);
    }

    /// A called event has a verdict other than "delivered", or one that ends a wait: its aggregate stays closed until that is
    /// settled.
    pub(crate) fn condemned(&mut self, handle: Handle) {
        let slot = self.slot_mut(handle.at);
        debug_assert_eq!(slot.stage, Stage::Called);
        slot.stage = Stage::Judged;
        slot.closes = true;
    }

    /// A called event goes back to the front of its aggregate's queue.
    pub(crate) fn back(&mut self, handle: Handle) {
        let slot = self.slot_mut(handle.at);
        debug_assert_eq!(slot.stage, Stage::Called);
        slot.stage = Stage::Queued;
        let aggregate = slot.aggregate;
        self.enqueue(handle.at);
        self.open_one(aggregate);
    }

    /// The verdict has been settled. The event stays known until [`forget`](Self::forget).
    pub(crate) fn settled(&mut self, handle: Handle) {
        let slot = self.slot_mut(handle.at);
        debug_assert_eq!(slot.stage, Stage::Judged);
        slot.stage = Stage::Settled;
        let (aggregate, closes) = (slot.aggregate, slot.closes);
        let (lane, bytes) = (slot.event.lane(), slot.bytes);
        slot.closes = false;
        self.count_out(lane, bytes);
        if closes {
            self.open_one(aggregate);
        }
    }

    /// The attempt of a judged event has been written before its call: it may be sent now, alone.
    pub(crate) fn charged(&mut self, handle: Handle) {
        self.slot_mut(handle.at).charged = true;
        self.unjudge(handle);
    }

    /// The verdict on a judged event is void: it goes back to the front of its aggregate's queue.
    pub(crate) fn unjudge(&mut self, handle: Handle) {
        let slot = self.slot_mut(handle.at);
        debug_assert!(slot.stage == Stage::Judged && slot.closes);
        slot.stage = Stage::Queued;
        slot.closes = false;
        let aggregate = slot.aggregate;
        self.enqueue(handle.at);
        self.open_one(aggregate);
    }

    /// The event waits in the table now: the queued ones behind it in its aggregate leave the memory, since the table
    /// holds them back.
    pub(crate) fn evict_behind(&mut self, handle: Handle) {
        let slot = self.slot(handle.at);
        let (aggregate, position) = (slot.aggregate, slot.event.position());
        let mut next = self.aggregates[aggregate as usize].first;
        while let Some(at) = next {
            next = self.slot(at).next;
            if self.slot(at).event.position() > position {
                self.unlink(at);
                self.remove(at);
            }
        }
    }

    /// Nothing can bring the settled event again.
    pub(crate) fn forget(&mut self, handle: Handle) {
        debug_assert_eq!(self.stage(handle), Stage::Settled);
        self.remove(handle.at);
    }

    /// Drops queued events of a lane.
    pub(crate) fn drop_queued(&mut self, lane: LaneId) {
        if self.by_lane.get(usize::from(lane)).is_some_and(|of_lane| of_lane.queued > 0) {
            self.drop_where(|slot| slot.event.lane() == lane && slot.stage == Stage::Queued);
        }
    }

    /// Drops everything of a lane, whatever stage it is in.
    pub(crate) fn drop_lane(&mut self, lane: LaneId) {
        self.drop_where(|slot| slot.event.lane() == lane);
        if let Some(highest) = self.highest.get_mut(usize::from(lane)) {
            *highest = 0;
        }
    }

    /// Drops a judged event: its verdict will not be written here.
    pub(crate) fn drop_judged(&mut self, handle: Handle) {
        debug_assert_eq!(self.stage(handle), Stage::Judged);
        self.drop_at(handle.at);
    }

    fn drop_where(&mut self, gone: impl Fn(&Slot) -> bool) {
        for at in 0..self.slots.len() {
            if self.slots[at].as_ref().is_some_and(&gone) {
                self.drop_at(u32::try_from(at).expect("slots fit u32"));
            }
        }
    }

    fn drop_at(&mut self, at: u32) {
        let slot = self.slot(at);
        let (stage, closes, aggregate) = (slot.stage, slot.closes, slot.aggregate);
        match stage {
            Stage::Queued => self.unlink(at),
            Stage::Called => self.open_one(aggregate),
            Stage::Judged if closes => self.open_one(aggregate),
            Stage::Judged | Stage::Settled => {}
        }
        self.remove(at);
    }

    fn aggregate_of(&mut self, event: &Event) -> u32 {
        let hash =
            event.aggregate_id().map(|id| self.hasher.hash_one((event.aggregate_type(), id)));
        let fresh = Aggregate { hash, ..Aggregate::default() };
        let Some(hash) = hash else { return self.new_aggregate(fresh) };
        if let Some(found) = self.by_hash.get(&hash) {
            return *found;
        }
        let aggregate = self.new_aggregate(fresh);
        self.by_hash.insert(hash, aggregate);
        aggregate
    }

    fn new_aggregate(&mut self, aggregate: Aggregate) -> u32 {
        match self.free_aggregates.pop() {
            Some(at) => {
                self.aggregates[at as usize] = aggregate;
                at
            }
            None => {
                self.aggregates.push(aggregate);
                u32::try_from(self.aggregates.len() - 1).expect("no more than known events")
            }
        }
    }

    /// Links a queued event into its aggregate's queue by position; nearly always at the end.
    fn enqueue(&mut self, at: u32) {
        let slot = self.slot(at);
        let (aggregate, position) = (slot.aggregate, slot.event.position());
        let queue = &self.aggregates[aggregate as usize];
        let (first, last) = (queue.first, queue.last);
        let after = |other: u32| self.slot(other).event.position() < position;
        let before = match last {
            None => None,
            Some(last) if after(last) => Some(last),
            _ => {
                let mut before = None;
                let mut next = first;
                while let Some(other) = next.filter(|other| after(*other)) {
                    before = Some(other);
                    next = self.slot(other).next;
                }
                before
            }
        };
        let next = before.map_or(first, |before| self.slot(before).next);
        self.slot_mut(at).next = next;
        match before {
            Some(before) => self.slot_mut(before).next = Some(at),
            None => self.aggregates[aggregate as usize].first = Some(at),
        }
        if next.is_none() {
            self.aggregates[aggregate as usize].last = Some(at);
        }
        self.count_queued(at, 1);
        self.make_ready(aggregate);
    }

    fn unlink_first(&mut self, aggregate: u32) {
        let queue = &mut self.aggregates[aggregate as usize];
        if let Some(first) = queue.first {
            let next = self.slots[first as usize].as_mut().and_then(|slot| slot.next.take());
            queue.first = next;
            if next.is_none() {
                queue.last = None;
            }
            self.count_queued(first, -1);
        }
    }

    fn unlink(&mut self, at: u32) {
        let aggregate = self.slot(at).aggregate;
        let next = self.slot_mut(at).next.take();
        let queue = &self.aggregates[aggregate as usize];
        let mut before = None;
        let mut other = queue.first;
        while let Some(one) = other.filter(|one| *one != at) {
            before = Some(one);
            other = self.slot(one).next;
        }
        match before {
            Some(before) => self.slot_mut(before).next = next,
            None => self.aggregates[aggregate as usize].first = next,
        }
        if next.is_none() {
            self.aggregates[aggregate as usize].last = before;
        }
        self.count_queued(at, -1);
        if self.aggregates[aggregate as usize].first.is_none() {
            self.unready(aggregate);
        }
    }

    fn open_one(&mut self, aggregate: u32) {
        self.aggregates[aggregate as usize].closed_by -= 1;
        self.make_ready(aggregate);
    }

    /// Brings the aggregate's place in line up to date.
    fn make_ready(&mut self, aggregate: u32) {
        let queue = &mut self.aggregates[aggregate as usize];
        let ready = queue.first.is_some() && queue.closed_by == 0;
        if ready && !queue.ready {
            queue.ready = true;
            if self.preferred {
                self.ready.push_front(aggregate);
            } else {
                self.ready.push_back(aggregate);
            }
        } else if !ready {
            self.unready(aggregate);
        }
    }

    fn unready(&mut self, aggregate: u32) {
        if std::mem::take(&mut self.aggregates[aggregate as usize].ready) {
            self.ready.retain(|ready| *ready != aggregate);
        }
    }

    /// Forgets an unlinked slot.
    fn remove(&mut self, at: u32) {
        let slot = self.slots[at as usize].take().expect("handles name known events");
        self.generations[at as usize] = self.generations[at as usize].wrapping_add(1);
        self.by_position.remove(&slot.event.position());
        self.free_slots.push(at);
        self.waiting -= usize::from(slot.event.is_waiting());
        if slot.stage != Stage::Settled {
            self.count_out(slot.event.lane(), slot.bytes);
        }
        let aggregate = &mut self.aggregates[slot.aggregate as usize];
        aggregate.members -= 1;
        if aggregate.members == 0 {
            debug_assert!(!aggregate.ready && aggregate.closed_by == 0);
            if let Some(hash) = aggregate.hash.take()
                && let MapEntry::Occupied(entry) = self.by_hash.entry(hash)
                && *entry.get() == slot.aggregate
            {
                entry.remove();
            }
            self.free_aggregates.push(slot.aggregate);
        }
    }

    fn count_queued(&mut self, at: u32, change: isize) {
        let lane = usize::from(self.slot(at).event.lane());
        let of_lane = &mut self.by_lane[lane].queued;
        *of_lane = of_lane.saturating_add_signed(change);
        self.queued = self.queued.saturating_add_signed(change);
    }

    fn count_in(&mut self, lane: LaneId, bytes: u32) {
        let lane = usize::from(lane);
        if self.by_lane.len() <= lane {
            self.by_lane.resize(lane + 1, OfLane::default());
        }
        self.by_lane[lane].unsettled += 1;
        self.unsettled += 1;
        self.bytes += bytes as usize;
    }

    fn count_out(&mut self, lane: LaneId, bytes: u32) {
        self.by_lane[usize::from(lane)].unsettled -= 1;
        self.unsettled -= 1;
        self.bytes -= bytes as usize;
    }

    fn handle(&self, at: u32) -> Handle {
        Handle { at, generation: self.generations[at as usize] }
    }

    fn slot(&self, at: u32) -> &Slot {
        self.slots[at as usize].as_ref().expect("handles name known events")
    }

    fn slot_mut(&mut self, at: u32) -> &mut Slot {
        self.slots[at as usize].as_mut().expect("handles name known events")
    }
}

/// Spreads integers that are dense or hashes already; not for keys that others choose.
#[derive(Debug, Default)]
pub(crate) struct PositionHasher(u64);

impl Hasher for PositionHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }

    fn write_i64(&mut self, value: i64) {
        self.write_u64(value.cast_unsigned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::event_of;
    use proptest::prelude::*;

    fn known(events: &[(Position, Option<&str>)]) -> Known {
        let mut known = Known::new();
        known.begin_claim();
        for (position, aggregate) in events {
            known.insert(event_of(*position, 0, *aggregate));
        }
        known
    }

    fn take(known: &mut Known) -> Vec<Position> {
        let mut taken = Vec::new();
        known.take(usize::MAX, usize::MAX, |_| false, &mut taken);
        taken.iter().map(|handle| known.event(*handle).position()).collect()
    }

    #[test]
    fn an_aggregate_is_taken_whole_and_in_position_order() {
        let mut known = known(&[(3, Some("a")), (1, Some("a")), (2, Some("b")), (5, Some("a"))]);
        assert_eq!(take(&mut known), [1, 3, 5]);
        assert_eq!(take(&mut known), [2]);
        assert_eq!(take(&mut known), [0; 0]);
    }

    #[test]
    fn unordered_events_do_not_wait_for_each_other() {
        let mut known = known(&[(1, None), (2, None)]);
        assert_eq!(take(&mut known), [1]);
        assert_eq!(take(&mut known), [2]);
    }

    #[test]
    fn an_aggregate_in_a_call_is_closed_until_the_call_is_over() {
        let mut known = known(&[(1, Some("a"))]);
        assert_eq!(take(&mut known), [1]);
        let second = known.insert(event_of(2, 0, Some("a")));
        assert!(!known.has_ready());
        known.delivered(known.find(1).unwrap());
        assert!(known.has_ready());
        assert_eq!(known.stage(second), Stage::Queued);
    }

    #[test]
    fn a_verdict_other_than_delivered_closes_the_aggregate_until_it_is_settled() {
        let mut known = known(&[(1, Some("a")), (2, Some("a"))]);
        let mut taken = Vec::new();
        known.take(1, usize::MAX, |_| false, &mut taken);
        known.condemned(taken[0]);
        assert!(!known.has_ready());
        known.settled(taken[0]);
        assert_eq!(take(&mut known), [2]);
    }

    #[test]
    fn what_is_behind_a_waiting_event_leaves_the_memory() {
        let mut known = known(&[(1, Some("a")), (2, Some("a")), (3, Some("b"))]);
        let mut taken = Vec::new();
        known.take(1, usize::MAX, |_| false, &mut taken);
        known.condemned(taken[0]);
        known.settled(taken[0]);
        known.evict_behind(taken[0]);
        assert!(!known.contains(2));
        assert!(known.contains(1) && known.contains(3));
    }

    #[test]
    fn a_handle_names_nothing_once_its_event_is_forgotten() {
        let mut known = known(&[(1, Some("a"))]);
        let handle = known.find(1).unwrap();
        known.drop_lane(0);
        known.insert(event_of(2, 0, Some("a")));
        assert!(!known.is_known(handle));
    }

    #[test]
    fn what_is_known_is_above_a_place_of_its_lane_until_the_lane_is_dropped() {
        let known_above = |known: &Known, from| known.reaches_above(|_| from);
        let mut known = known(&[(3, Some("a"))]);
        assert!(known_above(&known, 2) && !known_above(&known, 3));
        known.insert(event_of(5, 7, Some("b")));
        assert!(known.reaches_above(|lane| if lane == 7 { 4 } else { 3 }));
        assert!(!known.reaches_above(|lane| if lane == 7 { 5 } else { 3 }));
        known.drop_lane(7);
        assert!(!known_above(&known, 3));
    }

    #[test]
    fn a_call_is_bounded_in_bytes_but_never_empty() {
        let mut known = known(&[(1, Some("a")), (2, Some("a"))]);
        let mut taken = Vec::new();
        known.take(10, 1, |_| false, &mut taken);
        assert_eq!(taken.len(), 1);
    }

    proptest! {
        /// Random inserts, calls and verdicts: no two calls ever hold one aggregate, order is kept, counts return to zero.
        #[test]
        fn aggregates_are_exclusive_and_ordered(steps in prop::collection::vec((0u8..5, 0u8..4), 1..300)) {
            let mut known = Known::new();
            known.begin_claim();
            let mut next = 1;
            let mut called: Vec<Handle> = Vec::new();
            let mut last: HashMap<String, Position> = HashMap::new();
            let name = |aggregate: u8| (aggregate > 0).then(|| aggregate.to_string());
            for (kind, aggregate) in steps {
                match kind {
                    0 | 1 => {
                        known.insert(event_of(next, 0, name(aggregate).as_deref()));
                        next += 1;
                    }
                    2 => {
                        let mut taken = Vec::new();
                        known.take(2, usize::MAX, |_| false, &mut taken);
                        for handle in &taken {
                            let event = known.event(*handle);
                            if let Some(id) = event.aggregate_id() {
                                prop_assert!(!called.iter().any(|other| known.event(*other).aggregate_id() == Some(id)));
                            }
                        }
                        called.extend(taken);
                    }
                    3 if !called.is_empty() => {
                        let handle = called.remove(0);
                        let event = known.event(handle);
                        if let Some(id) = event.aggregate_id() {
                            let before = last.insert(id.to_owned(), event.position()).unwrap_or(0);
                            prop_assert!(before < event.position());
                        }
                        known.delivered(handle);
                        known.settled(handle);
                        known.forget(handle);
                    }
                    _ if !called.is_empty() => {
                        // Calls end as a whole: whoever fails, and what is behind it, goes back.
                        let aggregate = known.event(called[0]).aggregate_id().map(str::to_owned);
                        let (back, rest): (Vec<Handle>, Vec<Handle>) = called.into_iter().partition(|handle| {
                            aggregate.is_some() && known.event(*handle).aggregate_id() == aggregate.as_deref()
                        });
                        called = rest;
                        for handle in back {
                            known.back(handle);
                        }
                    }
                    _ => {}
                }
            }
            for handle in called {
                known.delivered(handle);
                known.settled(handle);
                known.forget(handle);
            }
            known.drop_queued(0);
            prop_assert_eq!((known.unsettled(), known.unsettled_of(0)), (0, 0));
            prop_assert_eq!((known.queued(), known.bytes()), (0, 0));
            prop_assert!(!known.has_ready());
            prop_assert!(known.by_hash.is_empty());
        }
    }
}
