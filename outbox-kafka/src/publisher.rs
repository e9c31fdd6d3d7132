//! The publisher: hands messages to the producer, replaces a producer that broke.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use outbox_core::{Batch, Failure, FailureClass, KeyOrder, PublishError, Publisher};
use rdkafka::ClientConfig;
use rdkafka::error::RDKafkaErrorCode as Code;
use tokio::task::spawn_blocking;

use crate::KafkaConfig;
use crate::error::{self, Meaning};
use crate::live::Live;
use crate::order::Order;
use crate::slots::SlotId;
use crate::wire;

/// Messages handed over before other tasks of the runtime get their turn: about a third of a millisecond.
const CHUNK: usize = 256;
/// Pause before a full queue is tried again.
const QUEUE_FULL_PAUSE: Duration = Duration::from_millis(2);
/// Producers that may break per [`REPLACEMENT_PERIOD`].
const MAX_REPLACEMENTS: usize = 20;
const REPLACEMENT_PERIOD: Duration = Duration::from_secs(60);
/// Time for the cluster to answer [`Publisher::check`].
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// Kafka as a [`Publisher`].
///
/// # Verdicts
///
/// - *Confirmed*: all in-sync replicas have the message.
/// - `Permanent`: the message is larger than [`KafkaConfig::with_max_message_bytes`] or the topic allows, was written before 1970,
///   its topic's name is against Kafka's rules, or the broker finds the record invalid.
/// - `Refused`: the topic is missing, not permitted, or refuses by a policy of its own.
/// - `Unavailable`: the producer broke while the message was open, or before it was sent. In the first case it may have been
///   written.
/// - `Unsent`: one before it in its aggregate could not be handed over, or goes to another topic.
/// - `Transient`: the broker gave a code that says nothing of the above.
///
/// While the cluster cannot be reached there is no verdict: the producer keeps trying, in order, until it is
/// abandoned. What was abandoned gets no verdict either: it may have been written, and it will not be any more.
///
/// # Order
///
/// [`KeyOrder::Prefix`]: the producer is idempotent, and any refusal by the broker that would leave a gap stops it before
/// the messages behind the gap are sent. The publisher then makes a new one, at most 20 times a minute. Adding partitions
/// to a topic moves keys, and so breaks the order of messages that are open at that moment, as for every Kafka producer.
///
/// Needs a tokio runtime with its timer.
#[derive(Debug)]
pub struct KafkaPublisher {
    shared: Arc<Shared>,
    /// One call at a time hands its messages over, in the order of arrival: at a full queue nobody passes.
    turn: tokio::sync::Mutex<()>,
    delivery_deadline: Duration,
}

#[derive(Debug)]
struct Shared {
    client: ClientConfig,
    live: Mutex<Arc<Live>>,
    /// When the latest producers broke. Locked while one is replaced or abandoned.
    broken: Mutex<VecDeque<Instant>>,
    /// How often the messages were abandoned.
    abandons: AtomicU64,
}

impl KafkaPublisher {
    /// A publisher with these settings. Connects in the background: [`Publisher::check`] says whether it could.
    ///
    /// # Errors
    ///
    /// When a setting is refused; the text names it and says why.
    pub fn new(config: &KafkaConfig) -> Result<Self, PublishError> {
        let client = config.client()?;
        let live = Mutex::new(Live::open(&client, 0, None)?);
        Ok(Self {
            shared: Arc::new(Shared {
                client,
                live,
                broken: Mutex::default(),
                abandons: AtomicU64::new(0),
            }),
            turn: tokio::sync::Mutex::new(()),
            delivery_deadline: config.delivery_deadline(),
        })
    }

    /// Hands the messages to a producer; `None` when it took none of them.
    async fn hand_over(&self, batch: &Batch) -> Option<Arc<Live>> {
        let mut call = Call { batch, next: 0, open: None };
        let era = self.shared.era();
        let _turn = self.turn.lock().await;
        loop {
            let live = match self.live(era).await {
                Ok(live) => live,
                Err(failure) => {
                    call.refuse_rest(&failure);
                    return None;
                }
            };
            let Some(slot) = live.context().slots.open(batch) else { continue };
            call.open = Some((live.clone(), slot));
            let closed = call.send(&live, slot).await.is_err();
            if !closed {
                return Some(live);
            }
            if call.next > 0 || !live.context().slots.withdraw(slot, batch) {
                call.refuse_rest(&closed_early());
                return Some(live);
            }
            // The producer broke before it took anything of this call: the next one will.
            call.open = None;
        }
    }

    /// The producer, or a new one in place of one that is closed. A call from before an `abandon` gets none: it counts
    /// among what was abandoned.
    async fn live(&self, era: u64) -> Result<Arc<Live>, Failure> {
        let mut live = self.shared.live();
        if !live.is_usable() {
            let shared = self.shared.clone();
            live = spawn_blocking(move || shared.replace()).await.unwrap_or_else(|_| {
                Err(Failure::new(FailureClass::Unavailable, "no kafka producer could be made"))
            })?;
        }
        if live.era() == era { Ok(live) } else { Err(abandoned()) }
    }
}

#[async_trait]
impl Publisher for KafkaPublisher {
    async fn publish(&self, batch: Batch) {
        if batch.is_empty() {
            return;
        }
        let settled = async {
            if let Some(live) = self.hand_over(&batch).await {
                tokio::select! {
                    () = batch.all_settled() => {}
                    () = live.ended() => {}
                }
            }
        };
        // Past the deadline nothing is known: the messages stay open, and their reports may still come.
        let _ = tokio::time::timeout(self.delivery_deadline, settled).await;
    }

    async fn abandon(&self) {
        let shared = self.shared.clone();
        let closed = spawn_blocking(move || shared.abandon()).await;
        closed.expect("closing a producer does not panic");
    }

    fn key_order(&self) -> KeyOrder {
        KeyOrder::Prefix
    }

    fn stats(&self) -> Vec<(&'static str, f64)> {
        self.shared.live().context().latest_stats()
    }

    async fn check(&self) -> Result<(), PublishError> {
        let live = self.shared.live();
        let checked = spawn_blocking(move || live.check(CHECK_TIMEOUT)).await;
        checked.unwrap_or_else(|_| Err(PublishError::new("the runtime is shutting down")))
    }
}

impl Drop for KafkaPublisher {
    fn drop(&mut self) {
        let failure = Failure::new(
            FailureClass::Unavailable,
            "the publisher was dropped before kafka confirmed the message; it may have been written",
        );
        self.shared.live().close_in_background(failure);
    }
}

impl Shared {
    fn live(&self) -> Arc<Live> {
        lock(&self.live).clone()
    }

    fn era(&self) -> u64 {
        self.abandons.load(Ordering::SeqCst)
    }

    /// Ends the producer, and with it every call that has begun. Blocks.
    fn abandon(&self) {
        // First: a producer that is made from now on serves no call from before.
        self.abandons.fetch_add(1, Ordering::SeqCst);
        let _replacing = lock(&self.broken);
        self.live().close(None);
    }

    /// Makes a producer in place of one that is closed. Blocks.
    fn replace(&self) -> Result<Arc<Live>, Failure> {
        let mut broken = lock(&self.broken);
        let old = self.live();
        if old.is_usable() {
            return Ok(old);
        }
        old.close(Some(&closed_early()));
        // One that was abandoned did not break.
        if old.era() == self.era() {
            broken.retain(|broken| broken.elapsed() < REPLACEMENT_PERIOD);
            if broken.len() >= MAX_REPLACEMENTS {
                return Err(Failure::new(
                    FailureClass::Unavailable,
                    format!("the kafka producer broke {MAX_REPLACEMENTS} times within a minute"),
                ));
            }
            broken.push_back(Instant::now());
        }
        let live = Live::open(&self.client, self.era(), old.suspects())
            .map_err(|error| Failure::new(FailureClass::Unavailable, error.to_string()))?;
        *lock(&self.live) = live.clone();
        Ok(live)
    }
}

/// The part of a call that is not handed over. Dropping it gives that part its verdict.
struct Call<'a> {
    batch: &'a Batch,
    next: usize,
    open: Option<(Arc<Live>, SlotId)>,
}

enum Progress {
    Done,
    More,
    QueueFull,
}

/// The producer takes nothing any more.
struct Closed;

impl<'a> Call<'a> {
    /// Hands everything over.
    async fn send(&mut self, live: &Arc<Live>, slot: SlotId) -> Result<(), Closed> {
        let mut order = Order::new(self.batch.messages());
        let now_ms = now_ms();
        loop {
            match self.send_some(live, slot, &mut order, now_ms)? {
                Progress::Done => return Ok(()),
                Progress::More => tokio::task::yield_now().await,
                Progress::QueueFull => tokio::time::sleep(QUEUE_FULL_PAUSE).await,
            }
        }
    }

    /// Hands over up to [`CHUNK`] messages.
    fn send_some(
        &mut self,
        live: &Arc<Live>,
        slot: SlotId,
        order: &mut Order<'a>,
        now_ms: i64,
    ) -> Result<Progress, Closed> {
        // A topic that refused a moment ago might take the next one of the same key.
        if live.context().slots.has_failed(slot) {
            self.refuse_rest(&unsent());
            return Ok(Progress::Done);
        }
        let sent = live.with(|sender| {
            let messages = self.batch.messages();
            let end = messages.len().min(self.next + CHUNK);
            for message in &messages[self.next..end] {
                let failure = if !order.allows(message) {
                    unsent()
                } else if let Some(defect) = wire::defect(message) {
                    defect
                } else {
                    let record = wire::record(message, slot.opaque(self.next), now_ms);
                    match sender.send(record).map_err(|error| error::code(&error)) {
                        Ok(()) => {
                            self.next += 1;
                            continue;
                        }
                        Err(Code::QueueFull) => return Ok(Progress::QueueFull),
                        Err(Code::Fatal) => {
                            live.clone().close_in_background(closed_early());
                            return Err(Closed);
                        }
                        Err(code) => not_taken(code, message.destination()),
                    }
                };
                if failure.class != FailureClass::Permanent {
                    order.stop(message);
                }
                self.refuse_next(failure);
            }
            Ok(if self.next == messages.len() { Progress::Done } else { Progress::More })
        });
        sent.unwrap_or(Err(Closed))
    }

    fn refuse_next(&mut self, failure: Failure) {
        self.batch.refuse(self.next, failure);
        self.next += 1;
        if let Some((live, slot)) = &self.open {
            live.context().slots.hold_back(*slot, 1);
        }
    }

    fn refuse_rest(&mut self, failure: &Failure) {
        while self.next < self.batch.len() {
            self.refuse_next(failure.clone());
        }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if self.next < self.batch.len() {
            let reason = "the message was not sent in time: the producer's queue was full";
            self.refuse_rest(&Failure::new(FailureClass::Unavailable, reason));
        }
    }
}

/// The verdict on a message that the producer did not take into its queue.
fn not_taken(code: Code, topic: &str) -> Failure {
    match error::meaning(code) {
        Meaning::Verdict(class) => error::failure(class, code, topic),
        Meaning::BatchRefused => error::failure(FailureClass::Permanent, code, topic),
        Meaning::Open => error::failure(FailureClass::Unavailable, code, topic),
    }
}

fn abandoned() -> Failure {
    Failure::new(FailureClass::Unavailable, "the message was abandoned before it was sent")
}

fn unsent() -> Failure {
    Failure::new(FailureClass::Unsent, "one before it in this call was not sent")
}

fn closed_early() -> Failure {
    Failure::new(
        FailureClass::Unavailable,
        "the kafka producer was closed before the message was sent",
    )
}

fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic while it is locked")
}
