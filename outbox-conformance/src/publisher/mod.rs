//! The rules of a publisher.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::{Batch, EventId, FailureClass, Publisher, async_trait};

mod abandon;
mod bytes;
mod delivery;
mod message;
mod order;
mod received;
mod refusal;

pub use self::bytes::*;
pub use abandon::*;
pub use delivery::*;
pub use order::*;
pub use received::*;
pub use refusal::*;

/// A broker with one fresh, empty destination.
///
/// The function that makes it panics when the broker is missing: a suite that skips itself shows nothing.
#[async_trait]
pub trait PublisherHarness: Send + Sync {
    /// A new publisher to the broker; each rule asks once.
    async fn publisher(&self) -> Arc<dyn Publisher>;

    /// Where the messages go.
    fn destination(&self) -> Arc<str>;

    /// All that the destination holds now, the messages of a key in their order.
    async fn received(&self) -> Vec<Received>;

    /// Which faults this harness can cause, and what the broker cannot do; rules fall away by it.
    fn faults(&self) -> Faults {
        Faults::default()
    }

    /// Makes the broker unreachable, or reachable again.
    async fn outage(&self, on: bool) {
        unimplemented!("faults() declares outages: {on}")
    }

    /// Makes the broker stand there without an answer, or answer again. It may take messages meanwhile.
    async fn silence(&self, on: bool) {
        unimplemented!("faults() declares silence: {on}")
    }

    /// Returns when a silent broker's publisher has begun with the messages of `batch`, whose call runs: they are queued in
    /// it, or on their way. By default a fifth of a second passes: wait for something you can see instead, if there is any.
    async fn under_way(&self, publisher: &dyn Publisher, batch: &Batch) {
        let _ = (publisher, batch);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }

    /// Makes the broker answer this much later. The rule undoes it with zero.
    async fn slow(&self, delay: Duration) {
        unimplemented!("faults() declares slowness: {delay:?}")
    }

    /// Has the broker refuse one message of the next call, once, so that the publisher's verdict is of this class.
    /// `nth` is its index in the call and `id` its event: use what fits.
    async fn refuse(&self, nth: usize, id: &EventId, class: FailureClass) {
        unimplemented!("faults() declares refusals: {nth} {id} {class:?}")
    }
}

/// A message as the broker holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// `None` is no key.
    pub key: Option<Vec<u8>>,
    /// `None` is a tombstone.
    pub payload: Option<Vec<u8>>,
    /// In their order.
    pub headers: Vec<(String, Vec<u8>)>,
}

impl Received {
    /// The value of a header, as text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<String> {
        let found = self.headers.iter().find(|(header, _)| header == name);
        found.map(|(_, value)| String::from_utf8_lossy(value).into_owned())
    }
}

/// What a harness can do to its broker, and the limits of that broker. By default: nothing, and none.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Faults {
    outage: bool,
    silence: bool,
    slow: bool,
    refuses: Vec<FailureClass>,
    too_large: Option<usize>,
    refused_destination: Option<Arc<str>>,
    deadline: Option<Duration>,
    repeated_headers: bool,
    header_order: bool,
    whole_calls: bool,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            outage: false,
            silence: false,
            slow: false,
            refuses: Vec::new(),
            too_large: None,
            refused_destination: None,
            deadline: None,
            repeated_headers: true,
            header_order: true,
            whole_calls: false,
        }
    }
}

impl Faults {
    /// [`PublisherHarness::outage`] works.
    #[must_use]
    pub fn with_outage(mut self) -> Self {
        self.outage = true;
        self
    }

    /// [`PublisherHarness::silence`] works.
    #[must_use]
    pub fn with_silence(mut self) -> Self {
        self.silence = true;
        self
    }

    /// [`PublisherHarness::slow`] works.
    #[must_use]
    pub fn with_slowness(mut self) -> Self {
        self.slow = true;
        self
    }

    /// [`PublisherHarness::refuse`] works for these classes.
    #[must_use]
    pub fn with_refusals(mut self, classes: &[FailureClass]) -> Self {
        self.refuses = classes.to_vec();
        self
    }

    /// A payload of this many bytes is too large.
    #[must_use]
    pub fn with_too_large(mut self, bytes: usize) -> Self {
        self.too_large = Some(bytes);
        self
    }

    /// This destination refuses messages: it is missing, or not permitted.
    #[must_use]
    pub fn with_refused_destination(mut self, destination: impl Into<Arc<str>>) -> Self {
        self.refused_destination = Some(destination.into());
        self
    }

    /// A call returns within this time, whatever the broker does.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Of a call in which nothing is refused for good, the broker takes all or nothing. Otherwise a publisher that keeps
    /// prefixes must show one: an outage has to cut a call in the middle.
    #[must_use]
    pub fn with_whole_calls(mut self) -> Self {
        self.whole_calls = true;
        self
    }

    /// A message carries each header name once at most.
    #[must_use]
    pub fn without_repeated_headers(mut self) -> Self {
        self.repeated_headers = false;
        self
    }

    /// The headers of a message arrive in any order.
    #[must_use]
    pub fn without_header_order(mut self) -> Self {
        self.header_order = false;
        self
    }
}

/// Every rule of the contract of [`Publisher`](outbox_core::Publisher) as a test.
///
/// Takes the name of an async function that returns a [`PublisherHarness`] with an empty destination. Two invocations need a
/// module each.
#[macro_export]
macro_rules! publisher_conformance {
    ($harness:expr) => {
        $crate::conformance_tests! {
            $harness, publisher,
            every_message_gets_its_verdict,
            an_empty_batch_returns,
            calls_overlap,
            a_reachable_broker_passes_the_check,
            null_and_empty_are_kept_apart,
            every_byte_arrives,
            headers_arrive_in_their_order,
            a_thousand_messages_arrive_in_the_order_of_their_keys,
            nothing_of_a_key_is_sent_behind_a_failure,
            an_outage_leaves_a_prefix_of_each_key,
            each_failure_has_its_class,
            a_refused_message_does_not_hurt_its_neighbours,
            a_message_that_is_too_large_is_refused_for_good,
            a_destination_that_refuses_is_no_outage,
            an_outage_is_nobodys_fault,
            it_works_again_after_each_outage,
            silence_is_no_confirmation,
            a_call_ends_at_its_deadline,
            a_dropped_call_keeps_what_was_confirmed,
            verdicts_come_after_the_call_was_dropped,
            nothing_is_sent_after_abandon,
            a_publisher_can_be_dropped_with_open_messages,
        }
    };
}
