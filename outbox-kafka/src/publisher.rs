//! The publisher: runs the calls.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{Batch, Failure, FailureClass, KeyOrder, PublishError, Publisher};
use tokio::task::spawn_blocking;

use crate::KafkaConfig;
use crate::call::Call;
use crate::live::Live;
use crate::producers::Producers;

/// Time for the cluster to answer [`Publisher::check`].
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// Kafka as a [`Publisher`].
///
/// # Verdicts
///
/// - *Confirmed*: all in-sync replicas have the message.
/// - `Permanent`: the message is larger than [`KafkaConfig::with_max_message_bytes`] or the topic allows, was written before 1970,
///   its topic's name is against Kafka's rules, or the broker finds the record invalid.
/// - `Refused`: the topic is missing, not permitted, refuses by a policy of its own, or the broker met an error of its own
///   that it has no code for (`UNKNOWN_SERVER_ERROR`): see the broker's log.
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
/// # A topic that refuses
///
/// The first refusal by the broker costs all topics a new producer, which is about a second. After it the topic stands
/// apart. While it refuses (Write denied, a policy), its messages are refused here without asking the broker, but for
/// one after 1 s, 2 s, 4 s, up to 30 s; the topic is open again when that one is taken. A topic that
/// refuses single messages (too large for it, invalid) goes on, each message in a batch of its own and at most 100 in a
/// call, until it was quiet for ten times as long; so a bad message costs nobody else anything. Both go through a second
/// producer, which is made when it is first needed. Such a topic does not count among the 20 times.
///
/// Needs a tokio runtime with its timer.
#[derive(Debug)]
pub struct KafkaPublisher {
    producers: Arc<Producers>,
    /// One call at a time hands its messages over, in the order of arrival: at a full queue nobody passes.
    turn: tokio::sync::Mutex<()>,
    delivery_deadline: Duration,
}

impl KafkaPublisher {
    /// A publisher with these settings. Connects in the background: [`Publisher::check`] says whether it could.
    ///
    /// # Errors
    ///
    /// When a setting is refused; the text names it and says why.
    pub fn new(config: &KafkaConfig) -> Result<Self, PublishError> {
        Ok(Self {
            producers: Arc::new(Producers::open(config.client()?)?),
            turn: tokio::sync::Mutex::new(()),
            delivery_deadline: config.delivery_deadline(),
        })
    }

    /// Hands the messages over, and returns the producers that have some of them.
    async fn hand_over(&self, batch: &Batch) -> Vec<Arc<Live>> {
        let call = Call::new(&self.producers, batch);
        let _turn = self.turn.lock().await;
        call.hand_over().await
    }
}

#[async_trait]
impl Publisher for KafkaPublisher {
    async fn publish(&self, batch: Batch) {
        if batch.is_empty() {
            return;
        }
        let settled = async {
            let producers = self.hand_over(&batch).await;
            let all_ended = async {
                for live in &producers {
                    live.ended().await;
                }
            };
            tokio::select! {
                () = batch.all_settled() => {}
                () = all_ended => {}
            }
        };
        // Past the deadline nothing is known: the messages stay open, and their reports may still come.
        let _ = tokio::time::timeout(self.delivery_deadline, settled).await;
    }

    async fn abandon(&self) {
        let producers = self.producers.clone();
        let closed = spawn_blocking(move || producers.abandon()).await;
        closed.expect("closing a producer does not panic");
    }

    fn key_order(&self) -> KeyOrder {
        KeyOrder::Prefix
    }

    fn stats(&self) -> Vec<(&'static str, f64)> {
        self.producers.stats()
    }

    async fn check(&self) -> Result<(), PublishError> {
        let live = self.producers.main();
        let checked = spawn_blocking(move || live.check(CHECK_TIMEOUT)).await;
        checked.unwrap_or_else(|_| Err(PublishError::unavailable("the runtime is shutting down")))
    }
}

impl Drop for KafkaPublisher {
    fn drop(&mut self) {
        self.producers.close_in_background(&Failure::new(
            FailureClass::Unavailable,
            "the publisher was dropped before kafka confirmed the message; it may have been written",
        ));
    }
}
