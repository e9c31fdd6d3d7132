//! What was given up, as stores show it to operators.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use crate::{EventId, Position};

/// An event that was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Names this dead letter; rises in the order in which they died and is never used again.
    pub entry: i64,
    /// The event's id, which it keeps when it is sent again.
    pub id: EventId,
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

impl DeadLetter {
    /// The dead letter with this entry and this event's id; the rest is empty, and set field by field.
    #[must_use]
    pub fn new(entry: i64, id: EventId) -> Self {
        Self {
            entry,
            id,
            aggregate_type: String::new(),
            aggregate_id: None,
            event_type: String::new(),
            payload: None,
            headers: None,
            attempts: 1,
            reason: String::new(),
            created_at: UNIX_EPOCH,
            died_at: UNIX_EPOCH,
        }
    }
}

/// An event that was given up and stays in the outbox, so that its aggregate waits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockedHead {
    /// The event's position, which names it here.
    pub position: Position,
    /// The event's id.
    pub id: EventId,
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
    /// When the event was written.
    pub created_at: SystemTime,
}

impl BlockedHead {
    /// The blocked head at this position with this event's id; the rest is empty, and set field by field.
    #[must_use]
    pub fn new(position: Position, id: EventId) -> Self {
        Self {
            position,
            id,
            aggregate_type: String::new(),
            aggregate_id: None,
            event_type: String::new(),
            attempts: 1,
            reason: String::new(),
            created_at: UNIX_EPOCH,
        }
    }
}

/// Which dead letters are meant: those that meet every condition given. The default has none, and means all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetterFilter {
    /// Of the event with this id.
    pub id: Option<EventId>,
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
    /// With this text in their reason, in upper or lower case. SQLite knows the case of the letters a to z only.
    pub text: Option<String>,
}

impl DeadLetterFilter {
    /// Only of the event with this id.
    #[must_use]
    pub fn with_id(mut self, id: EventId) -> Self {
        self.id = Some(id);
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

    /// Whether `letter` meets every condition, for stores that have no language to ask in.
    #[must_use]
    pub fn matches(&self, letter: &DeadLetter) -> bool {
        let is = |wanted: &Option<String>, found: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| Some(wanted) == found)
        };
        self.id.as_ref().is_none_or(|id| *id == letter.id)
            && self.since.is_none_or(|since| letter.died_at >= since)
            && self.until.is_none_or(|until| letter.died_at < until)
            && is(&self.aggregate_type, Some(&letter.aggregate_type))
            && is(&self.aggregate_id, letter.aggregate_id.as_deref())
            && is(&self.event_type, Some(&letter.event_type))
            && self
                .text
                .as_ref()
                .is_none_or(|text| letter.reason.to_lowercase().contains(&text.to_lowercase()))
    }
}

/// One page of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Page {
    /// Only what is above this entry, or this position: the last one of the page before. Default: [`i64::MIN`], from the beginning.
    pub after: i64,
    /// At most so many. Default: 100.
    pub limit: u32,
}

impl Default for Page {
    fn default() -> Self {
        Self { after: i64::MIN, limit: 100 }
    }
}

impl Page {
    /// Behind this entry, or this position.
    #[must_use]
    pub fn with_after(mut self, after: i64) -> Self {
        self.after = after;
        self
    }

    /// With at most so many.
    #[must_use]
    pub fn with_limit(mut self, limit: u32) -> Self {
        self.limit = limit;
        self
    }
}
