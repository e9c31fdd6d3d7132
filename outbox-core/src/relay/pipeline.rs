//! One pipeline at work: the only owner of everything it knows.
//!
//! Statements and publish calls run as tasks of their own and answer through one channel. So this loop never waits for a
//! server, there is no lock, and a heartbeat is never late because a broker is slow. The parts stand in files of their
//! own: [`claims`](super::claims) reads, [`calls`](super::calls) publishes, [`settles`](super::settles) writes,
//! [`leases`](super::leases) keeps lanes.

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use super::calls::Calls;
use super::careful::Careful;
use super::claims::Reader;
use super::clock::Clock;
use super::config::{Limits, Timing};
use super::destinations::Destinations;
use super::known::Known;
use super::leases::Keeper;
use super::outage::Outage;
use super::reading::Lane;
use super::settles::Settler;
use super::watermark::Watermark;
use crate::hint::Hinted;
use crate::telemetry::Telemetry;
use crate::{
    Backlog, Claimed, Hint, LaneId, Leases, Probe, Publisher, RetryPolicies, Router, Settled,
    Store, StoreError, StoreErrorKind, Worker,
};

/// What a pipeline works with.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) publisher: Arc<dyn Publisher>,
    pub(crate) router: Arc<Router>,
    pub(crate) retry: Arc<RetryPolicies>,
    pub(crate) limits: Limits,
    pub(crate) timing: Timing,
    pub(crate) hint: Hint,
    pub(crate) clock: Clock,
}

/// See the module.
pub(crate) struct Pipeline {
    pub(super) parts: Parts,
    pub(super) worker: Worker,
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) lane_count: u16,
    pub(super) lanes: BTreeMap<LaneId, Lane>,
    pub(super) known: Known,
    pub(super) watermark: Watermark,
    pub(super) outage: Outage,
    pub(super) reader: Reader,
    pub(super) calls: Calls,
    pub(super) careful: Careful,
    pub(super) settler: Settler,
    pub(super) keeper: Keeper,
    pub(super) destinations: Destinations,
    /// When the stop must be over, once it has begun.
    pub(super) stopping: Option<Duration>,
    next_backlog: Duration,
    replies: UnboundedSender<Reply>,
    inbox: UnboundedReceiver<Reply>,
    tasks: JoinSet<()>,
}

/// What a task answers.
pub(super) enum Reply {
    Probed(Result<Probe, StoreError>),
    Claimed(Result<Claimed, StoreError>),
    Settled(Result<Settled, StoreError>),
    Called(u64),
    Abandoned(bool),
    Leases(Duration, Result<Leases, StoreError>),
    Acquired(Result<(), StoreError>),
    Released(Result<(), StoreError>),
    Backlog(Result<Option<Backlog>, StoreError>),
    Bell,
}

impl Pipeline {
    pub(crate) fn new(
        parts: Parts,
        worker: Worker,
        telemetry: Arc<Telemetry>,
        lane_count: u16,
    ) -> Self {
        let (replies, inbox) = unbounded_channel();
        let now = parts.clock.now();
        let timing = parts.timing;
        Self {
            worker,
            telemetry,
            lane_count,
            lanes: BTreeMap::new(),
            known: Known::new(),
            watermark: Watermark::new(parts.store.capabilities().watermark),
            outage: Outage::new(timing.outage_base, timing.outage_max),
            reader: Reader::new(now, &timing),
            calls: Calls::new(parts.publisher.key_order()),
            careful: Careful::default(),
            settler: Settler::default(),
            keeper: Keeper::new(now),
            destinations: Destinations::default(),
            stopping: None,
            next_backlog: now,
            replies,
            inbox,
            tasks: JoinSet::new(),
            parts,
        }
    }

    /// Works until `shutdown` is ready and everything that was begun is ended, or until an error that only a new start
    /// mends. Lanes are given back in the first case.
    pub(crate) async fn run(
        &mut self,
        mut shutdown: std::pin::Pin<&mut (impl Future<Output = ()> + Send)>,
    ) -> Result<(), StoreError> {
        let mut hint = self.parts.hint.listen();
        loop {
            let now = self.now();
            let wake = self.pump(now);
            if self.is_over(now) {
                break;
            }
            tokio::select! {
                biased;
                () = &mut shutdown, if self.stopping.is_none() => self.stop(),
                Some(reply) = self.inbox.recv() => {
                    self.take_in(reply)?;
                    while let Ok(reply) = self.inbox.try_recv() {
                        self.take_in(reply)?;
                    }
                }
                hinted = hint.next() => match hinted {
                    Hinted::Committed => self.reader.look_now(self.parts.clock.now()),
                    Hinted::Appended => self.expect_commit(),
                },
                () = tokio::time::sleep(wake) => {}
            }
            while self.tasks.try_join_next().is_some() {}
        }
        self.leave().await;
        Ok(())
    }

    pub(super) fn now(&self) -> Duration {
        self.parts.clock.now()
    }

    /// Starts whatever can be started, and returns how long nothing will change by itself.
    fn pump(&mut self, now: Duration) -> Duration {
        let mut wake = now + Duration::from_secs(1);
        let mut at = |next: Option<Duration>| {
            if let Some(next) = next {
                wake = wake.min(next);
            }
        };
        at(self.pump_leases(now));
        at(self.pump_calls(now));
        at(self.pump_settles(now));
        at(self.pump_reader(now));
        at(self.pump_backlog(now));
        at(self.stopping);
        // The timer's tick is a millisecond: less would spin.
        wake.saturating_sub(now).max(Duration::from_millis(1))
    }

    fn take_in(&mut self, reply: Reply) -> Result<(), StoreError> {
        let now = self.now();
        match reply {
            Reply::Probed(result) => self.probed(result, now),
            Reply::Claimed(result) => self.claimed(result, now),
            Reply::Settled(result) => self.settled(result, now)?,
            Reply::Called(call) => self.called(call, now),
            Reply::Abandoned(done) => self.abandoned(done, now),
            Reply::Leases(asked, result) => self.leases(asked, result, now)?,
            Reply::Acquired(result) => self.acquired(result, now)?,
            Reply::Released(result) => self.released(result, now),
            Reply::Bell => self.reader.bell(now),
            Reply::Backlog(result) => match result {
                Ok(Some(backlog)) => self.telemetry.backlog(&backlog),
                Ok(None) => {}
                Err(error) => self.store_failed("backlog", &error),
            },
        }
        Ok(())
    }

    fn pump_backlog(&mut self, now: Duration) -> Option<Duration> {
        self.telemetry.window_events(self.known.unsettled());
        self.telemetry.destination_down(self.outage.is_down());
        let every = self.parts.timing.backlog;
        if every.is_zero() || self.stopping.is_some() {
            return None;
        }
        if now >= self.next_backlog {
            self.next_backlog = now + every;
            self.telemetry.publisher(self.parts.publisher.stats());
            let (store, pipeline) = (self.parts.store.clone(), self.worker.pipeline.clone());
            let backlog = async move { store.backlog(&pipeline, BACKLOG_CAP).await };
            self.statement(backlog, Reply::Backlog);
        }
        Some(self.next_backlog)
    }

    fn stop(&mut self) {
        tracing::info!(pipeline = self.worker.pipeline.name(), "stopping: no more claims");
        self.stopping = Some(self.now() + self.parts.timing.shutdown_deadline);
        self.take_back_charge();
    }

    /// Whether a stop has nothing left to wait for, or may wait no longer.
    fn is_over(&mut self, now: Duration) -> bool {
        let Some(deadline) = self.stopping else { return false };
        if self.calls.is_empty() && self.settler.is_idle() {
            return true;
        }
        if now < deadline {
            return false;
        }
        if !self.calls.is_empty() && !self.calls.is_abandoning() {
            self.abandon("the time to stop is over");
        }
        // What could not be settled by now comes again.
        (self.calls.is_empty() && !self.settler.is_writing())
            || now >= deadline + self.parts.timing.statement_deadline
    }

    /// Signs off: the lanes are free for others at once.
    async fn leave(&mut self) {
        let deadline = self.parts.timing.statement_deadline;
        match tokio::time::timeout(deadline, self.parts.store.leave(&self.worker)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.store_failed("leave", &error),
            Err(_) => self.store_failed("leave", &no_answer(deadline)),
        }
    }

    /// Runs a statement as a task of its own, bounded in time; a panic in it is an error like any other.
    pub(super) fn statement<T: Send + 'static>(
        &mut self,
        statement: impl Future<Output = Result<T, StoreError>> + Send + 'static,
        reply: impl FnOnce(Result<T, StoreError>) -> Reply + Send + 'static,
    ) {
        let deadline = self.parts.timing.statement_deadline;
        let replies = self.replies.clone();
        self.tasks.spawn(async move {
            let statement = AssertUnwindSafe(statement).catch_unwind();
            let result = match tokio::time::timeout(deadline, statement).await {
                Ok(Ok(result)) => result,
                Ok(Err(_)) => {
                    Err(StoreError::unavailable("the store panicked; its message is above"))
                }
                Err(_) => Err(no_answer(deadline)),
            };
            let _ = replies.send(reply(result));
        });
    }

    /// Runs a task whose end is told by `reply`; returns what aborts it.
    pub(super) fn task(
        &mut self,
        task: impl Future<Output = Reply> + Send + 'static,
    ) -> tokio::task::AbortHandle {
        let replies = self.replies.clone();
        self.tasks.spawn(async move {
            let _ = replies.send(task.await);
        })
    }

    pub(super) fn store_failed(&self, statement: &'static str, error: &StoreError) {
        let (pipeline, chain) = (self.worker.pipeline.name(), crate::error::chain(error));
        self.telemetry.store_error(statement, error.kind().as_str());
        self.telemetry
            .monitor
            .tell(|report| report.failure = Some(format!("{statement}: {chain}")));
        match error.kind() {
            StoreErrorKind::Unavailable => {
                tracing::warn!(pipeline, statement, error = chain, "the store does not answer");
            }
            _ => tracing::error!(pipeline, statement, error = chain, "the store refuses"),
        }
    }
}

/// Counts of the backlog stop here.
const BACKLOG_CAP: u64 = 10_000;

fn no_answer(deadline: Duration) -> StoreError {
    StoreError::unavailable(format!("no answer within {deadline:?} (statement_deadline)"))
}
