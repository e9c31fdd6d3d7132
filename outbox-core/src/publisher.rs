//! The contract of a broker.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::{Batch, PublishError};

/// A broker, as the relay sees it.
///
/// # Contract
///
/// - `publish` sends the messages of the batch and records a verdict for each: [`Batch::confirm`] once the *broker* has
///   taken it for good, [`Batch::refuse`] otherwise. It returns when all have one, or when it can find out no more.
///   Silence is never a confirmation: a message without a verdict stays *open*, and its aggregate closed.
/// - Verdicts may come while the call runs, and after its future was dropped, through a clone of the batch: a slow
///   message delays nobody else, and a dropped call keeps what was confirmed.
/// - Dropping the future neither cancels what was sent nor leaves anything that could be sent twice.
/// - [`abandon`](Self::abandon) ends all open messages: once it has returned, whatever has no verdict can no longer be
///   sent by this publisher (purged, or its connection closed). The relay publishes it again then, not before.
/// - A verdict is about the message at its index. A message that cannot be sent for its own sake is refused as
///   `Permanent` and its neighbours are not hurt.
/// - `Unavailable` says that the destination could not be reached; it is never the event's fault.
/// - Several calls run at the same time (4 by default), never two with messages of one aggregate unless the publisher
///   is [`KeyOrder::Prefix`] and both stand in one call.
/// - A publisher serves one pipeline.
/// - Errors and reasons carry no secret.
#[async_trait]
pub trait Publisher: fmt::Debug + Send + Sync {
    /// Sends the messages of a batch; see the trait's contract.
    async fn publish(&self, batch: Batch);

    /// Makes sure that no message without a verdict can still be sent; see the trait's contract. Bounded in time by the
    /// publisher itself (some seconds).
    async fn abandon(&self);

    /// What the broker promises about messages of one key in one call.
    fn key_order(&self) -> KeyOrder {
        KeyOrder::Unordered
    }

    /// The publisher's own figures for metrics: name (`snake_case`) and value. Called every few seconds.
    fn stats(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }

    /// Looks whether the broker can be reached, without sending anything.
    ///
    /// # Errors
    ///
    /// Says what does not work and which setting to look at.
    async fn check(&self) -> Result<(), PublishError> {
        Ok(())
    }
}

/// What a publisher promises about messages of one key in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyOrder {
    /// Nothing: a call carries one event per aggregate.
    Unordered,
    /// Behind a message that is neither confirmed nor permanently refused, no later message of its key is delivered.
    /// To be earned in the conformance kit under injected failures.
    Prefix,
}

/// A message that was not confirmed: whose fault it is, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// Whose fault it is.
    pub class: FailureClass,
    /// Why, for people. Without secrets.
    pub reason: Arc<str>,
}

impl Failure {
    /// A failure of this class.
    pub fn new(class: FailureClass, reason: impl Into<Arc<str>>) -> Self {
        Self { class, reason: reason.into() }
    }
}

/// Whose fault a failure is. Only `Transient` counts an attempt each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureClass {
    /// The broker: down, throttling, refusing the login, or the message was not sent in time. The pipeline pauses, nothing
    /// is written to the outbox table.
    Unavailable,
    /// The destination (topic, queue): missing, not permitted, full. Its events wait, without being counted beyond the
    /// first attempt; others go on.
    Refused,
    /// The event, perhaps: tried again with back-off, a limited number of times.
    Transient,
    /// The event: no further try can help (too large, malformed). It is given up at once.
    Permanent,
    /// Nobody: the message was provably not sent, since one before it failed.
    Unsent,
}

impl FailureClass {
    /// The class in one word, for labels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Refused => "refused",
            Self::Transient => "transient",
            Self::Permanent => "permanent",
            Self::Unsent => "unsent",
        }
    }
}
