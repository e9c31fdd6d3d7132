//! How many positions one statement goes through.
//!
//! A claim looks at every row between its cursor and the end of the table, also at those that it cannot give: successors
//! of an event that waits, events of another pipeline, dead rows that an old snapshot keeps. There may be more of them than
//! a statement gets through before its deadline, and it would fail in the same way for ever. So a statement that got no
//! answer is followed by one over a part of its range, ever smaller until one is answered; from then on ever larger, until
//! it reaches the end of the table again.

use std::time::Duration;

use crate::Position;

/// The reach of one kind of statement. Unbounded until one of them fails or is slow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reach {
    width: Option<Position>,
}

/// What a failure divides the range by, and a quick answer multiplies it with.
const STEP: Position = 4;

impl Reach {
    /// Up to where a statement reads that starts at `start`, in a table that goes to `top`. [`Position::MAX`] is unbounded.
    ///
    /// What lies below 1 was given by hand: it is little, and comes along with what lies above.
    pub(crate) fn bound(self, start: Position, top: Position) -> Position {
        let to = self.width.map_or(Position::MAX, |width| start.max(0).saturating_add(width));
        if to >= top { Position::MAX } else { to }
    }

    /// How many positions a statement goes through that reads from above `from` up to `to`.
    pub(crate) fn span(from: Position, to: Position) -> Position {
        (to.max(0) - from.max(0)).max(0)
    }

    /// A statement over `span` positions got no answer.
    pub(crate) fn failed(&mut self, span: Position) {
        self.narrow(span, STEP);
    }

    /// A statement over `span` positions was answered after `took`, where `enough` is as long as it should take.
    pub(crate) fn answered(&mut self, span: Position, took: Duration, enough: Duration) {
        if took > enough {
            self.narrow(span, 2);
        } else if took * 4 <= enough
            && let Some(width) = &mut self.width
            // A range that was cut short by the end of the table says nothing about a larger one.
            && *width <= span
        {
            *width = width.saturating_mul(STEP);
        }
    }

    fn narrow(&mut self, span: Position, by: Position) {
        let width = self.width.map_or(span, |width| width.min(span));
        self.width = Some((width / by).max(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENOUGH: Duration = Duration::from_secs(2);
    const QUICK: Duration = Duration::from_millis(1);

    #[test]
    fn nothing_is_bounded_while_statements_are_answered() {
        let mut reach = Reach::default();
        reach.answered(1_000_000, QUICK, ENOUGH);
        assert_eq!(reach.bound(0, 1_000_000), Position::MAX);
    }

    #[test]
    fn every_failure_narrows_the_range_down_to_one_position() {
        let mut reach = Reach::default();
        let mut bounds = Vec::new();
        for span in [1_000, 250, 62, 15, 3, 1] {
            reach.failed(span);
            bounds.push(reach.bound(10, 1_000_000));
        }
        assert_eq!(bounds, [260, 72, 25, 13, 11, 11]);
    }

    #[test]
    fn quick_answers_widen_it_until_it_reaches_the_end_of_the_table() {
        let mut reach = Reach::default();
        reach.failed(1_000);
        let mut at = 0;
        while reach.bound(at, 10_000) != Position::MAX {
            let to = reach.bound(at, 10_000);
            reach.answered(to - at, QUICK, ENOUGH);
            at = to;
        }
        assert_eq!(at, 250 + 1_000 + 4_000);
    }

    #[test]
    fn a_slow_answer_narrows_the_range_and_a_middling_one_keeps_it() {
        let mut reach = Reach::default();
        reach.answered(1_000, ENOUGH * 2, ENOUGH);
        assert_eq!(reach.bound(0, 1_000), 500);
        reach.answered(500, ENOUGH, ENOUGH);
        assert_eq!(reach.bound(0, 1_000), 500);
    }

    #[test]
    fn a_range_that_reaches_the_end_is_unbounded() {
        let mut reach = Reach::default();
        reach.failed(1_000);
        assert_eq!(reach.bound(700, 1_000), 950);
        assert_eq!(reach.bound(750, 1_000), Position::MAX);
    }
}
