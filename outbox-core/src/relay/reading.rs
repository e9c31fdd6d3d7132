//! How far each lane has been read, and from where the next claim reads.
//!
//! Two marks per lane: `read` is how far it was read ahead; `covered` is below what nothing can still appear. A claim
//! starts at the lower of the two and leaves out what is known, so that a late commit comes with the next claim, and no
//! event is seen before one that its writer could see.

use std::collections::BTreeMap;

use crate::store::LaneRead;
use crate::{Epoch, LaneId, OwnedLane, Position};

/// Below every event: reading begins here, and so does a sweep. A table draws its positions from 1; a hand may give any.
pub(crate) const BEGINNING: Position = Position::MIN;

/// A lane that this worker owns.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) epoch: Epoch,
    /// Which taking of a lane by this worker it is: a claim from before it was lost and regained counts for nothing, even
    /// under the same epoch, since what was known then is forgotten.
    pub(crate) taking: u64,
    pub(crate) read: Position,
    pub(crate) covered: Position,
    /// Whether the last claim left rows behind in it.
    pub(crate) hungry: bool,
    /// Owners in a row that died with it, until it counts as recovered.
    pub(crate) crashes: u16,
    /// What was there when it was taken over ends here; known after the first probe.
    pub(crate) inherited: Option<Position>,
    /// Whether it is being handed over: nothing new is started.
    pub(crate) leaving: bool,
}

impl Lane {
    pub(crate) fn new(owned: OwnedLane, taking: u64) -> Self {
        Self {
            epoch: owned.epoch,
            taking,
            read: BEGINNING,
            covered: BEGINNING,
            hungry: true,
            crashes: owned.crashes,
            inherited: None,
            leaving: false,
        }
    }

    /// From where a claim reads.
    pub(crate) fn from(&self) -> Position {
        self.read.min(self.covered)
    }

    /// From where a claim must go on so that something is gained: past what was read, unless more of that is safe by now.
    pub(crate) fn next_from(&self, safe: Position) -> Position {
        if self.from() < safe { self.from() } else { self.read }
    }

    /// A claim has returned that started at [`from`](Self::from) when `safe` and `top` were known; `last` is the highest
    /// fresh position that it brought.
    pub(crate) fn advance(
        &mut self,
        read: LaneRead,
        last: Position,
        safe: Position,
        top: Position,
    ) {
        let reached = match read {
            LaneRead::ToEnd => top.max(last),
            LaneRead::UpTo(position) => position,
        };
        self.hungry = matches!(read, LaneRead::UpTo(_));
        self.read = self.read.max(reached);
        let closed = match read {
            LaneRead::ToEnd => safe,
            LaneRead::UpTo(position) => safe.min(position),
        };
        self.covered = self.covered.max(closed);
    }

    /// A wait has ended: what it held back lies right behind this position.
    pub(crate) fn rewind(&mut self, position: Position) {
        self.read = self.read.min(position.saturating_sub(1));
        self.hungry = true;
    }

    /// An assumption was wrong: rows have appeared above this position that nobody expected there.
    pub(crate) fn distrust(&mut self, position: Position) {
        self.read = self.read.min(position);
        self.hungry = true;
        self.covered = self.covered.min(position);
    }

    /// Nothing is known about reading any more.
    pub(crate) fn restart(&mut self) {
        self.read = BEGINNING;
        self.covered = BEGINNING;
        self.hungry = true;
    }
}

/// How many fresh rows each lane may give to a claim of `limit`: lanes that left rows behind share it, so that one long
/// lane is read at full speed and no lane starves.
pub(crate) fn takes(lanes: &BTreeMap<LaneId, Lane>, limit: u32) -> u32 {
    let hungry = lanes.values().filter(|lane| lane.hungry && !lane.leaving).count();
    let sharing = u32::try_from(hungry.max(1)).unwrap_or(u32::MAX);
    (limit / sharing).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lane() -> Lane {
        Lane::new(OwnedLane { lane: 0, epoch: 1, crashes: 0 }, 1)
    }

    #[test]
    fn a_short_claim_has_read_to_the_top_that_was_probed_before_it() {
        let mut lane = lane();
        lane.advance(LaneRead::ToEnd, 5, 3, 9);
        assert_eq!((lane.read, lane.covered, lane.from()), (9, 3, 3));
    }

    #[test]
    fn a_full_claim_covers_no_more_than_it_read() {
        let mut lane = lane();
        lane.advance(LaneRead::UpTo(5), 5, 100, 100);
        assert_eq!((lane.read, lane.covered, lane.from()), (5, 5, 5));
    }

    #[test]
    fn a_rewind_goes_right_before_the_event_and_leaves_what_is_covered() {
        let mut lane = lane();
        lane.advance(LaneRead::ToEnd, 9, 9, 9);
        lane.rewind(4);
        assert_eq!((lane.read, lane.covered, lane.from()), (3, 9, 3));
    }

    #[test]
    fn a_bounded_claim_goes_on_from_what_was_read_unless_more_of_that_is_safe_by_now() {
        let mut lane = lane();
        lane.advance(LaneRead::ToEnd, 9, 3, 9);
        assert_eq!((lane.next_from(3), lane.next_from(5)), (9, 3));
    }

    #[test]
    fn distrust_takes_back_both_marks() {
        let mut lane = lane();
        lane.advance(LaneRead::ToEnd, 9, 9, 9);
        lane.distrust(4);
        assert_eq!((lane.read, lane.covered), (4, 4));
    }

    proptest! {
        #[test]
        fn covered_never_passes_what_was_safe_or_read(
            claims in prop::collection::vec((any::<bool>(), 0i64..100, 0i64..100), 1..30)
        ) {
            let mut lane = lane();
            let (mut most_safe, mut most_read) = (0, 0);
            for (to_end, position, safe) in claims {
                let read = if to_end { LaneRead::ToEnd } else { LaneRead::UpTo(position) };
                most_safe = most_safe.max(safe);
                lane.advance(read, position, safe, safe);
                most_read = most_read.max(if to_end { position.max(safe) } else { position });
                prop_assert!(lane.covered <= most_safe);
                prop_assert!(lane.covered <= most_read);
                prop_assert!(lane.from() <= lane.read);
            }
        }
    }
}
