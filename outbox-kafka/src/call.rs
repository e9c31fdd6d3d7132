//! One call: hands its messages to the producers, and gives a verdict to those that are not handed over.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use outbox_core::{Batch, Failure, FailureClass, Message};
use rdkafka::error::RDKafkaErrorCode as Code;

use crate::error::{self, Meaning};
use crate::live::{Live, Role, Sender};
use crate::order::Order;
use crate::producers::{Producers, closed_early};
use crate::refusals::Way;
use crate::slots::SlotId;
use crate::wire;

/// Messages handed over before other tasks of the runtime get their turn: about a third of a millisecond.
const CHUNK: usize = 256;
/// Pause before a full queue is tried again.
const QUEUE_FULL_PAUSE: Duration = Duration::from_millis(2);
/// Messages of a call that are sent carefully: each costs a round trip, and a call has a deadline.
const MAX_CAREFUL: usize = 100;

/// The part of a call that is not handed over. Dropping it gives that part its verdict.
pub(crate) struct Call<'a> {
    producers: &'a Arc<Producers>,
    /// The era in which it began.
    era: u64,
    batch: &'a Batch,
    order: Order<'a>,
    now_ms: i64,
    next: usize,
    main: Option<(Arc<Live>, SlotId)>,
    careful: Option<Arc<Live>>,
    /// How many were sent carefully.
    sent_carefully: usize,
}

enum Progress {
    Done,
    More,
    QueueFull,
}

/// The producer takes nothing any more.
struct Closed;

impl<'a> Call<'a> {
    pub(crate) fn new(producers: &'a Arc<Producers>, batch: &'a Batch) -> Self {
        Self {
            producers,
            era: producers.era(),
            batch,
            order: Order::new(batch.messages()),
            now_ms: now_ms(),
            next: 0,
            main: None,
            careful: None,
            sent_carefully: 0,
        }
    }

    /// Hands everything over, and returns the producers that have some of it.
    pub(crate) async fn hand_over(mut self) -> Vec<Arc<Live>> {
        loop {
            if let Err(failure) = self.find_producers().await {
                self.refuse_rest(&failure);
                return self.users();
            }
            let Some((live, slot)) = self.main.clone() else { continue };
            if self.send(&live, slot).await.is_ok() {
                return self.users();
            }
            if self.next > 0 || !live.context().slots.withdraw(slot, self.batch) {
                self.refuse_rest(&closed_early());
                return self.users();
            }
            // The producer broke before it took anything of this call: the next one will.
            self.main = None;
        }
    }

    /// Leaves `main` empty when the producer was closed meanwhile.
    async fn find_producers(&mut self) -> Result<(), Failure> {
        let main = self.producers.usable(Role::Main, self.era).await?;
        if !self.producers.refusals().is_empty() {
            self.careful = Some(self.producers.usable(Role::Careful, self.era).await?);
        }
        let slot = main.context().slots.open(self.batch, self.batch.len(), self.era);
        self.main = slot.map(|slot| (main, slot));
        Ok(())
    }

    fn users(&mut self) -> Vec<Arc<Live>> {
        let main = self.main.as_ref().map(|(live, _)| live.clone());
        let careful = self.careful.take().filter(|_| self.sent_carefully > 0);
        main.into_iter().chain(careful).collect()
    }

    async fn send(&mut self, live: &Arc<Live>, slot: SlotId) -> Result<(), Closed> {
        loop {
            match self.send_some(live, slot)? {
                Progress::Done => return Ok(()),
                Progress::More => tokio::task::yield_now().await,
                Progress::QueueFull => tokio::time::sleep(QUEUE_FULL_PAUSE).await,
            }
        }
    }

    /// Hands over up to [`CHUNK`] messages.
    fn send_some(&mut self, live: &Arc<Live>, slot: SlotId) -> Result<Progress, Closed> {
        // A topic that refused a moment ago might take the next one of the same key.
        if live.context().slots.has_failed(slot) {
            self.refuse_rest(&unsent());
            return Ok(Progress::Done);
        }
        let sent = live.with(|sender| {
            let (messages, now) = (self.batch.messages(), Instant::now());
            let end = messages.len().min(self.next + CHUNK);
            for message in &messages[self.next..end] {
                let failure = match self.way(message, now) {
                    Ok(Way::Free) => match self.send_one(sender, slot, message) {
                        Ok(()) => {
                            // Without another producer nothing could overtake it.
                            if self.careful.is_some() {
                                self.order.handed_over(message);
                            }
                            self.next += 1;
                            continue;
                        }
                        Err(Code::QueueFull) => return Ok(Progress::QueueFull),
                        Err(Code::Fatal) => {
                            live.clone().close_in_background(closed_early());
                            return Err(Closed);
                        }
                        Err(code) => not_taken(code, message.destination()),
                    },
                    Ok(Way::Careful) => match self.send_carefully(message) {
                        Ok(()) => {
                            self.order.stop(message);
                            self.leave_out();
                            continue;
                        }
                        Err(failure) => failure,
                    },
                    Ok(Way::Closed(failure)) | Err(failure) => failure,
                };
                if failure.class != FailureClass::Permanent {
                    self.order.stop(message);
                }
                self.refuse_next(failure);
            }
            Ok(if self.next == messages.len() { Progress::Done } else { Progress::More })
        });
        sent.unwrap_or(Err(Closed))
    }

    /// How a message is to be sent, or why it is not.
    fn way(&mut self, message: &'a Message, now: Instant) -> Result<Way, Failure> {
        if !self.order.allows(message) {
            return Err(unsent());
        }
        match wire::defect(message) {
            Some(defect) => Err(defect),
            None => {
                // The topic may have refused another call's message after it got one of this aggregate from this call.
                let has_room =
                    self.careful_producer().is_some() && self.order.allows_carefully(message);
                match self.producers.refusals().way(message.destination(), now, has_room) {
                    Way::Careful if !has_room => Err(later()),
                    way => Ok(way),
                }
            }
        }
    }

    fn careful_producer(&self) -> Option<&Arc<Live>> {
        self.careful.as_ref().filter(|_| self.sent_carefully < MAX_CAREFUL)
    }

    fn send_one(&self, sender: &Sender<'_>, slot: SlotId, message: &Message) -> Result<(), Code> {
        let record = wire::record(message, slot.opaque(self.next), self.now_ms);
        sender.send(record).map_err(|error| error::code(&error))
    }

    fn send_carefully(&mut self, message: &Message) -> Result<(), Failure> {
        let Some(live) = self.careful_producer() else {
            return Err(later());
        };
        let slots = &live.context().slots;
        let slot = slots.open(self.batch, 1, self.era).ok_or_else(closed_early)?;
        let sent = live.with(|sender| self.send_one(sender, slot, message));
        let failure = match sent {
            Some(Ok(())) => {
                self.sent_carefully += 1;
                return Ok(());
            }
            Some(Err(Code::QueueFull)) => later(),
            Some(Err(Code::Fatal)) => {
                live.clone().close_in_background(closed_early());
                closed_early()
            }
            Some(Err(code)) => {
                let failure = not_taken(code, message.destination());
                if failure.class != FailureClass::Unavailable {
                    self.producers.refusals().failed(
                        message.destination(),
                        &failure,
                        Instant::now(),
                    );
                }
                failure
            }
            None => closed_early(),
        };
        slots.hold_back(slot, 1);
        Err(failure)
    }

    /// Goes on to the next message; the main producer does not get this one.
    fn leave_out(&mut self) {
        self.next += 1;
        if let Some((live, slot)) = &self.main {
            live.context().slots.hold_back(*slot, 1);
        }
    }

    fn refuse_next(&mut self, failure: Failure) {
        self.batch.refuse(self.next, failure);
        self.leave_out();
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

fn unsent() -> Failure {
    Failure::new(FailureClass::Unsent, "one before it in this call was not sent")
}

fn later() -> Failure {
    Failure::new(FailureClass::Unsent, "a topic that refused is sent a few messages at a time")
}

fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use outbox_core::Verdict;

    use super::*;
    use crate::KafkaConfig;
    use crate::wire::tests::event_message;

    /// The producer for all may be purged with the earlier one, which would then be sent again, behind the later one.
    #[tokio::test]
    async fn a_message_is_not_sent_carefully_behind_one_that_the_producer_for_all_has() {
        let client = KafkaConfig::new("127.0.0.1:1").client().unwrap();
        let producers = Arc::new(Producers::open(client).unwrap());
        let refuses = |topic| {
            let failure = Failure::new(FailureClass::Permanent, "too large");
            producers.refusals().failed(topic, &failure, Instant::now());
        };
        refuses("u");
        let other = |n: usize| event_message("order", Some(&n.to_string()), "t");
        let mut messages: Vec<Message> = (0..CHUNK).map(other).collect();
        messages.push(other(0));
        messages.push(other(CHUNK));
        let batch = Batch::new(messages);
        let mut call = Call::new(&producers, &batch);
        call.find_producers().await.unwrap();
        let (live, slot) = call.main.clone().unwrap();

        assert!(matches!(call.send_some(&live, slot), Ok(Progress::More)));
        refuses("t");
        assert!(matches!(call.send_some(&live, slot), Ok(Progress::Done)));
        assert_eq!(batch.verdict(CHUNK), Some(Verdict::Failed(later())));
        assert_eq!((batch.verdict(CHUNK + 1), call.sent_carefully), (None, 1));
    }
}
