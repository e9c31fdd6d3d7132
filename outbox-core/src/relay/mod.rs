//! The relay: from the table to the broker, in order, once the broker says so.

mod calls;
mod careful;
mod claims;
mod clock;
mod config;
mod destinations;
mod known;
mod leases;
mod monitor;
mod outage;
mod outcomes;
mod pipeline;
mod reach;
mod reading;
mod refused;
mod settles;
mod sharing;
mod sweep;
mod verdict;
mod watermark;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::FusedFuture as _;

use self::clock::Clock;
pub use self::config::{Limits, Timing};
pub use self::monitor::{Monitor, Report};
use self::pipeline::{Parts, Pipeline};
use crate::telemetry::Telemetry;
use crate::{
    Hint, Pipeline as PipelineName, Publisher, RetryPolicies, Router, Store, StoreError,
    StoreErrorKind, Worker,
};

/// The longest name of a worker, in bytes.
const MAX_WORKER_NAME_BYTES: usize = 255;

/// Relays the events of one pipeline: claim, publish, settle, over and over.
///
/// ```
/// use std::sync::Arc;
/// use outbox_core::{NewEvent, Relay, Writer as _};
/// use outbox_core::memory::{MemoryPublisher, MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::new();
/// let publisher = MemoryPublisher::new();
/// let relay = Relay::new(Arc::new(store.clone()), Arc::new(publisher.clone()));
///
/// let mut transaction = store.begin();
/// let event = NewEvent::json("order", "order-1", "OrderCreated", &"{}")?;
/// store.append(&mut transaction, &[event]).await?;
/// transaction.commit();
///
/// let delivered = async { publisher.wait_for(1, std::time::Duration::from_secs(5)).await; };
/// relay.run(delivered).await?;
/// store.assert_nothing_pending();
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Relay {
    store: Arc<dyn Store>,
    publisher: Arc<dyn Publisher>,
    pipeline: PipelineName,
    name: String,
    router: Router,
    retry: RetryPolicies,
    limits: Limits,
    timing: Timing,
    hint: Hint,
    monitor: Monitor,
    virtual_time: bool,
}

impl Relay {
    /// A relay of all events in `store` to `publisher`, as a pipeline named `default`, with the defaults of [`Limits`],
    /// [`Timing`], [`RetryPolicies`] and [`Router`].
    #[must_use]
    pub fn new(store: Arc<dyn Store>, publisher: Arc<dyn Publisher>) -> Self {
        Self {
            store,
            publisher,
            pipeline: PipelineName::new("default").expect("a plain word is a valid name"),
            name: String::new(),
            router: Router::default(),
            retry: RetryPolicies::default(),
            limits: Limits::default(),
            timing: Timing::default(),
            hint: Hint::new(),
            monitor: Monitor::new(),
            virtual_time: false,
        }
    }

    /// As this pipeline: its name and the aggregate types that it relays. Relays of the same name share its lanes; another
    /// name needs aggregate types that do not overlap.
    #[must_use]
    pub fn with_pipeline(mut self, pipeline: PipelineName) -> Self {
        self.pipeline = pipeline;
        self
    }

    /// Under this name in the table of workers, for people: host and process, say. At most 255 bytes, without NUL.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// With these destinations.
    #[must_use]
    pub fn with_router(mut self, router: Router) -> Self {
        self.router = router;
        self
    }

    /// With these retries.
    #[must_use]
    pub fn with_retry(mut self, retry: RetryPolicies) -> Self {
        self.retry = retry;
        self
    }

    /// With these bounds.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// With these durations.
    #[must_use]
    pub fn with_timing(mut self, timing: Timing) -> Self {
        self.timing = timing;
        self
    }

    /// Listens to this hint: give the same one to the writer of this process. It saves the wait for the next poll, up to
    /// [`Timing::poll_max`].
    #[must_use]
    pub fn with_hint(mut self, hint: Hint) -> Self {
        self.hint = hint;
        self
    }

    /// Reports to this monitor what it is doing.
    #[must_use]
    pub fn with_monitor(mut self, monitor: Monitor) -> Self {
        self.monitor = monitor;
        self
    }

    /// Measures time by tokio's clock, which a test may pause and move; else by the machine's, which runs through suspend.
    #[must_use]
    pub fn with_virtual_time(mut self) -> Self {
        self.virtual_time = true;
        self
    }

    /// Works until `shutdown` is ready, then finishes what is open (bounded by [`Timing::shutdown_deadline`]), gives its
    /// lanes back and returns.
    ///
    /// Errors of store and publisher are waited out. A panic, or an error that nothing but a new start mends, restarts the
    /// pipeline after a pause, unless the stop has begun: then it returns. Dropping the future stops at once: nothing is lost, what was open is published again.
    ///
    /// # Errors
    ///
    /// When the settings do not fit together, or when the store is misconfigured at the first start.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) -> Result<(), StoreError> {
        if self.name.contains('\0') || self.name.len() > MAX_WORKER_NAME_BYTES {
            return Err(StoreError::misconfigured(format!(
                "with_name: the worker's name has {} bytes: it must have at most {MAX_WORKER_NAME_BYTES}, and no NUL",
                self.name.len()
            )));
        }
        self.limits.check().map_err(StoreError::misconfigured)?;
        self.timing.check().map_err(StoreError::misconfigured)?;
        let telemetry = Arc::new(Telemetry::new(self.pipeline.name(), self.monitor.clone()));
        let clock = if self.virtual_time { Clock::virtual_time() } else { Clock::Boot };
        let mut shutdown = std::pin::pin!(shutdown.fuse());
        let mut failures = 0u32;
        let mut joined = false;
        loop {
            let started = clock.now();
            let life = self.live(clock, telemetry.clone(), &mut joined, shutdown.as_mut());
            let ended = AssertUnwindSafe(life).catch_unwind().await;
            telemetry.monitor.tell(|report| report.joined = false);
            let error = match ended {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) if !joined && error.kind() == StoreErrorKind::Misconfigured => {
                    return Err(error);
                }
                Ok(Err(error)) => error,
                Err(_) => StoreError::unavailable("the pipeline panicked; its message is above"),
            };
            let (pipeline, reason) = (self.pipeline.name(), crate::error::chain(&error));
            if shutdown.is_terminated() {
                tracing::error!(pipeline, reason, "the pipeline failed while it was stopping");
                return Ok(());
            }
            let steady = clock.now().saturating_sub(started) > self.timing.lease;
            failures = if steady { 1 } else { failures.saturating_add(1) };
            let pause = crate::RetryPolicy::default()
                .with_delays(self.timing.outage_base, self.timing.outage_max)
                .delay(failures, fastrand::f64());
            telemetry.restarted(&reason);
            tracing::error!(pipeline, reason, ?pause, "the pipeline starts anew");
            tokio::select! {
                biased;
                () = &mut shutdown => return Ok(()),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// One life of the pipeline, under a worker id of its own.
    async fn live(
        &self,
        clock: Clock,
        telemetry: Arc<Telemetry>,
        joined: &mut bool,
        mut shutdown: std::pin::Pin<&mut (impl Future<Output = ()> + Send)>,
    ) -> Result<(), StoreError> {
        let worker = Worker::new(self.pipeline.clone(), self.name.clone());
        let start = async {
            // An earlier life may have left messages open.
            self.end_open_messages().await?;
            let join = self.store.join(&worker);
            let joined = tokio::time::timeout(self.timing.statement_deadline * 2, join).await;
            joined.unwrap_or_else(|_| {
                let reason = "the store does not answer when the pipeline joins it";
                Err(StoreError::unavailable(reason))
            })
        };
        let lanes = tokio::select! {
            biased;
            () = &mut shutdown => return Ok(()),
            lanes = start => lanes?,
        };
        *joined = true;
        telemetry.monitor.tell(|report| report.joined = true);
        let parts = Parts {
            store: self.store.clone(),
            publisher: self.publisher.clone(),
            router: Arc::new(self.router.clone()),
            retry: Arc::new(self.retry.clone()),
            limits: self.limits,
            timing: self.timing,
            hint: self.hint.clone(),
            clock,
        };
        let pipeline = self.pipeline.name();
        tracing::info!(pipeline, lanes, worker = %worker.id, "the pipeline starts");
        Pipeline::new(parts, worker, telemetry, lanes).run(shutdown).await
    }

    async fn end_open_messages(&self) -> Result<(), StoreError> {
        let abandon = AssertUnwindSafe(self.publisher.abandon()).catch_unwind();
        match tokio::time::timeout(self.timing.publish_deadline, abandon).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(StoreError::unavailable("the publisher cannot abandon its open messages")),
        }
    }
}
