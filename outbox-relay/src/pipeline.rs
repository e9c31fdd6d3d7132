//! One pipeline of the daemon: it fails and starts anew apart from all others.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use outbox::{Monitor, Relay, RetryPolicy};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::config::PipelineConfig;
use crate::health::{Progress, Trouble};
use crate::kinds::{Daemon, Ends, chain};

/// The pauses before a pipeline that could not start is started anew; doubled from the first to the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// A pipeline that runs, whoever runs it. Clones share it.
#[derive(Clone)]
pub(crate) struct Pipeline {
    pub(crate) config: Arc<PipelineConfig>,
    monitor: Monitor,
    life: Arc<Mutex<Life>>,
    stop: CancellationToken,
    ended: CancellationToken,
}

#[derive(Default)]
struct Life {
    /// Why the last start failed, while the next one is waited for.
    failure: Option<String>,
    progress: Progress,
}

/// A pipeline as `/api/v1/pipelines` shows it.
#[derive(Debug, Serialize)]
pub(crate) struct Status {
    pub(crate) name: String,
    source: String,
    publisher: String,
    state: State,
    /// Why it is not well; absent while it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trouble: Option<Trouble>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    lanes_owned: u64,
    window_events: u64,
    open_messages: u64,
    pub(crate) delivered: u64,
    failed: u64,
    restarts: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    backlog: Option<Backlog>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Starting,
    Running,
    /// It could not start, and will try again.
    Failed,
    Stopping,
}

#[derive(Debug, Serialize)]
struct Backlog {
    pending: u64,
    oldest_age_seconds: f64,
    blocked_aggregates: u64,
    dead_letters: u64,
}

impl Pipeline {
    /// Starts a pipeline once these have ended.
    pub(crate) fn start(
        daemon: Daemon,
        config: PipelineConfig,
        ends: Ends,
        after: Vec<Self>,
    ) -> Self {
        let pipeline = Self {
            config: Arc::new(config),
            monitor: Monitor::new(),
            life: Arc::default(),
            stop: CancellationToken::new(),
            ended: CancellationToken::new(),
        };
        let running = pipeline.clone();
        tokio::spawn(async move {
            let _ended = running.ended.clone().drop_guard();
            for earlier in after {
                earlier.ended().await;
            }
            running.run(&daemon, ends).await;
        });
        pipeline
    }

    /// Tells it to stop: it ends what it has begun, gives its lanes back, and then has [`ended`](Self::ended).
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// Returns when it has ended.
    pub(crate) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.is_cancelled()
    }

    pub(crate) fn name(&self) -> &str {
        self.config.pipeline.name()
    }

    /// One start after the other, until it is told to stop.
    async fn run(&self, daemon: &Daemon, first: Ends) {
        let mut ends = Ok(first);
        let mut failures = 0u32;
        while !self.stop.is_cancelled() {
            let began = Instant::now();
            let reason = match ends {
                Ok(ends) => self.relay(ends).await,
                Err(error) => Some(chain(&error)),
            };
            let Some(reason) = reason else { return };
            let steady = began.elapsed() > self.config.timing.lease;
            failures = if steady { 1 } else { failures.saturating_add(1) };
            let pauses = RetryPolicy::default().with_delays(PAUSES.0, PAUSES.1);
            let pause = pauses.delay(failures, fastrand::f64());
            tracing::error!(pipeline = self.name(), reason, ?pause, "the pipeline cannot start");
            self.life().failure = Some(reason);
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            ends = daemon.ends(&self.config).await;
            self.life().failure = None;
        }
    }

    /// Relays until it is told to stop, or until it cannot: then the reason is returned.
    async fn relay(&self, ends: Ends) -> Option<String> {
        let config = &*self.config;
        let relay = Relay::new(ends.store, ends.publisher)
            .with_pipeline(config.pipeline.clone())
            .with_name(worker_name())
            .with_router(config.router.clone())
            .with_retry(config.retry.clone())
            .with_limits(config.limits)
            .with_timing(config.timing)
            .with_monitor(self.monitor.clone());
        match AssertUnwindSafe(relay.run(self.stop.cancelled())).catch_unwind().await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(chain(&error)),
            Err(_) => Some("the relay panicked; its message is above".to_owned()),
        }
    }

    /// Notes whether something has moved since the last look.
    pub(crate) fn look(&self, now: Instant) {
        let report = self.monitor.report();
        self.life().progress.look(&report, now);
    }

    pub(crate) fn status(&self, now: Instant) -> Status {
        let (report, life) = (self.monitor.report(), self.life());
        let state = match () {
            () if self.stop.is_cancelled() => State::Stopping,
            () if life.failure.is_some() => State::Failed,
            () if report.joined => State::Running,
            () => State::Starting,
        };
        let trouble = match state {
            State::Running => life.progress.trouble(&report, self.config.timing.lease, now),
            State::Starting => Some(Trouble::Starting),
            State::Failed => Some(Trouble::CannotStart),
            State::Stopping => Some(Trouble::Stopping),
        };
        let reason = life.failure.clone().or(report.failure).or(report.destination_down);
        Status {
            name: self.name().to_owned(),
            source: self.config.source.kind().to_owned(),
            publisher: self.config.publisher.kind().to_owned(),
            state,
            trouble,
            reason,
            lanes_owned: report.lanes_owned,
            window_events: report.window_events,
            open_messages: report.open_messages,
            delivered: report.delivered,
            failed: report.failed,
            restarts: report.restarts,
            backlog: report.backlog.map(|backlog| Backlog {
                pending: backlog.pending,
                oldest_age_seconds: backlog.oldest.unwrap_or_default().as_secs_f64(),
                blocked_aggregates: backlog.blocked,
                dead_letters: backlog.dead,
            }),
        }
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who holds the lanes, for people who look into the table of workers: machine and process.
fn worker_name() -> String {
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("outbox-relay {} {}", machine.trim_end(), std::process::id())
}
