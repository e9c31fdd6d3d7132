//! Reading a delivery of a message that this publisher wrote.

use bytes::Bytes;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable};
use outbox_core::headers::{EVENT_TYPE, ID};
use outbox_core::{InvalidMessage, ReceivedEvent};

use crate::config::KEY_HEADER;

/// The event that a delivery carries, with its key in the header `aggregateId`.
///
/// ```no_run
/// # async fn consume(consumer: &mut lapin::Consumer) -> Result<(), Box<dyn std::error::Error>> {
/// use futures_util::StreamExt as _;
/// use lapin::options::BasicAckOptions;
/// use outbox_rabbitmq::received;
///
/// while let Some(delivery) = consumer.next().await {
///     let delivery = delivery?;
///     let event = received(&delivery)?;
///     // mark event.id in an inbox, and act
///     println!("{:?} of {:?}: {:?}", event.event_type, event.key, event.payload);
///     delivery.ack(BasicAckOptions::default()).await?;
/// }
/// # Ok(()) }
/// ```
///
/// The event's own headers are text. Headers of other types, which brokers and other programs add (`x-death`), are left out:
/// find them in the delivery. Headers are sorted by name.
///
/// # Errors
///
/// When the delivery carries no event: it has neither a header `id` nor a `message_id`, the id is none, or type or key is not
/// UTF-8.
pub fn received(delivery: &Delivery) -> Result<ReceivedEvent, InvalidMessage> {
    received_with_key_header(delivery, KEY_HEADER)
}

/// As [`received`], where the publisher has another
/// [`key_header`](crate::RabbitMqConfig::key_header) than `aggregateId`.
///
/// # Errors
///
/// Those of [`received`].
pub fn received_with_key_header(
    delivery: &Delivery,
    key_header: &str,
) -> Result<ReceivedEvent, InvalidMessage> {
    let properties = &delivery.properties;
    let table = properties.headers().iter().flat_map(FieldTable::inner);
    let mut headers: Vec<(String, Option<Bytes>)> = Vec::new();
    let mut key = None;
    for (name, value) in table {
        match text(value) {
            Some(value) if name.as_str() == key_header => key = Some(value),
            Some(value) => {
                headers.push((name.to_string(), Some(Bytes::copy_from_slice(value))));
            }
            None => {}
        }
    }
    // Behind the headers, which stand before them.
    for (name, value) in [(ID, properties.message_id()), (EVENT_TYPE, properties.kind())] {
        let value = value.as_ref().map(|value| Bytes::copy_from_slice(value.as_str().as_bytes()));
        headers.push((name.to_owned(), value));
    }
    let payload = Some(Bytes::copy_from_slice(&delivery.data));
    ReceivedEvent::new(headers, key, payload).map_err(|error| {
        error.of(format_args!(
            "delivery {} of exchange {:?} with routing key {:?}",
            delivery.delivery_tag,
            delivery.exchange.as_str(),
            delivery.routing_key.as_str()
        ))
    })
}

fn text(value: &AMQPValue) -> Option<&[u8]> {
    match value {
        AMQPValue::LongString(text) => Some(text.as_bytes()),
        AMQPValue::ShortString(text) => Some(text.as_str().as_bytes()),
        AMQPValue::ByteArray(bytes) => Some(bytes.as_slice()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use lapin::BasicProperties;
    use outbox_conformance::publisher::{Faults, every_event_is_received_as_it_was_sent};
    use outbox_core::EventId;

    use super::*;
    use crate::{RabbitMqConfig, wire};

    fn delivery(properties: BasicProperties, data: &[u8]) -> Delivery {
        let mut delivery = Delivery::mock(7, "e".into(), "k".into(), false, data.to_vec());
        delivery.properties = properties;
        delivery
    }

    #[test]
    fn what_is_sent_is_received() {
        let faults = Faults::default().without_repeated_headers().without_header_order();
        for key_header in [KEY_HEADER, "k"] {
            let mut config = RabbitMqConfig::new("amqp://localhost");
            config.key_header = key_header.to_owned();
            every_event_is_received_as_it_was_sent(&faults, "q", |message| {
                let sent = wire::envelope(message, &config)?;
                let body = message.payload().expect("what has no payload is refused");
                let delivery = delivery(sent.properties, body);
                Ok(received_with_key_header(&delivery, key_header))
            });
        }
    }

    #[test]
    fn id_and_type_of_other_publishers_may_be_properties() {
        let properties =
            BasicProperties::default().with_message_id("x".into()).with_type("T".into());
        let event = received(&delivery(properties, b"")).unwrap();
        assert_eq!(event.id, EventId::from_text("x").unwrap());
        assert_eq!(event.event_type.as_deref(), Some("T"));
        assert_eq!((event.key, event.payload), (None, Some(Bytes::new())));
    }

    #[test]
    fn headers_that_are_no_text_are_left_to_the_delivery() {
        let mut table = FieldTable::default();
        table.insert("id".into(), AMQPValue::LongString("x".into()));
        table.insert("x-death".into(), AMQPValue::FieldArray(lapin::types::FieldArray::default()));
        table.insert("b".into(), AMQPValue::LongString(vec![0xff].into()));
        let event =
            received(&delivery(BasicProperties::default().with_headers(table), b"")).unwrap();
        assert_eq!(event.headers, [("b".to_owned(), Some(Bytes::from_static(b"\xff")))]);
    }

    #[test]
    fn a_delivery_without_an_event_is_named() {
        let error = received(&delivery(BasicProperties::default(), b"")).unwrap_err().to_string();
        assert!(error.starts_with(r#"delivery 7 of exchange "e" with routing key "k""#), "{error}");
        assert!(error.contains("no header id"), "{error}");
    }
}
