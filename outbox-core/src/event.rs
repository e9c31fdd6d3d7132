//! An event as the relay reads it, and the buffer in which a store hands a claim over.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::EventId;
use crate::store::{LaneId, Position};

/// A pending event, read from the outbox table.
///
/// Its texts and its payload are slices of one buffer that all events of a claim share, so cloning is cheap
/// and nothing of an event is a `String` or a `Vec`. A clone keeps the whole claim's buffer alive:
/// [`Event::detach`] gives a copy of its own.
#[derive(Clone)]
pub struct Event {
    row: Row,
    buffers: Arc<Buffers>,
}

/// What an event has of its own.
#[derive(Clone, Debug)]
struct Row {
    position: Position,
    created_at: i64,
    lane: LaneId,
    waiting: bool,
    attempts: u32,
    id: EventId,
    aggregate_type: Span,
    aggregate_id: Span,
    event_type: Span,
    payload: Span,
    headers: Span,
    fault: Span,
}

/// What the events of a claim share. Texts stand apart, so that they are checked once and not at every look.
#[derive(Debug, Default)]
struct Buffers {
    texts: String,
    payloads: Vec<u8>,
}

impl Event {
    /// The event's place in the table: rises in the order in which writers drew it.
    #[must_use]
    pub fn position(&self) -> Position {
        self.row.position
    }

    /// The lane to which the event belongs.
    #[must_use]
    pub fn lane(&self) -> LaneId {
        self.row.lane
    }

    /// Counted failed attempts so far.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.row.attempts
    }

    /// Whether the row carries a `due_at`: it was scheduled, or waits for a retry.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.row.waiting
    }

    /// Whether the row waits for a retry, and so holds the later events of its aggregate.
    #[must_use]
    pub fn holds_aggregate(&self) -> bool {
        self.row.waiting && self.row.attempts > 0
    }

    /// The event's identity.
    #[must_use]
    pub fn id(&self) -> &EventId {
        &self.row.id
    }

    /// What kind of aggregate the event is about; decides the destination.
    #[must_use]
    pub fn aggregate_type(&self) -> &str {
        self.text(self.row.aggregate_type)
    }

    /// The aggregate that the event is about: the message's key. `None` is an unordered event.
    #[must_use]
    pub fn aggregate_id(&self) -> Option<&str> {
        self.row.aggregate_id.exists().then(|| self.text(self.row.aggregate_id))
    }

    /// The event's type, with its version if it has one (`OrderCreated.v2`).
    #[must_use]
    pub fn event_type(&self) -> &str {
        self.text(self.row.event_type)
    }

    /// The payload's bytes as they stand in the table; `None` is a tombstone.
    #[must_use]
    pub fn payload(&self) -> Option<&[u8]> {
        self.row.payload.exists().then(|| &self.buffers.payloads[self.row.payload.range()])
    }

    /// The event's own headers: one flat JSON object, as text.
    #[must_use]
    pub fn headers(&self) -> Option<&str> {
        self.row.headers.exists().then(|| self.text(self.row.headers))
    }

    /// When the row was written, by the database's clock, in microseconds since 1970.
    #[must_use]
    pub fn created_at_micros(&self) -> i64 {
        self.row.created_at
    }

    /// When the row was written, by the database's clock; a time before 1970 counts as 1970.
    #[must_use]
    pub fn created_at(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(u64::try_from(self.row.created_at).unwrap_or(0))
    }

    /// Why the store could not read the row whole. Such an event is dead-lettered, never published.
    #[must_use]
    pub fn fault(&self) -> Option<&str> {
        self.row.fault.exists().then(|| self.text(self.row.fault))
    }

    /// What settles this event at its store.
    #[must_use]
    pub fn receipt(&self) -> Receipt {
        Receipt { lane: self.row.lane, position: self.row.position, id: self.row.id.clone() }
    }

    /// Bytes of texts and payload.
    #[must_use]
    pub fn size(&self) -> usize {
        [
            self.row.aggregate_type,
            self.row.aggregate_id,
            self.row.event_type,
            self.row.payload,
            self.row.headers,
            self.row.fault,
        ]
        .iter()
        .map(|span| span.range().len())
        .sum()
    }

    /// The same event with a buffer of its own, so that it no longer keeps its claim's alive.
    #[must_use]
    pub fn detach(&self) -> Self {
        let mut rows = EventRows::with_capacity(1, self.size());
        rows.push(&EventRow {
            position: self.row.position,
            lane: self.row.lane,
            id: self.row.id.clone(),
            aggregate_type: self.aggregate_type(),
            aggregate_id: self.aggregate_id(),
            event_type: self.event_type(),
            payload: self.payload(),
            headers: self.headers(),
            created_at_micros: self.row.created_at,
            attempts: self.row.attempts,
            waiting: self.row.waiting,
            fault: self.fault(),
        });
        rows.finish().pop().expect("one row was pushed")
    }

    fn text(&self, span: Span) -> &str {
        &self.buffers.texts[span.range()]
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("lane", &self.row.lane)
            .field("position", &self.row.position)
            .field("id", &self.row.id)
            .field("aggregate_type", &self.aggregate_type())
            .field("event_type", &self.event_type())
            .field("attempts", &self.row.attempts)
            .finish_non_exhaustive()
    }
}

/// The store's handle of one pending event: lane, position and id, all three compared when it is settled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Receipt {
    /// The event's lane.
    pub lane: LaneId,
    /// The event's position.
    pub position: Position,
    /// The event's id: positions can repeat after a restore, ids cannot.
    pub id: EventId,
}

impl Receipt {
    /// The handle of the event with this id at this place.
    #[must_use]
    pub fn new(lane: LaneId, position: Position, id: EventId) -> Self {
        Self { lane, position, id }
    }
}

/// One row of a claim, as a store decodes it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EventRow<'a> {
    /// See [`Event::position`].
    pub position: Position,
    /// See [`Event::lane`].
    pub lane: LaneId,
    /// See [`Event::id`].
    pub id: EventId,
    /// See [`Event::aggregate_type`].
    pub aggregate_type: &'a str,
    /// See [`Event::aggregate_id`].
    pub aggregate_id: Option<&'a str>,
    /// See [`Event::event_type`].
    pub event_type: &'a str,
    /// See [`Event::payload`].
    pub payload: Option<&'a [u8]>,
    /// See [`Event::headers`].
    pub headers: Option<&'a str>,
    /// See [`Event::created_at_micros`].
    pub created_at_micros: i64,
    /// See [`Event::attempts`].
    pub attempts: u32,
    /// See [`Event::is_waiting`].
    pub waiting: bool,
    /// See [`Event::fault`].
    pub fault: Option<&'a str>,
}

impl EventRow<'_> {
    /// A row at this place with this id. All else is empty, `None` or 0, and to be set field by field.
    #[must_use]
    pub fn new(position: Position, lane: LaneId, id: EventId) -> Self {
        Self {
            position,
            lane,
            id,
            aggregate_type: "",
            aggregate_id: None,
            event_type: "",
            payload: None,
            headers: None,
            created_at_micros: 0,
            attempts: 0,
            waiting: false,
            fault: None,
        }
    }
}

/// Collects the rows of one claim into buffers that they share.
#[derive(Debug, Default)]
pub struct EventRows {
    buffers: Buffers,
    rows: Vec<Row>,
}

impl EventRows {
    /// Room for `events` rows of `bytes` in all; both grow as needed.
    #[must_use]
    pub fn with_capacity(events: usize, bytes: usize) -> Self {
        // Most of an event is its payload.
        let texts = bytes / 3;
        let buffers = Buffers {
            texts: String::with_capacity(texts),
            payloads: Vec::with_capacity(bytes - texts),
        };
        Self { buffers, rows: Vec::with_capacity(events) }
    }

    /// Copies one row in.
    ///
    /// # Panics
    ///
    /// When the rows of one claim exceed 4 GiB, which the byte budget of a claim rules out.
    pub fn push(&mut self, row: &EventRow<'_>) {
        let row = Row {
            position: row.position,
            created_at: row.created_at_micros,
            lane: row.lane,
            waiting: row.waiting,
            attempts: row.attempts,
            id: row.id.clone(),
            aggregate_type: self.copy_text(Some(row.aggregate_type)),
            aggregate_id: self.copy_text(row.aggregate_id),
            event_type: self.copy_text(Some(row.event_type)),
            payload: self.copy_payload(row.payload),
            headers: self.copy_text(row.headers),
            fault: self.copy_text(row.fault),
        };
        self.rows.push(row);
    }

    /// Rows so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether no row was pushed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Bytes copied so far.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.buffers.texts.len() + self.buffers.payloads.len()
    }

    /// The events, in the order in which they were pushed.
    #[must_use]
    pub fn finish(self) -> Vec<Event> {
        let buffers = Arc::new(self.buffers);
        let with_buffers = |row| Event { row, buffers: buffers.clone() };
        self.rows.into_iter().map(with_buffers).collect()
    }

    fn copy_text(&mut self, text: Option<&str>) -> Span {
        let Some(text) = text else { return Span::NULL };
        let start = self.buffers.texts.len();
        self.buffers.texts.push_str(text);
        Span::new(start, self.buffers.texts.len())
    }

    fn copy_payload(&mut self, payload: Option<&[u8]>) -> Span {
        let Some(payload) = payload else { return Span::NULL };
        let start = self.buffers.payloads.len();
        self.buffers.payloads.extend_from_slice(payload);
        Span::new(start, self.buffers.payloads.len())
    }
}

/// A place in one of the claim's buffers; `start > end` stands for SQL NULL.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: u32,
    end: u32,
}

impl Span {
    const NULL: Self = Self { start: 1, end: 0 };

    fn new(start: usize, end: usize) -> Self {
        let at = |index: usize| u32::try_from(index).expect("a claim holds less than 4 GiB");
        Self { start: at(start), end: at(end) }
    }

    fn exists(self) -> bool {
        self.start <= self.end
    }

    fn range(self) -> std::ops::Range<usize> {
        if self.exists() { self.start as usize..self.end as usize } else { 0..0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row<'a>() -> EventRow<'a> {
        EventRow {
            position: 7,
            lane: 3,
            id: EventId::from_text("x").unwrap(),
            aggregate_type: "order",
            aggregate_id: Some(""),
            event_type: "Created",
            payload: None,
            headers: Some("{}"),
            created_at_micros: 1_000_001,
            attempts: 0,
            waiting: false,
            fault: None,
        }
    }

    #[test]
    fn null_and_empty_are_kept_apart() {
        let mut rows = EventRows::default();
        rows.push(&row());
        rows.push(&EventRow { aggregate_id: None, payload: Some(b""), headers: None, ..row() });
        let events = rows.finish();
        assert_eq!((events[0].aggregate_id(), events[0].payload()), (Some(""), None));
        assert_eq!((events[1].aggregate_id(), events[1].payload()), (None, Some(&b""[..])));
        assert_eq!((events[0].headers(), events[1].headers()), (Some("{}"), None));
    }

    #[test]
    fn events_of_a_claim_share_one_buffer_until_detached() {
        let mut rows = EventRows::default();
        rows.push(&row());
        rows.push(&row());
        let events = rows.finish();
        assert_eq!(Arc::as_ptr(&events[0].buffers), Arc::as_ptr(&events[1].buffers));
        let detached = events[1].detach();
        assert_ne!(Arc::as_ptr(&detached.buffers), Arc::as_ptr(&events[0].buffers));
        assert_eq!((detached.aggregate_type(), detached.event_type()), ("order", "Created"));
    }
}
