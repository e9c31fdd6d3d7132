//! How far the table is *closed*: below it nothing can appear any more.
//!
//! A position is drawn when a row is inserted, the row appears when its transaction commits. A position S is closed when
//! every transaction that held a writer's lock on the table after S had been seen has ended: whoever draws a position
//! takes the lock first, and whoever commits becomes visible before its lock goes. So two looks suffice: remember S and
//! the writers that are open; once none of them is open any more, S is closed. A claim that starts after that sees every
//! row at or below S that there will ever be.
//!
//! A writer that stays open for long would hold everything up. It is set aside: S goes on without it, and every later claim
//! is checked for whether its snapshot still misses that transaction. If not, its rows have appeared somewhere above
//! where it was set aside, and reading goes back to there before anything of that claim is believed.

use std::collections::BTreeMap;
use std::time::Duration;

use super::reading::BEGINNING;
use crate::{Position, Probe, Snapshot, Watermark as Mode};

/// How long a writer may stay open before it is set aside.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// Follows the probes of one pipeline.
#[derive(Debug)]
pub(crate) struct Watermark {
    mode: Mode,
    /// The highest position seen.
    top: Position,
    safe: Position,
    candidate: Option<Candidate>,
    /// When each open writer was first seen.
    since: BTreeMap<String, Duration>,
    aside: BTreeMap<String, Aside>,
}

#[derive(Debug)]
struct Candidate {
    upto: Position,
    holders: Vec<String>,
}

/// A writer that is no longer waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Aside {
    /// Its transaction id.
    pub(crate) transaction: u64,
    /// Its rows lie above this position.
    pub(crate) stood: Position,
}

impl Watermark {
    pub(crate) fn new(mode: Mode) -> Self {
        Self {
            mode,
            top: 0,
            safe: BEGINNING,
            candidate: None,
            since: BTreeMap::new(),
            aside: BTreeMap::new(),
        }
    }

    /// Forgets everything: the server is another one, or was restarted.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.mode);
    }

    /// Below this position, and at it, nothing can appear in a claim that starts now or later.
    pub(crate) fn safe(&self) -> Position {
        self.safe
    }

    /// The highest position that any probe has seen.
    pub(crate) fn top(&self) -> Position {
        self.top
    }

    /// The writers that a claim which starts now does not wait for.
    pub(crate) fn aside(&self) -> Vec<Aside> {
        self.aside.values().copied().collect()
    }

    /// Takes in what a probe found at `now`; `snapshots` says that claims tell theirs.
    pub(crate) fn observe(&mut self, probe: &Probe, now: Duration, snapshots: bool) {
        self.top = self.top.max(probe.top);
        match self.mode {
            Mode::None => return,
            Mode::CommitOrder => {
                self.safe = self.top;
                return;
            }
            Mode::Writers => {}
        }
        self.since.retain(|name, _| probe.writers.iter().any(|writer| writer.name == *name));
        for writer in &probe.writers {
            let since = *self.since.entry(writer.name.clone()).or_insert(now);
            if let Some(transaction) = writer.transaction
                && snapshots
                && now.saturating_sub(since) >= PATIENCE
                && !self.aside.contains_key(&writer.name)
            {
                let aside = Aside { transaction, stood: self.safe };
                self.aside.insert(writer.name.clone(), aside);
            }
        }
        let waited_for = |name: &String| !self.aside.contains_key(name);
        let open: Vec<String> =
            probe.writers.iter().map(|writer| writer.name.clone()).filter(waited_for).collect();
        if let Some(candidate) = &mut self.candidate {
            candidate.holders.retain(|holder| open.contains(holder));
        }
        self.close_candidate();
        if self.candidate.is_none() {
            self.candidate = Some(Candidate { upto: self.top, holders: open });
            self.close_candidate();
        }
    }

    fn close_candidate(&mut self) {
        if let Some(candidate) = self.candidate.take_if(|candidate| candidate.holders.is_empty()) {
            self.safe = self.safe.max(candidate.upto);
        }
    }

    /// Looks at the snapshot of a claim that started when `aside` were set aside: the lowest place to which reading must
    /// go back because such a writer has ended. Whoever has ended is forgotten.
    pub(crate) fn returned(&mut self, aside: &[Aside], snapshot: &Snapshot) -> Option<Position> {
        let ended = |aside: &Aside| !snapshot.misses(aside.transaction);
        self.aside.retain(|_, one| !(aside.contains(one) && ended(one)));
        aside.iter().filter(|one| ended(one)).map(|one| one.stood).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OpenWriter;
    use proptest::prelude::*;

    fn probe(top: Position, writers: &[(&str, Option<u64>)]) -> Probe {
        let writers = writers
            .iter()
            .map(|(name, transaction)| OpenWriter {
                name: (*name).to_owned(),
                transaction: *transaction,
            })
            .collect();
        Probe::new(top, writers, "")
    }

    const NOW: Duration = Duration::ZERO;

    #[test]
    fn without_writers_the_highest_position_is_closed_at_once() {
        let mut watermark = Watermark::new(Mode::Writers);
        watermark.observe(&probe(7, &[]), NOW, true);
        assert_eq!(watermark.safe(), 7);
    }

    #[test]
    fn a_position_closes_when_every_writer_of_its_time_has_ended() {
        let mut watermark = Watermark::new(Mode::Writers);
        watermark.observe(&probe(7, &[("a", None), ("b", None)]), NOW, true);
        assert_eq!(watermark.safe(), BEGINNING);
        watermark.observe(&probe(9, &[("b", None), ("c", None)]), NOW, true);
        assert_eq!(watermark.safe(), BEGINNING);
        watermark.observe(&probe(9, &[("c", None)]), NOW, true);
        assert_eq!(watermark.safe(), 7, "somebody is always open: names count, not emptiness");
        watermark.observe(&probe(9, &[]), NOW, true);
        assert_eq!(watermark.safe(), 9);
    }

    #[test]
    fn the_highest_position_never_falls() {
        let mut watermark = Watermark::new(Mode::Writers);
        watermark.observe(&probe(7, &[]), NOW, true);
        watermark.observe(&probe(0, &[]), NOW, true);
        assert_eq!((watermark.top(), watermark.safe()), (7, 7));
    }

    #[test]
    fn a_long_writer_is_set_aside_and_its_end_sends_reading_back() {
        let mut watermark = Watermark::new(Mode::Writers);
        watermark.observe(&probe(5, &[]), NOW, true);
        watermark.observe(&probe(7, &[("long", Some(100))]), NOW, true);
        watermark.observe(&probe(9, &[("long", Some(100))]), PATIENCE, true);
        assert_eq!(watermark.safe(), 9);
        let aside = watermark.aside();
        let mut snapshot = Snapshot { lowest_open: 100, first_unborn: 101, in_progress: vec![100] };
        assert_eq!(watermark.returned(&aside, &snapshot), None);
        snapshot.in_progress.clear();
        assert_eq!(watermark.returned(&aside, &snapshot), Some(5));
        assert!(watermark.aside().is_empty());
    }

    #[test]
    fn a_writer_without_a_transaction_id_or_a_store_without_snapshots_is_waited_for() {
        let mut watermark = Watermark::new(Mode::Writers);
        for now in [NOW, PATIENCE * 5] {
            watermark.observe(&probe(7, &[("long", None)]), now, true);
            watermark.observe(&probe(7, &[("other", Some(1))]), now, false);
        }
        assert!(watermark.aside().is_empty());
    }

    proptest! {
        /// Writers come and go at random and draw positions; whatever the watermark calls closed, no row appears in it later.
        #[test]
        fn nothing_appears_at_or_below_a_closed_position(steps in prop::collection::vec((0u8..4, 0usize..6), 1..200)) {
            let mut watermark = Watermark::new(Mode::Writers);
            let mut next = 1;
            let mut visible_top = 0;
            let mut open: Vec<(String, Vec<Position>)> = Vec::new();
            for (count, (kind, which)) in steps.into_iter().enumerate() {
                match kind {
                    0 => open.push((format!("writer-{count}"), Vec::new())),
                    1 if which < open.len() => {
                        open[which].1.push(next);
                        next += 1;
                    }
                    2 if which < open.len() => {
                        for position in open.remove(which).1 {
                            prop_assert!(position > watermark.safe());
                            visible_top = visible_top.max(position);
                        }
                    }
                    _ => {
                        let writers: Vec<(&str, Option<u64>)> =
                            open.iter().map(|(name, _)| (name.as_str(), None)).collect();
                        watermark.observe(&probe(visible_top, &writers), NOW, false);
                    }
                }
            }
        }
    }
}
