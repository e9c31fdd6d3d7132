//! One row of a claim: bytes in, an event out.

use std::borrow::Cow;

use outbox_core::{EventId, EventRow, EventRows, LaneId, StoreError};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use crate::error::failed;

/// A row of the claim statement: its first one tells the clock and the file's identity, the others are events.
pub(crate) struct ClaimedRow<'r> {
    pub(crate) position: Option<i64>,
    created_at: i64,
    lane: i64,
    attempts: i64,
    waiting: bool,
    id: &'r [u8],
    aggregate_type: &'r [u8],
    aggregate_id: Option<&'r [u8]>,
    event_type: &'r [u8],
    payload: Option<&'r [u8]>,
    headers: Option<&'r [u8]>,
}

impl<'r> ClaimedRow<'r> {
    /// Reads a row whatever types its values have: SQLite does not hold a column to its type everywhere.
    pub(crate) fn read(row: &'r SqliteRow) -> Result<Self, StoreError> {
        Self::columns(row).map_err(failed("read a row of the outbox"))
    }

    fn columns(row: &'r SqliteRow) -> Result<Self, sqlx::Error> {
        let bytes = |index: usize| row.try_get_unchecked::<Option<&'r [u8]>, _>(index);
        let number = |index: usize| row.try_get_unchecked::<Option<i64>, _>(index);
        Ok(Self {
            position: number(0)?,
            lane: number(1)?.unwrap_or(0),
            id: bytes(2)?.unwrap_or_default(),
            aggregate_type: bytes(3)?.unwrap_or_default(),
            aggregate_id: bytes(4)?,
            event_type: bytes(5)?.unwrap_or_default(),
            payload: bytes(6)?,
            headers: bytes(7)?,
            created_at: number(8)?.unwrap_or(0),
            attempts: number(9)?.unwrap_or(0),
            waiting: number(10)?.unwrap_or(0) != 0,
        })
    }

    /// Of the first row: the database's clock in microseconds, and the identity of the file.
    pub(crate) fn clock_and_identity(&self) -> (i64, String) {
        (self.created_at, String::from_utf8_lossy(self.id).into_owned())
    }

    pub(crate) fn size(&self) -> usize {
        self.aggregate_type.len()
            + self.aggregate_id.map_or(0, <[u8]>::len)
            + self.event_type.len()
            + self.payload.map_or(0, <[u8]>::len)
            + self.headers.map_or(0, <[u8]>::len)
    }

    /// Whether the row was without a due time.
    pub(crate) fn is_fresh(&self) -> bool {
        !self.waiting
    }

    pub(crate) fn push_to(&self, rows: &mut EventRows) {
        let mut fault = None;
        let mut text = |column: &str, bytes: &'r [u8]| {
            let text = String::from_utf8_lossy(bytes);
            if matches!(text, Cow::Owned(_)) {
                fault = Some(format!("column {column} holds bytes that are no UTF-8"));
            }
            text
        };
        let aggregate_type = text("aggregatetype", self.aggregate_type);
        let aggregate_id = self.aggregate_id.map(|bytes| text("aggregateid", bytes));
        let event_type = text("type", self.event_type);
        let headers = self.headers.map(|bytes| text("headers", bytes));
        // Only for its fault, if it is no text.
        text("id", self.id);
        let id = id_of(self.id);
        let mut row =
            EventRow::new(self.position.unwrap_or(0), LaneId::try_from(self.lane).unwrap_or(0), id);
        row.aggregate_type = &aggregate_type;
        row.aggregate_id = aggregate_id.as_deref();
        row.event_type = &event_type;
        row.payload = self.payload;
        row.headers = headers.as_deref();
        row.created_at_micros = self.created_at;
        row.attempts = u32::try_from(self.attempts).unwrap_or(u32::MAX);
        row.waiting = self.waiting;
        row.fault = fault.as_deref();
        rows.push(&row);
    }
}

/// The id of a row.
pub(crate) fn id_of(bytes: &[u8]) -> EventId {
    let text = std::str::from_utf8(bytes).ok().and_then(|text| EventId::from_text(text).ok());
    text.unwrap_or_else(|| unreadable_id(bytes))
}

/// Stands for an id that is no text, so that its row can be named and buried; `settle` knows this form.
fn unreadable_id(bytes: &[u8]) -> EventId {
    let hex: String = bytes.iter().take(100).map(|byte| format!("{byte:02X}")).collect();
    EventId::from_text(&format!("hex:{hex}")).expect("at most 204 characters without NUL")
}
