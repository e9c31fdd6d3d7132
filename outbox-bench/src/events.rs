//! The events of a run, each made from its number: what is loaded, produced and read back is the same without being kept.

use std::fmt::Write as _;

use fastrand::Rng;
use uuid::Uuid;

/// The aggregate type of every event.
pub const AGGREGATE_TYPE: &str = "order";
/// The event type of every event.
pub const EVENT_TYPE: &str = "OrderChanged.v1";
/// Aggregates among which the events rotate: a prime, so that nothing lines up with lanes or batches.
pub const AGGREGATES: u64 = 10_007;
/// Bytes of a payload.
pub const PAYLOAD_BYTES: usize = 255;

/// One event.
#[derive(Debug, PartialEq, Eq)]
pub struct Sample {
    /// Its identity.
    pub id: Uuid,
    /// Its aggregate: the message's key.
    pub aggregate: String,
    /// [`PAYLOAD_BYTES`] of JSON, most of them random: constant bytes would flatter compression.
    pub payload: String,
    /// The trace context; as a JSON object it has 73 bytes.
    pub traceparent: String,
}

impl Sample {
    /// Event number `n`.
    #[must_use]
    pub fn new(n: u64) -> Self {
        let mut random = Rng::with_seed(n ^ 0x6f75_7462_6f78);
        let id = uuid::Builder::from_random_bytes(random.u128(..).to_le_bytes()).into_uuid();
        let (trace, span) = (random.u128(..), random.u64(..));
        let mut payload = String::with_capacity(PAYLOAD_BYTES);
        write!(payload, r#"{{"n":"{n:012}","data":""#).expect("a string takes all");
        while payload.len() < PAYLOAD_BYTES - 2 {
            let room = PAYLOAD_BYTES - 2 - payload.len();
            let digits = format!("{:016x}", random.u64(..));
            payload.push_str(&digits[..digits.len().min(room)]);
        }
        payload.push_str("\"}");
        Self {
            id,
            aggregate: format!("order-{}", n % AGGREGATES),
            payload,
            traceparent: format!("00-{trace:032x}-{span:016x}-01"),
        }
    }

    /// The number of the event that has this payload.
    #[must_use]
    pub fn number(payload: &[u8]) -> Option<u64> {
        std::str::from_utf8(payload.get(6..18)?).ok()?.parse().ok()
    }

    /// Appends the event to the text of a `COPY` into the columns [`COLUMNS`].
    pub fn copy_into(&self, text: &mut String) {
        let Self { id, aggregate, payload, traceparent } = self;
        writeln!(
            text,
            "{id}\t{AGGREGATE_TYPE}\t{aggregate}\t{EVENT_TYPE}\t{payload}\t{{\"traceparent\":\"{traceparent}\"}}"
        )
        .expect("a string takes all");
    }
}

/// The columns that [`Sample::copy_into`] writes, in its order.
pub const COLUMNS: &str = "id, aggregatetype, aggregateid, type, payload, headers";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_the_sizes_it_should_and_is_found_by_its_payload() {
        let sample = Sample::new(1_234_567);
        assert_eq!(sample.payload.len(), PAYLOAD_BYTES);
        assert_eq!(format!(r#"{{"traceparent":"{}"}}"#, sample.traceparent).len(), 73);
        assert_eq!(Sample::number(sample.payload.as_bytes()), Some(1_234_567));
        assert!(serde_json::from_str::<serde_json::Value>(&sample.payload).is_ok());
        assert_eq!(Sample::new(1_234_567), sample);
        assert_ne!(Sample::new(1_234_568).id, sample.id);
    }
}
