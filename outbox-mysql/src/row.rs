//! How a row of a claim becomes an event: raw bytes into the claim's one buffer.

use outbox_core::{EventId, EventRow, EventRows, LaneId, Position};
use sqlx::mysql::MySqlRow;
use sqlx::{Decode, MySql, Row as _, ValueRef as _};

/// A pending event as it came over the wire.
#[derive(Debug)]
pub(crate) struct RawEvent<'a> {
    pub(crate) lane: LaneId,
    pub(crate) position: Position,
    id: Option<&'a [u8]>,
    aggregate_type: Option<&'a [u8]>,
    aggregate_id: Option<&'a [u8]>,
    event_type: Option<&'a [u8]>,
    payload: Option<&'a [u8]>,
    headers: Option<&'a [u8]>,
    created_at_micros: Option<i64>,
    attempts: i64,
    pub(crate) waiting: bool,
    too_large: bool,
}

impl<'a> RawEvent<'a> {
    /// Looks at a row of the fetching statement without copying.
    ///
    /// # Errors
    ///
    /// When the statement's columns are not those of a claim: never because of a row's data.
    pub(crate) fn read(row: &'a MySqlRow) -> Result<Self, sqlx::Error> {
        let number = |column| Ok::<_, sqlx::Error>(int(row, column)?.unwrap_or_default());
        Ok(Self {
            lane: LaneId::try_from(number(0)?).unwrap_or_default(),
            position: number(1)?,
            id: bytes(row, 2)?,
            aggregate_type: bytes(row, 3)?,
            aggregate_id: bytes(row, 4)?,
            event_type: bytes(row, 5)?,
            payload: bytes(row, 6)?,
            headers: bytes(row, 7)?,
            created_at_micros: int(row, 8)?,
            attempts: number(9)?,
            waiting: number(10)? == 1,
            too_large: number(11)? == 1,
        })
    }

    /// Bytes of texts and payload.
    pub(crate) fn size(&self) -> usize {
        [self.aggregate_type, self.aggregate_id, self.event_type, self.payload, self.headers]
            .iter()
            .map(|field| field.map_or(0, <[u8]>::len))
            .sum()
    }

    /// Copies the event into the claim's buffer. What cannot be read becomes its fault, never an error of the claim.
    pub(crate) fn push(&self, rows: &mut EventRows) {
        let mut fault = String::new();
        let id = text("id", self.id, &mut fault).and_then(|id| EventId::from_text(id).ok());
        if id.is_none() {
            fault.push_str("id is empty or holds a NUL; ");
        }
        if self.too_large {
            fault
                .push_str("payload and headers are larger than max_allowed_packet of the server; ");
        }
        let mut row = EventRow::new(
            self.position,
            self.lane,
            // Such a row can be settled by no one; an operator must look at it.
            id.unwrap_or_else(|| EventId::from(uuid::Uuid::nil())),
        );
        row.aggregate_type = required("aggregatetype", self.aggregate_type, &mut fault);
        row.aggregate_id = text("aggregateid", self.aggregate_id, &mut fault);
        row.event_type = required("type", self.event_type, &mut fault);
        row.payload = self.payload;
        row.headers = text("headers", self.headers, &mut fault);
        row.created_at_micros = self.created_at_micros.unwrap_or_else(|| {
            fault.push_str("created_at is null or no time; ");
            0
        });
        row.attempts = u32::try_from(self.attempts).unwrap_or(u32::MAX);
        row.waiting = self.waiting;
        row.fault = fault.strip_suffix("; ");
        rows.push(&row);
    }
}

fn required<'a>(column: &str, bytes: Option<&'a [u8]>, fault: &mut String) -> &'a str {
    if bytes.is_none() {
        fault.push_str(column);
        fault.push_str(" is null; ");
    }
    text(column, bytes, fault).unwrap_or_default()
}

fn text<'a>(column: &str, bytes: Option<&'a [u8]>, fault: &mut String) -> Option<&'a str> {
    let text = std::str::from_utf8(bytes?);
    if text.is_err() {
        fault.push_str(column);
        fault.push_str(" is not UTF-8; ");
    }
    text.ok()
}

/// A column's bytes.
pub(crate) fn bytes(row: &MySqlRow, column: usize) -> Result<Option<&[u8]>, sqlx::Error> {
    let value = row.try_get_raw(column)?;
    if value.is_null() {
        return Ok(None);
    }
    <&[u8] as Decode<'_, MySql>>::decode(value).map(Some).map_err(sqlx::Error::Decode)
}

/// A column's text, whatever stands in it.
pub(crate) fn lossy(row: &MySqlRow, column: usize) -> Result<Option<String>, sqlx::Error> {
    Ok(bytes(row, column)?.map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
}

/// A column's number, of whichever integer type.
pub(crate) fn int(row: &MySqlRow, column: usize) -> Result<Option<i64>, sqlx::Error> {
    row.try_get_unchecked(column)
}
