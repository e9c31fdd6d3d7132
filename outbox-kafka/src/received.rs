//! Reading a record that this publisher or Debezium wrote.

use bytes::Bytes;
use outbox_core::{InvalidMessage, ReceivedEvent};
use rdkafka::message::{Headers, Message};

/// The event that a record carries: a `BorrowedMessage` or an `OwnedMessage`, written by this publisher or by Debezium's
/// `EventRouter`.
///
/// ```
/// use outbox_kafka::received;
/// use rdkafka::message::{Header, Message, OwnedHeaders, OwnedMessage, Timestamp};
///
/// fn handle(record: &impl Message) -> Result<(), outbox_core::InvalidMessage> {
///     let event = received(record)?;
///     match (event.event_type.as_deref(), event.payload) {
///         (Some("OrderPlaced.v1"), Some(payload)) => println!("{:?}: {payload:?}", event.key),
///         (_, None) => println!("{:?} is gone", event.key), // a tombstone
///         _ => {}
///     }
///     Ok(())
/// }
///
/// let headers = OwnedHeaders::new()
///     .insert(Header { key: "id", value: Some("0198c0de-0000-7000-8000-00000000000a") })
///     .insert(Header { key: "eventType", value: Some("OrderPlaced.v1") });
/// let record = OwnedMessage::new(
///     Some(b"{}".to_vec()),
///     Some(b"order-1".to_vec()),
///     "outbox.event.order".to_owned(),
///     Timestamp::NotAvailable,
///     0,
///     42,
///     Some(headers),
/// );
/// handle(&record)?;
/// # Ok::<(), outbox_core::InvalidMessage>(())
/// ```
///
/// # Errors
///
/// When the record carries no event: its header `id` is missing or none, or its type or key is not UTF-8.
///
/// # Panics
///
/// rdkafka panics at a `BorrowedMessage` with a header whose name is not UTF-8, which Kafka's clients do not write.
pub fn received(record: &impl Message) -> Result<ReceivedEvent, InvalidMessage> {
    let headers = record.headers().into_iter().flat_map(Headers::iter);
    let headers =
        headers.map(|header| (header.key.to_owned(), header.value.map(Bytes::copy_from_slice)));
    let payload = record.payload().map(Bytes::copy_from_slice);
    ReceivedEvent::new(headers, record.key(), payload).map_err(|error| {
        error.of(format_args!(
            "record {}[{}]@{}",
            record.topic(),
            record.partition(),
            record.offset()
        ))
    })
}

#[cfg(test)]
mod tests {
    use outbox_conformance::publisher::{Faults, every_event_is_received_as_it_was_sent};
    use rdkafka::message::{OwnedMessage, Timestamp};

    use super::*;
    use crate::wire;

    #[test]
    fn what_is_sent_is_received() {
        every_event_is_received_as_it_was_sent(&Faults::default(), "t", |message| {
            let sent = wire::record(message, 0, 0);
            let record = OwnedMessage::new(
                sent.payload.map(<[u8]>::to_vec),
                sent.key.map(<[u8]>::to_vec),
                sent.topic.to_owned(),
                Timestamp::NotAvailable,
                0,
                0,
                sent.headers,
            );
            Ok(received(&record))
        });
    }
}
