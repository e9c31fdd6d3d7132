//! How a row of a claim becomes an event: raw bytes into the claim's one buffer.

use outbox_core::{EventId, EventRow, EventRows, LaneId, Position, Snapshot};
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::PayloadType;

/// Microseconds from 1970 to 2000, where PostgreSQL counts from.
const EPOCH_2000: i64 = 946_684_800_000_000;

/// The longest aggregate type and id together, in bytes, that fit the index which holds an aggregate back.
pub(crate) const MAX_KEY_BYTES: usize = 2048;

/// A row of the claim's statement.
#[derive(Debug)]
pub(crate) enum ClaimRow<'a> {
    /// What the server says of itself.
    Server { name: &'a str, snapshot: Option<Snapshot>, now_micros: i64 },
    /// A pending event.
    Event(RawEvent<'a>),
}

impl<'a> ClaimRow<'a> {
    /// Looks at a row without copying.
    ///
    /// # Errors
    ///
    /// When the statement's columns are not those of a claim: never because of a row's data.
    pub(crate) fn read(row: &'a PgRow, payload: PayloadType) -> Result<Self, sqlx::Error> {
        let Some(lane) = bytes(row, 0)? else {
            let text = std::str::from_utf8(bytes(row, 5)?.unwrap_or_default()).unwrap_or_default();
            let (name, snapshot) = text.split_once(' ').unwrap_or((text, ""));
            let now_micros = micros(bytes(row, 8)?).unwrap_or_default();
            return Ok(Self::Server { name, snapshot: parse_snapshot(snapshot), now_micros });
        };
        Ok(Self::Event(RawEvent {
            lane: int2(Some(lane)).unwrap_or_default(),
            position: int8(bytes(row, 1)?).unwrap_or_default(),
            id: bytes(row, 2)?,
            aggregate_type: bytes(row, 3)?,
            aggregate_id: bytes(row, 4)?,
            event_type: bytes(row, 5)?,
            payload: self::payload(row, 6, payload)?,
            headers: bytes(row, 7)?,
            created_at_micros: micros(bytes(row, 8)?),
            attempts: int4(bytes(row, 9)?).unwrap_or_default(),
            waiting: bytes(row, 10)? == Some(&[1]),
        }))
    }
}

/// A pending event as it came over the wire.
#[derive(Debug)]
pub(crate) struct RawEvent<'a> {
    lane: LaneId,
    position: Position,
    id: Option<&'a [u8]>,
    aggregate_type: Option<&'a [u8]>,
    aggregate_id: Option<&'a [u8]>,
    event_type: Option<&'a [u8]>,
    payload: Option<&'a [u8]>,
    headers: Option<&'a [u8]>,
    created_at_micros: Option<i64>,
    attempts: i32,
    waiting: bool,
}

impl RawEvent<'_> {
    /// Whether it came by the branch of due rows.
    pub(crate) fn waiting(&self) -> bool {
        self.waiting
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
        let id = self.id.and_then(|bytes| Uuid::from_slice(bytes).ok());
        if id.is_none() {
            fault.push_str("id is null; ");
        }
        let mut row =
            EventRow::new(self.position, self.lane, EventId::from(id.unwrap_or_default()));
        row.aggregate_type = required("aggregatetype", self.aggregate_type, &mut fault);
        row.aggregate_id = text("aggregateid", self.aggregate_id, &mut fault);
        row.event_type = required("type", self.event_type, &mut fault);
        row.payload = self.payload;
        row.headers = text("headers", self.headers, &mut fault);
        row.created_at_micros = self.created_at_micros.unwrap_or_else(|| {
            fault.push_str("created_at is null or infinite; ");
            0
        });
        row.attempts = u32::try_from(self.attempts).unwrap_or_default();
        row.waiting = self.waiting;
        let key = row.aggregate_type.len() + row.aggregate_id.map_or(0, str::len);
        if key > MAX_KEY_BYTES {
            fault.push_str(&format!(
                "aggregatetype and aggregateid together have {key} bytes, {MAX_KEY_BYTES} are allowed; "
            ));
        }
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
    // A database in encoding SQL_ASCII takes any bytes.
    let text = std::str::from_utf8(bytes?);
    if text.is_err() {
        fault.push_str(column);
        fault.push_str(" is not UTF-8; ");
    }
    text.ok()
}

/// The payload's bytes.
pub(crate) fn payload(
    row: &PgRow,
    column: usize,
    payload: PayloadType,
) -> Result<Option<&[u8]>, sqlx::Error> {
    Ok(bytes(row, column)?.map(|bytes| match payload {
        // The binary form of jsonb is a version byte and the value's text.
        PayloadType::Jsonb => bytes.get(1..).unwrap_or_default(),
        _ => bytes,
    }))
}

/// A column's bytes in PostgreSQL's binary form.
pub(crate) fn bytes(row: &PgRow, column: usize) -> Result<Option<&[u8]>, sqlx::Error> {
    use sqlx::ValueRef as _;
    let value = row.try_get_raw(column)?;
    if value.is_null() {
        return Ok(None);
    }
    value.as_bytes().map(Some).map_err(sqlx::Error::Decode)
}

fn int2(bytes: Option<&[u8]>) -> Option<u16> {
    u16::try_from(i16::from_be_bytes(bytes?.try_into().ok()?)).ok()
}

fn int4(bytes: Option<&[u8]>) -> Option<i32> {
    Some(i32::from_be_bytes(bytes?.try_into().ok()?))
}

fn int8(bytes: Option<&[u8]>) -> Option<i64> {
    Some(i64::from_be_bytes(bytes?.try_into().ok()?))
}

/// Microseconds since 1970; infinite times are none.
pub(crate) fn micros(bytes: Option<&[u8]>) -> Option<i64> {
    match int8(bytes)? {
        i64::MIN | i64::MAX => None,
        since_2000 => since_2000.checked_add(EPOCH_2000),
    }
}

/// Reads `xmin:xmax:xid,xid`.
fn parse_snapshot(text: &str) -> Option<Snapshot> {
    let mut parts = text.split(':');
    let mut number = || parts.next()?.parse().ok();
    let (lowest_open, first_unborn) = (number()?, number()?);
    let in_progress = parts.next()?.split(',').filter_map(|xid| xid.parse().ok()).collect();
    Some(Snapshot::new(lowest_open, first_unborn, in_progress))
}

/// The 64-bit id of a transaction whose lower half is `xid`, given an id that is close to it.
pub(crate) fn widen(xid: i64, near: i64) -> Option<u64> {
    const ROUND: i64 = 1 << 32;
    let same_round = near - near.rem_euclid(ROUND) + xid.rem_euclid(ROUND);
    let closest = [same_round - ROUND, same_round, same_round + ROUND]
        .into_iter()
        .min_by_key(|candidate| (candidate - near).abs())?;
    u64::try_from(closest).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_read_from_its_text() {
        let snapshot = parse_snapshot("10:20:12,15").unwrap();
        assert_eq!((snapshot.lowest_open, snapshot.first_unborn), (10, 20));
        assert_eq!(snapshot.in_progress, [12, 15]);
        assert_eq!(parse_snapshot("10:10:").unwrap().in_progress.len(), 0);
        assert_eq!(parse_snapshot("replica"), None);
    }

    #[test]
    fn a_transaction_id_is_widened_to_the_round_it_belongs_to() {
        let round = 1 << 32;
        assert_eq!(widen(700, 710), Some(700));
        assert_eq!(widen(5, round + 10), Some(4_294_967_301));
        // The id was drawn just before the counter began its second round.
        assert_eq!(widen(round - 3, round + 10), Some(4_294_967_293));
        // The id was drawn after the snapshot, in the next round.
        assert_eq!(widen(2, 2 * round - 4), Some(8_589_934_594));
    }
}
