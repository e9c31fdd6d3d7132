//! What became of an event, as stores tell it to operators.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::{EventId, Position};

/// An event, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventRecord {
    /// The event's id.
    pub id: EventId,
    /// Its place in the outbox, or the one that it had there.
    pub position: Position,
    /// The kind of aggregate.
    pub aggregate_type: String,
    /// The aggregate; `None` is an unordered event.
    pub aggregate_id: Option<String>,
    /// The event's type.
    pub event_type: String,
    /// Attempts that were counted.
    pub attempts: u32,
    /// When it was written.
    pub created_at: SystemTime,
    /// What became of it.
    pub state: EventState,
}

impl EventRecord {
    /// The event with this id in this state; the rest is empty, and set field by field.
    #[must_use]
    pub fn new(id: EventId, position: Position, state: EventState) -> Self {
        Self {
            id,
            position,
            aggregate_type: String::new(),
            aggregate_id: None,
            event_type: String::new(),
            attempts: 0,
            created_at: UNIX_EPOCH,
            state,
        }
    }
}

/// What became of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventState {
    /// It takes its turn as soon as what is before it in its aggregate is delivered.
    Pending,
    /// It was written with a due time.
    Scheduled {
        /// Not before this time.
        due_at: SystemTime,
    },
    /// A try has failed, or an operator has sent it again; the later events of its aggregate wait for it.
    Retrying {
        /// The next try is not before this time.
        due_at: SystemTime,
        /// Why the last try failed.
        reason: String,
    },
    /// It was given up under `hold`: it stays, and its aggregate waits, until an operator decides.
    Blocked {
        /// Why it was given up.
        reason: String,
    },
    /// It was given up, and is a dead letter.
    Dead {
        /// The name of the dead letter.
        entry: i64,
        /// Why it was given up.
        reason: String,
        /// When it was given up.
        died_at: SystemTime,
    },
    /// It was delivered, and is kept in the archive.
    Delivered {
        /// Where it went.
        destination: String,
        /// When its delivery was written.
        settled_at: SystemTime,
    },
}

impl EventState {
    /// The state of a row of the outbox, from what its columns say; `never` is whether its due time stands for never.
    #[must_use]
    pub fn of_row(
        attempts: u32,
        due_at: Option<SystemTime>,
        never: bool,
        last_error: Option<String>,
    ) -> Self {
        let reason = last_error.unwrap_or_default();
        match due_at {
            None => Self::Pending,
            Some(due_at) if attempts == 0 => Self::Scheduled { due_at },
            Some(_) if never => Self::Blocked { reason },
            Some(due_at) => Self::Retrying { due_at, reason },
        }
    }

    /// The state in one word, for tables and labels.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Scheduled { .. } => "scheduled",
            Self::Retrying { .. } => "retrying",
            Self::Blocked { .. } => "blocked",
            Self::Dead { .. } => "dead",
            Self::Delivered { .. } => "delivered",
        }
    }
}
