//! Outages: the pipeline pauses, probes with one event, and comes back step by step.
//!
//! An event that kills the connection looks like an outage. So what follows an outage is sent one at a time, over several
//! aggregates, before calls grow again: as many as the failed call carried, within bounds. An event that fails alone
//! between two others that pass, twice, is counted as failed.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::{Position, RetryPolicy};

/// Whether, and how much, a pipeline may send.
#[derive(Debug)]
pub(crate) struct Outage {
    backoff: RetryPolicy,
    /// Failed tries in a row; 0 when healthy or recovering.
    failures: u32,
    /// When the last of them was told.
    failed_at: Duration,
    paused_until: Option<Duration>,
    /// Events a call may carry; `None` is no limit.
    limit: Option<usize>,
    /// Single events still to be sent before calls may grow.
    singles: usize,
    /// The last lone failure, if a lone success came right before it.
    bracketed: Option<Position>,
    passed_last: bool,
    /// Events that failed alone between two that passed: once more and they are counted. They are sent alone.
    suspects: BTreeSet<Position>,
}

/// After an outage at least this many single events pass before calls grow.
const SINGLES: usize = 3;

/// And no more than this: a larger call is narrowed in several rounds, since what failed together is sent again first.
const MOST_SINGLES: usize = 64;

impl Outage {
    pub(crate) fn new(base: Duration, max: Duration) -> Self {
        Self {
            backoff: RetryPolicy::default().with_delays(base, max),
            failures: 0,
            failed_at: Duration::ZERO,
            paused_until: None,
            limit: None,
            singles: 0,
            bracketed: None,
            passed_last: false,
            suspects: BTreeSet::new(),
        }
    }

    /// Until when nothing may be sent.
    pub(crate) fn paused_until(&self, now: Duration) -> Option<Duration> {
        self.paused_until.filter(|until| *until > now)
    }

    /// Whether the destination counts as down: the last try failed.
    pub(crate) fn is_down(&self) -> bool {
        self.failures > 0
    }

    /// Events a call may carry; while it is not `None` only one call runs.
    pub(crate) fn limit(&self) -> Option<usize> {
        self.limit
    }

    /// Whether this event is to be sent alone.
    pub(crate) fn is_suspect(&self, position: Position) -> bool {
        self.suspects.contains(&position)
    }

    /// The event is gone.
    pub(crate) fn forget(&mut self, position: Position) {
        self.suspects.remove(&position);
    }

    /// A call with `sent` events that began at `began` met an outage; `lone` is the event if it carried just one. A call that
    /// was on its way when the pause began met the same outage: it lengthens nothing.
    pub(crate) fn failed(
        &mut self,
        sent: usize,
        lone: Option<Position>,
        began: Duration,
        now: Duration,
        luck: f64,
    ) {
        if self.failures == 0 || began > self.failed_at {
            self.failures = self.failures.saturating_add(1);
            self.paused_until = Some(now + self.backoff.delay(self.failures, luck));
            self.failed_at = now;
        }
        self.limit = Some(1);
        self.singles = self.singles.max(sent.clamp(SINGLES, MOST_SINGLES));
        self.bracketed = lone.filter(|_| self.passed_last);
        self.passed_last = false;
    }

    /// Something was confirmed: the pause is over.
    pub(crate) fn answers(&mut self) {
        self.failures = 0;
        self.paused_until = None;
    }

    /// Something was confirmed by a call with `sent` events, and in time. Returns the event that is to be counted as failed.
    pub(crate) fn passed(&mut self, sent: usize, lone: Option<Position>) -> Option<Position> {
        self.answers();
        let limit = self.limit?;
        let charged = self.bracketed.take().filter(|failed| Some(*failed) != lone);
        let counted = charged.filter(|failed| !self.suspects.insert(*failed));
        self.passed_last = lone.is_some();
        if charged.is_none() {
            self.grow(limit, sent);
        }
        counted
    }

    /// The event that should be looked at next: it failed alone once between two that passed.
    pub(crate) fn suspects(&self) -> impl Iterator<Item = Position> {
        self.suspects.iter().copied()
    }

    fn grow(&mut self, limit: usize, sent: usize) {
        self.singles = self.singles.saturating_sub(sent);
        if self.singles == 0 {
            let grown = limit.saturating_mul(2);
            self.limit = (grown < Self::FULL).then_some(grown);
        }
    }

    /// A call this large is not limited any more.
    const FULL: usize = 1024;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call that began after all before it, and fails at once.
    fn fail(outage: &mut Outage, sent: usize, lone: Option<Position>) -> Duration {
        let now = outage.failed_at + Duration::from_secs(60);
        outage.failed(sent, lone, now, now, 0.0);
        now
    }

    fn outage() -> Outage {
        Outage::new(Duration::from_millis(500), Duration::from_secs(15))
    }

    #[test]
    fn an_outage_pauses_longer_each_time_and_a_success_ends_the_pause() {
        let mut outage = outage();
        let mut pauses = Vec::new();
        for _ in 0..7 {
            let now = fail(&mut outage, 1, Some(1));
            pauses.push((outage.paused_until(now).unwrap() - now).as_millis());
        }
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 15_000, 15_000]);
        assert!(outage.is_down());
        outage.passed(1, Some(1));
        assert_eq!(outage.paused_until(Duration::ZERO), None);
        assert!(!outage.is_down());
    }

    #[test]
    fn calls_that_were_on_their_way_together_meet_one_outage() {
        let mut outage = outage();
        let at = Duration::from_secs;
        for now in [7, 8, 9] {
            outage.failed(10, None, at(5), at(now), 0.0);
        }
        assert_eq!(outage.paused_until(at(7)), Some(at(7) + Duration::from_millis(500)));
        outage.failed(1, None, at(8), at(9), 0.0);
        assert_eq!(outage.paused_until(at(9)), Some(at(10)));
    }

    #[test]
    fn calls_grow_only_after_as_many_singles_as_the_failed_call_carried() {
        let mut outage = outage();
        fail(&mut outage, 8, None);
        for single in 0..8 {
            assert_eq!(outage.limit(), Some(1), "after {single}");
            outage.passed(1, Some(single));
        }
        assert_eq!(outage.limit(), Some(2));
        for sent in [2, 4, 8, 16, 32, 64, 128, 256, 512] {
            outage.passed(sent, None);
        }
        assert_eq!(outage.limit(), None);
    }

    #[test]
    fn a_late_confirmation_ends_the_pause_and_lifts_no_limit() {
        let mut outage = outage();
        fail(&mut outage, 8, None);
        for single in 0..8 {
            outage.passed(1, Some(single));
        }
        for _ in 0..20 {
            outage.answers();
        }
        assert_eq!(outage.limit(), Some(2), "as much as was shown to pass");
        let now = fail(&mut outage, 2, None);
        outage.answers();
        assert_eq!((outage.paused_until(now), outage.limit()), (None, Some(1)));
    }

    #[test]
    fn a_late_confirmation_is_no_success_that_puts_a_lone_failure_between_two() {
        let mut outage = outage();
        fail(&mut outage, 8, None);
        assert_eq!(outage.passed(1, Some(1)), None);
        fail(&mut outage, 1, Some(7));
        outage.answers();
        assert!(!outage.is_suspect(7));
    }

    #[test]
    fn a_large_call_that_failed_costs_a_bounded_number_of_singles() {
        let mut outage = outage();
        fail(&mut outage, 2000, None);
        let mut singles = 0;
        while outage.limit() == Some(1) {
            outage.passed(1, Some(singles));
            singles += 1;
        }
        assert_eq!(singles, 64);
    }

    #[test]
    fn an_event_that_fails_alone_between_others_twice_is_counted() {
        let mut outage = outage();
        fail(&mut outage, 8, None);
        assert_eq!(outage.passed(1, Some(1)), None);
        fail(&mut outage, 1, Some(7));
        assert_eq!(outage.passed(1, Some(2)), None);
        assert!(outage.is_suspect(7));
        fail(&mut outage, 1, Some(7));
        assert_eq!(outage.passed(1, Some(3)), Some(7));
    }

    #[test]
    fn an_outage_that_hits_every_event_counts_none() {
        let mut outage = outage();
        fail(&mut outage, 8, None);
        for position in [1, 2, 3, 1, 2, 3] {
            fail(&mut outage, 1, Some(position));
        }
        assert_eq!(outage.passed(1, Some(1)), None);
        assert_eq!(outage.passed(1, Some(2)), None);
        assert_eq!(outage.suspects().count(), 0);
    }
}
