//! What a message looks like on the wire.

use outbox_core::{Failure, FailureClass, Message};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::BaseRecord;

/// The longest name of a topic, in bytes.
const MAX_TOPIC_BYTES: usize = 249;

/// How far an event's time may lie ahead of this machine's clock, in milliseconds. Brokers refuse messages from more
/// than an hour ahead (`message.timestamp.after.max.ms`); clocks differ by less than a minute.
const MAX_AHEAD_MS: i64 = 60_000;

/// The record that carries `message`; `now_ms` is this machine's time in milliseconds since 1970.
///
/// The record's time is the event's. An event from the future is given the time of sending: the clock of a database must
/// not make all its events undeliverable. So is one from the first millisecond of 1970: librdkafka has no way to say 0.
pub(crate) fn record<'a>(
    message: &'a Message,
    opaque: usize,
    now_ms: i64,
) -> BaseRecord<'a, [u8], [u8], usize> {
    let created_ms = message.created_at_micros().div_euclid(1000);
    BaseRecord {
        topic: message.destination(),
        partition: None,
        payload: message.payload(),
        key: message.key(),
        timestamp: (created_ms <= now_ms + MAX_AHEAD_MS).then_some(created_ms),
        headers: Some(headers(message)),
        delivery_opaque: opaque,
    }
}

fn headers(message: &Message) -> OwnedHeaders {
    let mut id = [0; 36];
    let id = message.id().text(&mut id);
    let own = OwnedHeaders::new_with_capacity(4)
        .insert(Header { key: "id", value: Some(id) })
        .insert(Header { key: "eventType", value: Some(message.event_type()) });
    let mut headers = Some(own);
    message.for_each_header(|name, value| {
        let header = Header { key: name, value: Some(value) };
        headers = headers.take().map(|headers| headers.insert(header));
    });
    headers.expect("each header gives the list back")
}

/// Why `message` can never be sent, if its own data say so.
pub(crate) fn defect(message: &Message) -> Option<Failure> {
    let reason = topic_defect(message.destination()).or_else(|| {
        (message.created_at_micros() < 0).then(|| {
            "the event's created_at lies before 1970, which kafka refuses as a timestamp".to_owned()
        })
    });
    reason.map(|reason| Failure::new(FailureClass::Permanent, reason))
}

/// Why no topic can have this name.
///
/// Kafka's rule: 1 to 249 of `a-z A-Z 0-9 . _ -`, and neither `.` nor `..`. Names are used as given.
fn topic_defect(topic: &str) -> Option<String> {
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    if topic.is_empty() {
        Some("the topic's name is empty".to_owned())
    } else if topic.len() > MAX_TOPIC_BYTES {
        Some(format!("the topic's name has {} bytes, kafka allows {MAX_TOPIC_BYTES}", topic.len()))
    } else if topic == "." || topic == ".." || !topic.as_bytes().iter().all(allowed) {
        Some(format!("kafka allows no topic of the name {topic:?}: use a-z A-Z 0-9 . _ -"))
    } else {
        None
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use outbox_core::{EventId, EventRow, EventRows};

    use super::*;

    /// A message to this topic.
    pub(crate) fn message(topic: &str) -> Message {
        event_message("order", Some("1"), topic)
    }

    /// A message of this aggregate to this topic.
    pub(crate) fn event_message(kind: &str, id: Option<&str>, topic: &str) -> Message {
        message_at(kind, id, topic, 1_000_000_000_000_000)
    }

    fn message_at(kind: &str, id: Option<&str>, topic: &str, created_at_micros: i64) -> Message {
        let mut rows = EventRows::default();
        let mut row = EventRow::new(1, 0, EventId::generate());
        row.aggregate_type = kind;
        row.aggregate_id = id;
        row.event_type = "Created";
        row.payload = Some(b"{}");
        row.created_at_micros = created_at_micros;
        rows.push(&row);
        Message::new(rows.finish().pop().unwrap(), topic.into())
    }

    /// H136
    #[test]
    fn the_timestamp_is_the_events_unless_it_lies_ahead() {
        let now_ms = 1_700_000_000_000;
        let stamp = |created_ms: i64| {
            let message = message_at("order", None, "t", created_ms * 1000 + 999);
            record(&message, 0, now_ms).timestamp
        };
        assert_eq!(stamp(1), Some(1));
        assert_eq!(stamp(now_ms), Some(now_ms));
        assert_eq!(stamp(now_ms + MAX_AHEAD_MS), Some(now_ms + MAX_AHEAD_MS));
        assert_eq!(stamp(now_ms + MAX_AHEAD_MS + 1), None);
    }

    /// H136
    #[test]
    fn an_event_from_before_1970_can_never_be_sent() {
        let defect = |micros| defect(&message_at("order", None, "t", micros));
        assert_eq!(defect(0), None);
        assert_eq!(defect(-1).unwrap().class, FailureClass::Permanent);
    }

    /// B170, H140
    #[test]
    fn a_topic_has_1_to_249_of_the_allowed_characters() {
        for name in ["Orders.V1", "a", "-", "_.x", &"x".repeat(249)] {
            assert_eq!(defect(&message(name)), None, "{name}");
        }
        for name in ["", ".", "..", "a b", "ä", "a/b", "a\0b", "a\n", &"x".repeat(250)] {
            assert_eq!(defect(&message(name)).unwrap().class, FailureClass::Permanent, "{name}");
        }
    }
}
