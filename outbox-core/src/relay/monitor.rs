//! What a relay is doing, for whoever watches it from the same process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Backlog;

/// A look into a running relay: give a clone to [`Relay::with_monitor`](crate::Relay::with_monitor), and ask it for a
/// [`Report`] at any time. The metrics tell the same to those outside.
#[derive(Clone, Debug, Default)]
pub struct Monitor(Arc<Mutex<Report>>);

/// What a relay was doing when it was asked.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// Whether the pipeline has joined its store and has not ended since.
    pub joined: bool,
    /// Why the destination counts as down; `None` while it does not. Without secrets.
    pub destination_down: Option<String>,
    /// Why the last statement, or the pipeline's last life, failed; `None` once a claim or a heartbeat has worked again.
    /// Without secrets.
    pub failure: Option<String>,
    /// Lanes that it owns.
    pub lanes_owned: u64,
    /// Events in memory, from claim to settle.
    pub window_events: u64,
    /// Messages whose deadline has passed without a verdict.
    pub open_messages: u64,
    /// Events that the broker has confirmed since the relay started.
    pub delivered: u64,
    /// Tries that ended otherwise since then: tried again later, or given up.
    pub failed: u64,
    /// Restarts of the pipeline after an error or a panic.
    pub restarts: u64,
    /// The table's figures, as old as [`Timing::backlog`](crate::Timing::backlog) at most; `None` before the first look, or when
    /// the store has none.
    pub backlog: Option<Backlog>,
}

impl Monitor {
    /// A monitor that no relay reports to yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What the relay is doing now. One that has ended has no lane, no event and no backlog; its counts stay.
    #[must_use]
    pub fn report(&self) -> Report {
        self.lock().clone()
    }

    pub(crate) fn tell(&self, change: impl FnOnce(&mut Report)) {
        change(&mut self.lock());
    }

    /// Everything but counts and failure goes back to nothing.
    pub(crate) fn ended(&self) {
        self.tell(|report| {
            let Report { failure, delivered, failed, restarts, .. } = std::mem::take(report);
            *report = Report { failure, delivered, failed, restarts, ..Report::default() };
        });
    }

    fn lock(&self) -> MutexGuard<'_, Report> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
