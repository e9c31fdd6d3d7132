//! Events for the unit tests of this crate.

use crate::{Event, EventId, EventRow, EventRows, Position};

/// The event at `position` of aggregate `a`.
pub(crate) fn event(position: Position) -> Event {
    event_of(position, 0, Some("a"))
}

/// The event at `position` of this aggregate.
pub(crate) fn event_of(position: Position, lane: u16, aggregate: Option<&str>) -> Event {
    let mut rows = EventRows::default();
    rows.push(&EventRow {
        position,
        lane,
        id: EventId::from_text(&format!("event-{position}")).expect("a short text is an id"),
        aggregate_type: "order",
        aggregate_id: aggregate,
        event_type: "Created",
        payload: Some(b"{}"),
        headers: None,
        created_at_micros: 0,
        attempts: 0,
        waiting: false,
        fault: None,
    });
    rows.finish().pop().expect("one row was pushed")
}
