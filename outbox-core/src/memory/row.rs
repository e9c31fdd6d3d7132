//! The rows of the table.

use crate::{Event, EventId, EventRow, EventRows, LaneId, NewEvent, Position, Receipt};

/// A pending event with what changes while it waits.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// What never changes; its `attempts` and `is_waiting` are those of the insert.
    pub(super) event: Event,
    pub(super) attempts: u32,
    /// Microseconds since 1970; [`NEVER`] is a blocked head.
    pub(super) due_at: Option<i64>,
    pub(super) last_error: Option<String>,
}

/// The due time of a head that is blocked until an operator decides.
pub(super) const NEVER: i64 = i64::MAX;

impl Row {
    /// A row as it is inserted; `row.waiting` is what `due_at` says.
    pub(super) fn new(row: &EventRow<'_>, due_at: Option<i64>) -> Self {
        Self { event: event_of(row), attempts: row.attempts, due_at, last_error: None }
    }

    pub(super) fn position(&self) -> Position {
        self.event.position()
    }

    pub(super) fn aggregate_type(&self) -> &str {
        self.event.aggregate_type()
    }

    /// Type and id of the aggregate; an unordered event has none.
    pub(super) fn aggregate(&self) -> Option<(&str, &str)> {
        self.event.aggregate_id().map(|id| (self.event.aggregate_type(), id))
    }

    /// Whether the row holds the later events of its aggregate: it has failed and waits. A scheduled row does not.
    pub(super) fn holds(&self) -> bool {
        self.attempts > 0 && self.due_at.is_some()
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.due_at == Some(NEVER)
    }

    pub(super) fn is(&self, receipt: &Receipt) -> bool {
        self.event.receipt() == *receipt
    }

    pub(super) fn created_at(&self) -> i64 {
        self.event.created_at_micros()
    }

    pub(super) fn size(&self) -> usize {
        self.event.size()
    }

    pub(super) fn lane(&self) -> LaneId {
        self.event.lane()
    }

    pub(super) fn id(&self) -> &EventId {
        self.event.id()
    }

    /// The row as a claim reads it now.
    pub(super) fn read(&self) -> EventRow<'_> {
        EventRow {
            position: self.event.position(),
            lane: self.event.lane(),
            id: self.event.id().clone(),
            aggregate_type: self.event.aggregate_type(),
            aggregate_id: self.event.aggregate_id(),
            event_type: self.event.event_type(),
            payload: self.event.payload(),
            headers: self.event.headers(),
            created_at_micros: self.event.created_at_micros(),
            attempts: self.attempts,
            waiting: self.due_at.is_some(),
            fault: self.event.fault(),
        }
    }

    /// The same row at another position.
    pub(super) fn at(&self, position: Position) -> Self {
        Self::new(&EventRow { position, ..self.read() }, self.due_at)
    }

    /// The event as a claim would give it now.
    pub(super) fn to_event(&self) -> Event {
        event_of(&self.read())
    }
}

/// A row that was given up.
#[derive(Clone, Debug)]
pub(super) struct DeadRow {
    pub(super) entry: i64,
    /// As it was, with the attempts it died with.
    pub(super) row: Row,
    pub(super) reason: String,
    /// Microseconds since 1970.
    pub(super) died_at: i64,
}

fn event_of(row: &EventRow<'_>) -> Event {
    let mut rows = EventRows::with_capacity(1, 0);
    rows.push(row);
    rows.finish().pop().expect("one row was pushed")
}

/// What the insert of `event` writes; position, lane and time are the table's to say.
pub(super) fn insert_of(event: &NewEvent) -> EventRow<'_> {
    EventRow {
        position: 0,
        lane: 0,
        id: event.id().clone(),
        aggregate_type: event.aggregate_type(),
        aggregate_id: event.aggregate_id(),
        event_type: event.event_type(),
        payload: event.payload(),
        headers: event.headers(),
        created_at_micros: 0,
        attempts: 0,
        waiting: event.due().is_some(),
        fault: None,
    }
}

/// An event that was given up.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The event, with the attempts it died with.
    pub event: Event,
    /// Why.
    pub reason: String,
}
