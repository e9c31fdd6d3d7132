//! Settles that the database refuses.
//!
//! One is narrowed by lane, then by halves, until one row is left; that one is set aside for a minute, and the others go
//! on. When rows of one kind of verdict are refused one after another, it is not the rows: a partition is missing, a trigger
//! has a mistake. Then verdicts of that kind stand, one is tried now and then, and the first that is written frees all.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::Duration;

use super::known::Handle;
use super::outcomes::EventLog;
use super::pipeline::Pipeline;
use super::settles::{Judged, Kind};
use crate::{LaneId, RetryPolicy, StoreError};

/// Verdicts that the database has refused.
#[derive(Debug, Default)]
pub(super) struct Refused {
    /// Single verdicts, and when they are tried again.
    quarantine: Vec<(Duration, Judged)>,
    kinds: [Standing; Kind::COUNT],
}

/// One kind of verdict.
#[derive(Debug, Default)]
struct Standing {
    /// How many were refused one by one for the first time, and none was written between.
    in_a_row: u32,
    /// Its verdicts, while they stand.
    judged: VecDeque<Judged>,
    /// When one of them is tried, while they stand.
    next: Option<Duration>,
    tries: u32,
}

/// How long a verdict that the database refuses stays aside.
const QUARANTINE: Duration = Duration::from_secs(60);

/// So many rows refused in a row are not to blame themselves.
const SYSTEMIC: u32 = 8;

/// Between two tries of a kind that stands: twice as long each time, up to the second.
const TRIES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(15));

impl Refused {
    /// Keeps the verdict if its kind stands; else gives it back.
    pub(super) fn keep(&mut self, judged: Judged) -> Option<Judged> {
        let standing = &mut self.kinds[judged.kind() as usize];
        if standing.next.is_none() || judged.is_charge() {
            return Some(judged);
        }
        standing.judged.push_back(judged);
        None
    }

    /// Whether an attempt may be written before its call: while its kind stands only as the one that is tried.
    pub(super) fn may_charge(&self, now: Duration) -> bool {
        self.kinds[Kind::Waits as usize].next.is_none_or(|next| now >= next)
    }

    /// Everything that is set aside.
    pub(super) fn handles(&self) -> HashSet<Handle> {
        let standing = self.kinds.iter().flat_map(|kind| &kind.judged);
        standing
            .chain(self.quarantine.iter().map(|(_, judged)| judged))
            .map(Judged::handle)
            .collect()
    }

    fn len(&self) -> usize {
        self.quarantine.len() + self.kinds.iter().map(|kind| kind.judged.len()).sum::<usize>()
    }
}

impl Pipeline {
    /// The database refuses something of this: by lane first, then by halves, until one verdict is left.
    pub(super) fn refused(&mut self, mut judged: Vec<Judged>, error: &StoreError, now: Duration) {
        judged.retain(|judged| self.known.is_known(judged.handle()));
        if judged.len() <= 1 {
            if let Some(judged) = judged.pop() {
                self.put_aside(judged, error, now);
            }
            return;
        }
        let mut by_lane: BTreeMap<LaneId, Vec<Judged>> = BTreeMap::new();
        for judged in judged {
            by_lane.entry(self.known.event(judged.handle()).lane()).or_default().push(judged);
        }
        let mut parts: Vec<Vec<Judged>> = by_lane.into_values().collect();
        if let [one] = parts.as_mut_slice() {
            let second = one.split_off(one.len() / 2);
            parts.push(second);
        }
        // The smallest part comes first, so that it soon shows whether one row is to blame or all are.
        parts.into_iter().rev().for_each(|part| self.settler.parts.push_front(part));
    }

    fn put_aside(&mut self, mut judged: Judged, error: &StoreError, now: Duration) {
        let (kind, again) = (judged.kind(), std::mem::replace(&mut judged.refused, true));
        let reason = crate::error::chain(error);
        self.forget_charge(judged.handle());
        let event = self.known.event(judged.handle());
        let pipeline = self.worker.pipeline.name();
        let standing = &mut self.settler.refused.kinds[kind as usize];
        standing.in_a_row += u32::from(!again);
        if standing.in_a_row >= SYSTEMIC {
            let begins = standing.tries == 0;
            standing.tries = standing.tries.saturating_add(1);
            let pause = RetryPolicy::default().with_delays(TRIES.0, TRIES.1);
            standing.next = Some(now + pause.delay(standing.tries, fastrand::f64()));
            if begins {
                tracing::error!(
                    pipeline,
                    verdict = ?kind,
                    reason,
                    "the database refuses one row after another: these verdicts stand, and one is tried now and then"
                );
            } else {
                tracing::debug!(pipeline, verdict = ?kind, reason, "the database still refuses");
            }
            self.settler.refused.quarantine.push((now + QUARANTINE, judged));
            self.stand(kind, now);
        } else {
            let log = EventLog::of(event);
            tracing::error!(
                pipeline,
                id = %event.id(),
                event_type = event.event_type(),
                position = event.position(),
                lane = event.lane(),
                verdict = ?kind,
                trace = log.trace,
                correlation_id = log.correlation_id,
                reason,
                "the database refuses the verdict on this event: it is tried again every minute, others go on"
            );
            self.settler.refused.quarantine.push((now + QUARANTINE, judged));
        }
        self.tell_refused();
    }

    /// Verdicts of this kind stand from now on, wherever they are; but for attempts that were to be written before a call.
    fn stand(&mut self, kind: Kind, now: Duration) {
        let waiting = self.settler.take_kind(kind);
        let refused = &mut self.settler.refused;
        let aside = std::mem::take(&mut refused.quarantine);
        let waiting = waiting.into_iter().map(|judged| (now + QUARANTINE, judged));
        for (until, judged) in waiting.chain(aside) {
            let charge = refused.keep(judged);
            refused.quarantine.extend(charge.map(|charge| (until, charge)));
        }
    }

    /// These were written: what is refused of their kinds is the rows' own fault.
    pub(super) fn written(&mut self, judged: &[Judged]) {
        for kind in judged.iter().map(Judged::kind) {
            let standing = std::mem::take(&mut self.settler.refused.kinds[kind as usize]);
            if standing.next.is_some() {
                let pipeline = self.worker.pipeline.name();
                tracing::info!(pipeline, verdict = ?kind, "the database takes these verdicts again");
            }
            let mut judged = standing.judged;
            while !judged.is_empty() {
                let part = judged.len().min(self.parts.limits.settle_events.max(1));
                self.settler.parts.push_back(judged.drain(..part).collect());
            }
        }
        self.tell_refused();
    }

    /// Tries again what has been aside for long enough.
    pub(super) fn pump_refused(&mut self, now: Duration) {
        if self.settler.refused.len() == 0 {
            return;
        }
        for kind in &mut self.settler.refused.kinds {
            if kind.next.is_some_and(|next| now >= next) {
                // One at a time: the answer says when the next one is tried.
                kind.next = kind.judged.front().map(|_| now + QUARANTINE);
                self.settler.parts.extend(kind.judged.pop_front().map(|judged| vec![judged]));
            }
        }
        for (until, judged) in std::mem::take(&mut self.settler.refused.quarantine) {
            if now < until {
                self.settler.refused.quarantine.push((until, judged));
            } else if judged.is_charge() && self.known.is_known(judged.handle()) {
                // It is counted anew when its turn comes: another one may be counted now.
                self.known.unjudge(judged.handle());
            } else if let Some(judged) = self.settler.refused.keep(judged) {
                self.settler.parts.push_back(vec![judged]);
            }
        }
        self.tell_refused();
    }

    /// The lane goes to another owner, who reads these events again.
    pub(super) fn drop_refused(&mut self, lane: LaneId) {
        if self.settler.refused.len() == 0 {
            return;
        }
        let (known, refused) = (&mut self.known, &mut self.settler.refused);
        let mut stays = |judged: &Judged| {
            let gone =
                known.is_known(judged.handle()) && known.event(judged.handle()).lane() == lane;
            if gone {
                known.drop_judged(judged.handle());
            }
            !gone
        };
        refused.quarantine.retain(|(_, judged)| stays(judged));
        refused.kinds.iter_mut().for_each(|kind| kind.judged.retain(&mut stays));
        self.tell_refused();
    }

    fn tell_refused(&self) {
        self.telemetry.quarantined.set(self.settler.refused.len() as f64);
    }
}
