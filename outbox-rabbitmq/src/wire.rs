//! What a message looks like on the wire.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use outbox_core::{Failure, FailureClass, Message};

use crate::config::{RabbitMqConfig, Routing, RoutingKey};

/// A short string of AMQP: names, keys, properties.
const MAX_SHORT_BYTES: usize = 255;

/// The headers travel in one frame, of at most 131,072 bytes (`frame_max`) with the other properties.
const MAX_HEADER_BYTES: usize = 120_000;

/// `delivery_mode`: the message is written to disk where its queue is durable.
const PERSISTENT: u8 = 2;

/// Where a message goes, and what it carries beside its body.
#[derive(Debug)]
pub(crate) struct Envelope {
    pub(crate) exchange: ShortString,
    pub(crate) routing_key: ShortString,
    pub(crate) properties: BasicProperties,
}

/// The envelope of `message`, or why it can never be sent.
pub(crate) fn envelope(message: &Message, config: &RabbitMqConfig) -> Result<Envelope, Failure> {
    defect(message, config).map_or(Ok(()), Err)?;
    let key = match &config.routing {
        Routing::ExchangePerDestination { key } | Routing::OneExchange { key, .. } => *key,
        Routing::Queue => RoutingKey::Destination,
    };
    let routing_key = match key {
        RoutingKey::Destination => message.destination(),
        RoutingKey::EventType => message.event_type(),
        RoutingKey::AggregateId => message.event().aggregate_id().unwrap_or_default(),
    };
    Ok(Envelope {
        exchange: short("the exchange's name", exchange(message, &config.routing))?,
        routing_key: short("the routing key", routing_key)?,
        properties: properties(message, config)?,
    })
}

/// The exchange of `message`; an empty one is the default exchange.
pub(crate) fn exchange<'a>(message: &'a Message, routing: &'a Routing) -> &'a str {
    match routing {
        Routing::ExchangePerDestination { .. } => message.destination(),
        Routing::OneExchange { exchange, .. } => exchange,
        Routing::Queue => "",
    }
}

fn properties(message: &Message, config: &RabbitMqConfig) -> Result<BasicProperties, Failure> {
    let mut id = [0; 36];
    let id = message.id().text(&mut id);
    let mut headers = Headers::default();
    headers.add("id", id)?;
    headers.add("eventType", message.event_type())?;
    if let Some(key) = message.event().aggregate_id() {
        headers.add(&config.key_header, key)?;
    }
    let mut properties = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_message_id(short("the event's id", id)?)
        .with_type(short("the event's type", message.event_type())?)
        .with_timestamp(message.created_at_micros().div_euclid(1_000_000).unsigned_abs());
    let mut added = Ok(());
    message.for_each_header(|name, value| {
        if added.is_ok() {
            added = headers.add_own(name, value, &config.key_header);
        }
        // A longer value is in the headers only.
        match (name, ShortString::try_new(value)) {
            ("content-type", Ok(value)) => properties = properties.clone().with_content_type(value),
            (outbox_core::headers::CORRELATION_ID, Ok(value)) => {
                properties = properties.clone().with_correlation_id(value);
            }
            _ => {}
        }
    });
    added?;
    Ok(properties.with_headers(headers.table))
}

#[derive(Default)]
struct Headers {
    table: FieldTable,
    bytes: usize,
}

impl Headers {
    /// A header of the event's own.
    fn add_own(&mut self, name: &str, value: &str, key_header: &str) -> Result<(), Failure> {
        match self.table.inner().get(name) {
            // Readers would take it for the key.
            None if name == key_header => Err(permanent(format!(
                "the event has a header {name} and no aggregate id; choose another name by the setting key_header"
            ))),
            None => self.add(name, value),
            Some(AMQPValue::LongString(known)) if known.as_bytes() == value.as_bytes() => Ok(()),
            Some(_) if name == key_header => Err(permanent(format!(
                "the event's header {name} is not its aggregate id; choose another name by the setting key_header"
            ))),
            Some(_) => Err(permanent(format!(
                "the event's header {name} comes twice with different values, which rabbitmq has no place for"
            ))),
        }
    }

    fn add(&mut self, name: &str, value: &str) -> Result<(), Failure> {
        self.bytes += name.len() + value.len() + 6;
        if self.bytes > MAX_HEADER_BYTES {
            return Err(permanent(format!(
                "the event's headers have more than {MAX_HEADER_BYTES} bytes, which do not fit into one frame"
            )));
        }
        self.table.insert(
            short("a header's name", name)?,
            AMQPValue::LongString(LongString::from(value)),
        );
        Ok(())
    }
}

/// Why `message` can never be sent, if its own data say so.
fn defect(message: &Message, config: &RabbitMqConfig) -> Option<Failure> {
    let Some(payload) = message.payload() else {
        return Some(permanent(
            "the event has no payload: rabbitmq cannot tell that from an empty one".to_owned(),
        ));
    };
    if payload.len() > config.max_message_bytes {
        return Some(permanent(format!(
            "the payload has {} bytes, the setting max_message_bytes allows {}",
            payload.len(),
            config.max_message_bytes
        )));
    }
    if message.created_at_micros() < 0 {
        return Some(permanent(
            "the event's created_at lies before 1970, which amqp has no timestamp for".to_owned(),
        ));
    }
    if message.destination().is_empty() {
        return Some(permanent("the destination's name is empty".to_owned()));
    }
    None
}

fn short(what: &str, text: &str) -> Result<ShortString, Failure> {
    ShortString::try_new(text).map_err(|_| {
        permanent(format!("{what} has {} bytes, amqp allows {MAX_SHORT_BYTES}", text.len()))
    })
}

fn permanent(reason: String) -> Failure {
    Failure::new(FailureClass::Permanent, reason)
}

#[cfg(test)]
pub(crate) mod tests {
    use outbox_core::{EventId, EventRow, EventRows};

    use super::*;

    fn row<'a>() -> EventRow<'a> {
        let mut row = EventRow::new(1, 0, EventId::generate());
        row.aggregate_type = "order";
        row.aggregate_id = Some("7");
        row.event_type = "Created.v1";
        row.payload = Some(b"{}");
        row.created_at_micros = 1_700_000_000_999_999;
        row
    }

    fn message_of(row: &EventRow<'_>, destination: &str) -> Message {
        let mut rows = EventRows::default();
        rows.push(row);
        Message::new(rows.finish().pop().unwrap(), destination.into())
    }

    /// Any message.
    pub(crate) fn message() -> Message {
        message_of(&row(), "orders")
    }

    fn config() -> RabbitMqConfig {
        RabbitMqConfig::new("amqp://localhost")
    }

    fn changed<'a>(change: impl FnOnce(&mut EventRow<'a>)) -> EventRow<'a> {
        let mut row = row();
        change(&mut row);
        row
    }

    fn refused<'a>(change: impl FnOnce(&mut EventRow<'a>)) -> String {
        let message = message_of(&changed(change), "orders");
        let failure = envelope(&message, &config()).unwrap_err();
        assert_eq!(failure.class, FailureClass::Permanent);
        failure.reason.to_string()
    }

    #[test]
    fn the_properties_say_what_the_event_is() {
        let headers = r#"{"content-type":"application/json","correlationId":"c","a":1}"#;
        let row = changed(|row| row.headers = Some(headers));
        let envelope = envelope(&message_of(&row, "orders"), &config()).unwrap();
        let properties = envelope.properties;
        let text = |value: &Option<ShortString>| value.as_ref().unwrap().to_string();
        assert_eq!(text(properties.message_id()), row.id.to_string());
        assert_eq!(text(properties.kind()), "Created.v1");
        assert_eq!(text(properties.content_type()), "application/json");
        assert_eq!(text(properties.correlation_id()), "c");
        assert_eq!(*properties.delivery_mode(), Some(2));
        assert_eq!(*properties.timestamp(), Some(1_700_000_000));
        let table = properties.headers().as_ref().unwrap().inner();
        let names: Vec<&str> = table.keys().map(ShortString::as_str).collect();
        assert_eq!(names, ["a", "aggregateId", "content-type", "correlationId", "eventType", "id"]);
        assert_eq!(table["a"], AMQPValue::LongString("1".into()));
    }

    #[test]
    fn exchange_and_routing_key_come_from_the_destination() {
        let message = message();
        let to = |routing: Routing| {
            let envelope = envelope(&message, &config().with_routing(routing)).unwrap();
            (envelope.exchange.to_string(), envelope.routing_key.to_string())
        };
        let pair = |exchange: &str, key: &str| (exchange.to_owned(), key.to_owned());
        assert_eq!(to(Routing::default()), pair("orders", "Created.v1"));
        let key = RoutingKey::AggregateId;
        assert_eq!(to(Routing::ExchangePerDestination { key }), pair("orders", "7"));
        assert_eq!(to(Routing::one_exchange("events")), pair("events", "orders"));
        assert_eq!(to(Routing::Queue), pair("", "orders"));
    }

    /// H147
    #[test]
    fn what_amqp_has_no_place_for_is_refused_for_good() {
        let long = "x".repeat(256);
        assert!(refused(|row| row.payload = None).contains("no payload"));
        assert!(refused(|row| row.created_at_micros = -1).contains("1970"));
        assert!(refused(|row| row.event_type = &long).contains("256 bytes"));
        let name = format!(r#"{{"{long}":"x"}}"#);
        assert!(refused(|row| row.headers = Some(&name)).contains("a header's name"));
        let large = format!(r#"{{"a":"{}"}}"#, "x".repeat(MAX_HEADER_BYTES));
        assert!(refused(|row| row.headers = Some(&large)).contains("one frame"));
        let destination = envelope(&message_of(&row(), &long), &config()).unwrap_err();
        assert!(destination.reason.contains("exchange"), "{}", destination.reason);
    }

    /// B255
    #[test]
    fn a_header_name_is_carried_once() {
        assert!(refused(|row| row.headers = Some(r#"{"a":"1","a":"2"}"#)).contains("twice"));
        let collides = r#"{"aggregateId":"8"}"#;
        assert!(refused(|row| row.headers = Some(collides)).contains("key_header"));
        let alone = refused(|row| {
            row.aggregate_id = None;
            row.headers = Some(collides);
        });
        assert!(alone.contains("key_header"), "{alone}");
        let agrees = changed(|row| row.headers = Some(r#"{"aggregateId":"7"}"#));
        assert!(envelope(&message_of(&agrees, "orders"), &config()).is_ok());
    }
}
