//! One producer of librdkafka, from its making to its end.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, RwLock, TryLockError};
use std::time::Duration;

use outbox_core::{Failure, PublishError};
use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseRecord, Producer as _, PurgeConfig, ThreadedProducer};
use tokio::sync::watch;

use crate::context::Context;
use crate::error;
use crate::refusals::Refusals;

/// A topic that every cluster has, or answers for: what [`Live::check`] asks about.
const CHECK_TOPIC: &str = "__consumer_offsets";

/// A producer and its open calls. Closing is final; [`Live::open`] makes a new one.
pub(crate) struct Live {
    /// `None` once it is closed. Written by [`Live::close`] only.
    producer: RwLock<Option<ThreadedProducer<Context>>>,
    context: OnceLock<Arc<Context>>,
    closing: AtomicBool,
    /// Whether it is closed, for those who wait for it.
    ended: watch::Sender<bool>,
    /// It broke by what the broker said of one topic.
    by_topic: AtomicBool,
}

/// Which messages a producer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Those of all topics. A refusal stops it, so that nothing is sent behind the refused message.
    Main,
    /// Those of topics that refused, each in a batch of its own, so that a refusal names its message. A refusal does not
    /// stop it: of each aggregate one message is open at most, so nothing stands behind the refused one.
    Careful,
}

impl Live {
    /// A producer with the settings `client`, of this era.
    pub(crate) fn open(
        client: &ClientConfig,
        role: Role,
        era: u64,
        refusals: &Arc<Refusals>,
    ) -> Result<Arc<Self>, PublishError> {
        let live = Arc::new(Self {
            producer: RwLock::new(None),
            context: OnceLock::new(),
            closing: AtomicBool::new(false),
            ended: watch::Sender::new(false),
            by_topic: AtomicBool::new(false),
        });
        let mut client = client.clone();
        if role == Role::Careful {
            client.set("batch.num.messages", "1").set("enable.gapless.guarantee", "false");
        }
        let context = Context::new(Arc::downgrade(&live), role, era, refusals.clone());
        let producer: ThreadedProducer<Context> =
            client.create_with_context(context).map_err(error::creation)?;
        live.context.get_or_init(|| producer.context().clone());
        *live.producer.write().expect("nobody else has it") = Some(producer);
        Ok(live)
    }

    pub(crate) fn context(&self) -> &Context {
        self.context.get().expect("set when it was opened")
    }

    /// Runs `send` with the producer unless it is closed. Never blocks.
    pub(crate) fn with<T>(&self, send: impl FnOnce(&Sender<'_>) -> T) -> Option<T> {
        if self.is_closing() {
            return None;
        }
        match self.producer.try_read() {
            Ok(producer) => producer.as_ref().map(|producer| send(&Sender(producer))),
            // Only `close` takes it for itself.
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(_)) => None,
        }
    }

    /// Why the producer takes nothing any more, if librdkafka says so.
    pub(crate) fn fatal_error(&self) -> Option<String> {
        self.with(|Sender(producer)| producer.client().fatal_error())?.map(|(_, reason)| reason)
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// How often the publisher had abandoned its messages when this producer was made, or last found unused.
    pub(crate) fn era(&self) -> u64 {
        self.context().slots.era()
    }

    /// Notes that it breaks by what the broker says of one topic.
    pub(crate) fn blame_topic(&self) {
        self.by_topic.store(true, Ordering::Release);
    }

    /// Whether it broke by what the broker said of one topic.
    pub(crate) fn broke_by_topic(&self) -> bool {
        self.by_topic.load(Ordering::Acquire)
    }

    /// Returns when the producer is closed: nothing more will be heard of its messages. Cancel safe.
    pub(crate) async fn ended(&self) {
        let mut ended = self.ended.subscribe();
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// Ends the producer: what is queued or in flight is thrown away and the connections are closed. Afterwards nothing
    /// can be sent any more, and every open message has got the verdict `failure`; without one they stay open. Blocks for
    /// about a second. Waits for a close that runs already.
    pub(crate) fn close(&self, failure: Option<&Failure>) {
        self.closing.store(true, Ordering::Release);
        let mut place = self.producer.write().expect("no panic while it is locked");
        if let Some(producer) = place.take() {
            producer.purge(PurgeConfig::default().queue().inflight());
            drop(producer);
            self.context().settle_suspects();
            self.context().slots.end(failure);
            self.ended.send_replace(true);
        }
    }

    /// Ends it without verdicts, unless no call has ever used it: then it serves the era `era`. Blocks as
    /// [`close`](Self::close).
    pub(crate) fn abandon(&self, era: u64) {
        if !self.context().slots.renew(era) {
            self.close(None);
        }
    }

    /// The same as [`close`](Self::close) on a thread of its own, which the producer's polling thread needs: closing waits for it.
    pub(crate) fn close_in_background(self: Arc<Self>, failure: Failure) {
        if self.closing.swap(true, Ordering::AcqRel) {
            return;
        }
        let close = move || self.close(Some(&failure));
        std::thread::Builder::new()
            .name("outbox-kafka-close".to_owned())
            .spawn(close)
            .expect("the system has room for a thread");
    }

    /// Asks the cluster for its metadata. Blocks up to `timeout`.
    pub(crate) fn check(&self, timeout: Duration) -> Result<(), PublishError> {
        let producer = self.producer.read().expect("no panic while it is locked");
        let Some(producer) = &*producer else {
            return Err(PublishError::unavailable("the kafka producer is being replaced"));
        };
        match producer.client().fetch_metadata(Some(CHECK_TOPIC), timeout) {
            Ok(_) => Ok(()),
            Err(error) => Err(error::no_answer(error, self.context().last_error().as_ref())),
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if self.context.get().is_some() {
            self.close(None);
        }
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("closing", &self.is_closing()).finish_non_exhaustive()
    }
}

/// A producer that cannot be closed while it is borrowed.
pub(crate) struct Sender<'a>(&'a ThreadedProducer<Context>);

impl Sender<'_> {
    /// Copies the record into the producer's queue.
    pub(crate) fn send(&self, record: BaseRecord<'_, [u8], [u8], usize>) -> Result<(), KafkaError> {
        self.0.send(record).map_err(|(error, _)| error)
    }
}
