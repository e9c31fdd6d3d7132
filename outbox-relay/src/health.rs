//! When a pipeline is not well: a policy without I/O and without a clock.

use std::time::{Duration, Instant};

use outbox::Report;
use serde::Serialize;

/// Why a pipeline is not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Trouble {
    /// It has not joined its source yet.
    Starting,
    /// It could not start, and will try again.
    CannotStart,
    /// Its last statement failed.
    SourceFails,
    /// Its destination is down.
    DestinationDown,
    /// Events are due, and none has moved for longer than a lease.
    NothingMoves,
    /// It has been told to stop.
    Stopping,
}

/// When a pipeline last moved an event.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    moved: u64,
    since: Option<Instant>,
}

impl Progress {
    /// Takes in a report. Without an event in memory there is nothing that could stand still.
    pub(crate) fn look(&mut self, report: &Report, now: Instant) {
        let moved = report.delivered + report.failed;
        if self.since.is_none() || moved != self.moved || !is_due(report) {
            *self = Self { moved, since: Some(now) };
        }
    }

    /// What is wrong with a pipeline that has started, if anything; `patience` is how long due events may stand still.
    pub(crate) fn trouble(
        &self,
        report: &Report,
        patience: Duration,
        now: Instant,
    ) -> Option<Trouble> {
        let still = self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        if report.failure.is_some() {
            Some(Trouble::SourceFails)
        } else if report.destination_down.is_some() {
            Some(Trouble::DestinationDown)
        } else if is_due(report) && still > patience {
            Some(Trouble::NothingMoves)
        } else {
            None
        }
    }
}

/// Whether this worker has events to move: in memory, or due in its table while no aggregate waits for an operator. Another
/// worker's lanes are not its own.
fn is_due(report: &Report) -> bool {
    let in_table = report
        .backlog
        .as_ref()
        .is_some_and(|backlog| backlog.oldest.is_some() && backlog.blocked == 0);
    report.lanes_owned > 0 && (report.window_events > 0 || in_table)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// What `change` makes of a report on a pipeline that has an event to move.
    fn report(change: impl FnOnce(&mut Report)) -> Report {
        let mut report = Report::default();
        (report.joined, report.lanes_owned, report.window_events) = (true, 16, 1);
        change(&mut report);
        report
    }

    /// What is said of one report after another, a minute apart.
    fn trouble(reports: &[Report]) -> Option<Trouble> {
        let mut now = Instant::now();
        let mut progress = Progress::default();
        for report in reports {
            now += PATIENCE * 2;
            progress.look(report, now);
        }
        now += PATIENCE * 2;
        progress.trouble(reports.last().expect("a report"), PATIENCE, now)
    }

    #[test]
    fn due_events_that_do_not_move_are_trouble() {
        assert_eq!(trouble(&[report(|_| ())]), Some(Trouble::NothingMoves));
        let in_the_table = report(|report| {
            report.window_events = 0;
            let mut backlog = outbox::Backlog::default();
            backlog.oldest = Some(Duration::from_secs(1));
            report.backlog = Some(backlog);
        });
        assert_eq!(trouble(std::slice::from_ref(&in_the_table)), Some(Trouble::NothingMoves));
        let mut blocked = in_the_table;
        blocked.backlog.as_mut().expect("it was set").blocked = 1;
        assert_eq!(trouble(&[blocked]), None, "an operator is waited for");
    }

    #[test]
    fn nothing_to_move_is_no_trouble() {
        assert_eq!(trouble(&[report(|report| report.window_events = 0)]), None);
        assert_eq!(trouble(&[report(|report| report.lanes_owned = 0)]), None);
    }

    #[test]
    fn an_event_that_ends_either_way_is_a_move() {
        for (delivered, failed) in [(1, 0), (0, 1)] {
            let (mut progress, begin) = (Progress::default(), Instant::now());
            progress.look(&report(|_| ()), begin);
            let later = begin + PATIENCE * 2;
            let moved = report(|report| (report.delivered, report.failed) = (delivered, failed));
            progress.look(&moved, later);
            assert_eq!(progress.trouble(&moved, PATIENCE, later + PATIENCE / 2), None);
        }
    }

    #[test]
    fn failures_are_trouble_at_once() {
        let failing = report(|report| report.failure = Some("x".to_owned()));
        let down = report(|report| report.destination_down = Some("x".to_owned()));
        let now = Instant::now();
        let at_once = |report| Progress::default().trouble(report, PATIENCE, now);
        assert_eq!(at_once(&failing), Some(Trouble::SourceFails));
        assert_eq!(at_once(&down), Some(Trouble::DestinationDown));
        assert_eq!(at_once(&report(|_| ())), None);
    }
}
