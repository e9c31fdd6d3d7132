//! What was given up, as stores show it to operators.

use std::time::SystemTime;

use bytes::Bytes;

use crate::Position;

/// An event that was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Names this dead letter; rises in the order in which they died and is never used again.
    pub entry: i64,
    /// The event's id, which it keeps when it is sent again.
    pub id: String,
    /// The kind of aggregate.
    pub aggregate_type: String,
    /// The aggregate; `None` is an unordered event.
    pub aggregate_id: Option<String>,
    /// The event's type.
    pub event_type: String,
    /// The payload; `None` is a tombstone.
    pub payload: Option<Bytes>,
    /// The event's headers as one flat JSON object.
    pub headers: Option<String>,
    /// Attempts that were counted, at least 1.
    pub attempts: u32,
    /// Why it was given up.
    pub reason: String,
    /// When the event was written.
    pub created_at: SystemTime,
    /// When it was given up.
    pub died_at: SystemTime,
}

/// An event that was given up and stays in the outbox, so that its aggregate waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedHead {
    /// The event's position, which names it here.
    pub position: Position,
    /// The event's id.
    pub id: String,
    /// The kind of aggregate.
    pub aggregate_type: String,
    /// The aggregate; `None` is an unordered event, which blocks nobody.
    pub aggregate_id: Option<String>,
    /// The event's type.
    pub event_type: String,
    /// Attempts that were counted, at least 1.
    pub attempts: u32,
    /// Why it was given up.
    pub reason: String,
}

/// Which dead letters to list: those that meet every condition given.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeadLetterFilter {
    /// Entries above this one: the last of the page before. Default: 0.
    pub after: i64,
    /// At most so many. Default: 100.
    pub limit: u32,
    /// Died at or after this time.
    pub since: Option<SystemTime>,
    /// Died before this time.
    pub until: Option<SystemTime>,
    /// Of this aggregate type.
    pub aggregate_type: Option<String>,
    /// Of this aggregate.
    pub aggregate_id: Option<String>,
    /// Of this event type.
    pub event_type: Option<String>,
    /// With this text in their reason, in upper or lower case.
    pub text: Option<String>,
}

impl Default for DeadLetterFilter {
    fn default() -> Self {
        Self {
            after: 0,
            limit: 100,
            since: None,
            until: None,
            aggregate_type: None,
            aggregate_id: None,
            event_type: None,
            text: None,
        }
    }
}

impl DeadLetterFilter {
    /// Only entries above this one: the last of the page before.
    #[must_use]
    pub fn with_after(mut self, entry: i64) -> Self {
        self.after = entry;
        self
    }

    /// With at most so many on a page.
    #[must_use]
    pub fn with_limit(mut self, limit: u32) -> Self {
        self.limit = limit;
        self
    }

    /// Only what died at or after this time.
    #[must_use]
    pub fn with_since(mut self, time: SystemTime) -> Self {
        self.since = Some(time);
        self
    }

    /// Only what died before this time.
    #[must_use]
    pub fn with_until(mut self, time: SystemTime) -> Self {
        self.until = Some(time);
        self
    }

    /// Only of this kind of aggregate.
    #[must_use]
    pub fn with_aggregate_type(mut self, aggregate_type: impl Into<String>) -> Self {
        self.aggregate_type = Some(aggregate_type.into());
        self
    }

    /// Only of this aggregate.
    #[must_use]
    pub fn with_aggregate_id(mut self, aggregate_id: impl Into<String>) -> Self {
        self.aggregate_id = Some(aggregate_id.into());
        self
    }

    /// Only of this event type.
    #[must_use]
    pub fn with_event_type(mut self, event_type: impl Into<String>) -> Self {
        self.event_type = Some(event_type.into());
        self
    }

    /// Only with this text in the reason, in upper or lower case.
    #[must_use]
    pub fn with_text(mut self, text: impl Into<String>) -> Self {
        self.text = Some(text.into());
        self
    }
}
