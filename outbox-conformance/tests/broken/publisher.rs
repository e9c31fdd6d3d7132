//! Publishers with one thing broken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outbox_core::memory::MemoryPublisher;
use outbox_core::{
    Batch, EventRow, EventRows, Failure, FailureClass, KeyOrder, Message, PublishError, Publisher,
    Verdict, async_trait,
};

use crate::bites;
use crate::memory::MemoryBroker;

bites! { publisher,
    half_a_batch: every_message_gets_its_verdict on broken(How::SendsHalf);
    each_message_twice: every_message_gets_its_verdict on broken(How::SendsTwice);
    confirmed_and_never_sent: every_message_gets_its_verdict on broken(How::SendsNothing);
    a_batch_that_never_ends: an_empty_batch_returns on broken(How::PanicsOnNothing);
    one_batch_for_all_calls: calls_overlap on broken(How::OneCallAtATime);
    a_check_that_fails: a_reachable_broker_passes_the_check on broken(How::FailsTheCheck);
    a_tombstone_that_is_empty: null_and_empty_are_kept_apart on broken(How::NullIsEmpty);
    a_payload_as_text: every_byte_arrives on broken(How::PayloadIsText);
    headers_left_out: headers_arrive_in_their_order on broken(How::NoHeaders);
    a_batch_in_reverse: a_thousand_messages_arrive_in_the_order_of_their_keys on broken(How::Reverses);
    a_prefix_that_was_not_earned: nothing_of_a_key_is_sent_behind_a_failure on broken(How::ClaimsPrefix);
    a_prefix_out_of_order: an_outage_leaves_a_prefix_of_each_key on broken(How::Reverses);
    a_prefix_that_nothing_cut: an_outage_leaves_a_prefix_of_each_key on broken(How::AbandonsNothing).without_outages();
    every_failure_transient: each_failure_has_its_class on broken(How::AllTransient);
    neighbours_refused_too: a_refused_message_does_not_hurt_its_neighbours on broken(How::RefusesNeighbours);
    too_large_tried_for_ever: a_message_that_is_too_large_is_refused_for_good on broken(How::AllTransient);
    a_missing_topic_as_outage: a_destination_that_refuses_is_no_outage on broken(How::AllTransient);
    an_outage_counted: an_outage_is_nobodys_fault on broken(How::AllTransient);
    confirmed_in_an_outage: an_outage_is_nobodys_fault on broken(How::ConfirmsAtOnce);
    a_connection_lost_for_good: it_works_again_after_each_outage on broken(How::NeverReconnects);
    confirmed_in_silence: silence_is_no_confirmation on broken(How::ConfirmsAtOnce);
    a_call_without_its_deadline: a_call_ends_at_its_deadline on broken(How::NoDeadline);
    a_dropped_call_sent_again: a_dropped_call_keeps_what_was_confirmed on broken(How::SendsTwice);
    verdicts_lost_with_the_call: verdicts_come_after_the_call_was_dropped on broken(How::CopiesVerdictsAtTheEnd);
    messages_sent_after_all: nothing_is_sent_after_abandon on broken(How::NeverGivesUp);
    an_abandon_that_does_nothing: nothing_is_sent_after_abandon on broken(How::AbandonsNothing);
    messages_sent_after_the_drop: a_publisher_can_be_dropped_with_open_messages on broken(How::NeverGivesUp);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    SendsHalf,
    SendsTwice,
    SendsNothing,
    PanicsOnNothing,
    OneCallAtATime,
    FailsTheCheck,
    NullIsEmpty,
    PayloadIsText,
    NoHeaders,
    Reverses,
    ClaimsPrefix,
    AllTransient,
    RefusesNeighbours,
    ConfirmsAtOnce,
    NeverReconnects,
    NoDeadline,
    CopiesVerdictsAtTheEnd,
    NeverGivesUp,
    AbandonsNothing,
}

fn broken(how: How) -> MemoryBroker {
    let order = match how {
        How::ClaimsPrefix | How::Reverses => KeyOrder::Unordered,
        _ => KeyOrder::Prefix,
    };
    let broker = MemoryPublisher::with_key_order(order);
    let publisher = Broken { broker: broker.clone(), how, busy: false.into(), lost: false.into() };
    MemoryBroker::wrapped(broker, Arc::new(publisher)).with_deadline(Duration::from_secs(1))
}

#[derive(Debug)]
struct Broken {
    broker: MemoryPublisher,
    how: How,
    busy: AtomicBool,
    lost: AtomicBool,
}

impl Broken {
    /// Publishes changed copies of the messages, and hands the verdicts over at the end.
    async fn publish_as(&self, batch: &Batch, change: impl FnMut(&Message) -> Message) {
        let copy = Batch::new(batch.messages().iter().map(change).collect());
        self.broker.publish(copy.clone()).await;
        for index in 0..batch.len() {
            self.hand_over(batch, index, copy.verdict(index));
        }
    }

    fn hand_over(&self, batch: &Batch, index: usize, verdict: Option<Verdict>) {
        match verdict {
            Some(Verdict::Confirmed) => {
                batch.confirm(index);
            }
            Some(Verdict::Failed(failure)) if self.how == How::AllTransient => {
                batch.refuse(index, Failure::new(FailureClass::Transient, failure.reason));
            }
            Some(Verdict::Failed(failure)) => {
                batch.refuse(index, failure);
            }
            None => {}
        }
    }
}

#[async_trait]
impl Publisher for Broken {
    async fn publish(&self, batch: Batch) {
        match self.how {
            How::SendsHalf => {
                let half = Batch::new(batch.messages()[..batch.len() / 2].to_vec());
                self.broker.publish(half.clone()).await;
                (0..half.len())
                    .for_each(|index| self.hand_over(&batch, index, half.verdict(index)));
            }
            How::SendsTwice => {
                self.broker.publish(Batch::new(batch.messages().to_vec())).await;
                self.broker.publish(batch).await;
            }
            How::SendsNothing => (0..batch.len()).for_each(|index| _ = batch.confirm(index)),
            How::PanicsOnNothing => assert!(!batch.is_empty(), "index out of bounds"),
            How::OneCallAtATime => {
                assert!(!self.busy.swap(true, Ordering::SeqCst), "the channel is taken");
                tokio::task::yield_now().await;
                self.broker.publish(batch).await;
                self.busy.store(false, Ordering::SeqCst);
            }
            How::NullIsEmpty => {
                let change = |message: &Message| {
                    changed(message, |row| row.payload = row.payload.or(Some(b"")))
                };
                self.publish_as(&batch, change).await;
            }
            How::PayloadIsText => {
                let change = |message: &Message| {
                    let text = message.payload().map(|it| String::from_utf8_lossy(it).into_owned());
                    changed(message, |row| row.payload = text.as_deref().map(str::as_bytes))
                };
                self.publish_as(&batch, change).await;
            }
            How::NoHeaders => {
                self.publish_as(&batch, |message| changed(message, |row| row.headers = None)).await;
            }
            How::Reverses => {
                let copy = Batch::new(batch.messages().iter().rev().cloned().collect());
                self.broker.publish(copy.clone()).await;
                for index in 0..batch.len() {
                    self.hand_over(&batch, index, copy.verdict(batch.len() - 1 - index));
                }
            }
            How::AllTransient | How::CopiesVerdictsAtTheEnd => {
                self.publish_as(&batch, Message::clone).await;
            }
            How::RefusesNeighbours => {
                self.broker.publish(Batch::new(batch.messages().to_vec())).await;
                batch.refuse_open(&Failure::new(FailureClass::Transient, "the batch was refused"));
            }
            How::ConfirmsAtOnce => {
                let copy = Batch::new(batch.messages().to_vec());
                (0..batch.len()).for_each(|index| _ = batch.confirm(index));
                self.broker.publish(copy).await;
            }
            How::NeverReconnects => {
                if self.broker.check().await.is_err() {
                    self.lost.store(true, Ordering::SeqCst);
                }
                if self.lost.load(Ordering::SeqCst) {
                    batch.refuse_open(&Failure::new(FailureClass::Unavailable, "not connected"));
                }
                self.broker.publish(batch).await;
            }
            How::NeverGivesUp => {
                let (broker, again) = (self.broker.clone(), batch.clone());
                tokio::spawn(async move {
                    while again.open() > 0 {
                        tokio::time::sleep(Duration::from_millis(1_000)).await;
                        let _ = tokio::time::timeout(
                            Duration::from_millis(1),
                            broker.publish(again.clone()),
                        )
                        .await;
                    }
                });
                self.broker.publish(batch).await;
            }
            _ => self.broker.publish(batch).await,
        }
    }

    async fn abandon(&self) {
        if self.how != How::AbandonsNothing {
            self.broker.abandon().await;
        }
    }

    fn key_order(&self) -> KeyOrder {
        KeyOrder::Prefix
    }

    async fn check(&self) -> Result<(), PublishError> {
        match self.how {
            How::FailsTheCheck => Err(PublishError::unavailable("not implemented")),
            _ => self.broker.check().await,
        }
    }
}

fn changed<'a>(message: &'a Message, change: impl FnOnce(&mut EventRow<'a>)) -> Message {
    let event = message.event();
    let mut row = EventRow::new(event.position(), event.lane(), event.id().clone());
    row.aggregate_type = event.aggregate_type();
    row.aggregate_id = event.aggregate_id();
    row.event_type = event.event_type();
    row.payload = event.payload();
    row.headers = event.headers();
    row.created_at_micros = event.created_at_micros();
    row.attempts = event.attempts();
    row.waiting = event.is_waiting();
    row.fault = event.fault();
    change(&mut row);
    let mut rows = EventRows::default();
    rows.push(&row);
    Message::new(rows.finish().remove(0), Arc::clone(message.destination()))
}
