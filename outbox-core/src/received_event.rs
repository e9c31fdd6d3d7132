//! An event as a consumer receives it.

use std::fmt;

use bytes::Bytes;

use crate::headers::{EVENT_TYPE, ID, SEQUENCE};
use crate::{EventId, Message};

/// An event, read out of a message.
///
/// The crate of each publisher has a function `received` that reads the messages of its broker, whether a publisher of
/// this project wrote them or, on Kafka, Debezium's `EventRouter`. Mark [`id`](Self::id) in an [`Inbox`](crate::Inbox) to
/// act once.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceivedEvent {
    /// The event's identity: two messages with the same one are the same event.
    pub id: EventId,
    /// The event's type. `None` comes from Debezium only, which writes it if it is told to
    /// (`table.fields.additional.placement=type:header:eventType`).
    pub event_type: Option<String>,
    /// The aggregate that the event is about; `None` is an unordered event.
    pub key: Option<String>,
    /// All other headers. Those of the event are text; what others have added may be any bytes, or null.
    pub headers: Vec<(String, Option<Bytes>)>,
    /// The payload; `None` is a tombstone, which is not the same as a payload of zero bytes.
    pub payload: Option<Bytes>,
}

impl ReceivedEvent {
    /// For adapters: the event with these parts, whose id and type are the first headers `id` and `eventType`.
    ///
    /// Names that come twice are kept, except for these two.
    ///
    /// # Errors
    ///
    /// When the id is missing or can be none, or type or key are no text.
    pub fn new(
        headers: impl IntoIterator<Item = (String, Option<Bytes>)>,
        key: Option<&[u8]>,
        payload: Option<Bytes>,
    ) -> Result<Self, InvalidMessage> {
        let (mut id, mut event_type, mut own) = (None, None, Vec::new());
        for (name, value) in headers {
            match name.as_str() {
                ID => id = id.or(value),
                EVENT_TYPE => event_type = event_type.or(value),
                _ => own.push((name, value)),
            }
        }
        let id = id.ok_or_else(|| InvalidMessage::new(NO_ID))?;
        let id = EventId::from_text(text("its header id", &id)?)
            .map_err(|error| InvalidMessage::new(format!("its header id is none: {error}")))?;
        let event_type =
            event_type.map(|value| text("its header eventType", &value).map(Into::into));
        Ok(Self {
            id,
            event_type: event_type.transpose()?,
            key: key.map(|key| text("its key", key).map(Into::into)).transpose()?,
            headers: own,
            payload,
        })
    }

    /// The first header of this name, if it is there and is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(header, _)| header == name)?;
        std::str::from_utf8(value.as_deref()?).ok()
    }

    /// The number of the event in its aggregate, where its writer numbers events; for the `arrival` of an inbox.
    #[must_use]
    pub fn sequence(&self) -> Option<u64> {
        self.header(SEQUENCE)?.parse().ok()
    }
}

const NO_ID: &str = "it has no header id, which the publishers of this project and Debezium's EventRouter write: \
                     another program has sent it";

fn text<'a>(what: &str, bytes: &'a [u8]) -> Result<&'a str, InvalidMessage> {
    std::str::from_utf8(bytes).map_err(|_| {
        InvalidMessage::new(format!("{what} is not UTF-8: another program has sent it"))
    })
}

/// The event as it arrives from a broker that changes nothing, for tests of consumers with
/// [`MemoryPublisher`](crate::memory::MemoryPublisher).
impl From<&Message> for ReceivedEvent {
    fn from(message: &Message) -> Self {
        let mut headers = Vec::new();
        message.for_each_header(|name, value| {
            headers.push((name.to_owned(), Some(Bytes::copy_from_slice(value.as_bytes()))));
        });
        Self {
            id: message.id().clone(),
            event_type: Some(message.event_type().to_owned()),
            key: message.event().aggregate_id().map(ToOwned::to_owned),
            headers,
            payload: message.payload().map(Bytes::copy_from_slice),
        }
    }
}

/// Without headers and payload, which do not belong in logs.
impl fmt::Debug for ReceivedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceivedEvent")
            .field("id", &self.id)
            .field("event_type", &self.event_type)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

/// A message that carries no event. Says which message, what it lacks, and who writes that; without its payload.
///
/// Trying again cannot help: put the message aside.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InvalidMessage {
    message: String,
}

impl InvalidMessage {
    /// For adapters: what is wrong with the message.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }

    /// For adapters: the same, with the name of the message.
    #[must_use]
    pub fn of(self, message: impl fmt::Display) -> Self {
        Self { message: format!("{message} cannot be read: {}", self.message) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::event;

    type Headers = Vec<(String, Option<Bytes>)>;

    fn headers(pairs: &[(&str, &'static [u8])]) -> Headers {
        let pair = |(name, value): &(&str, &'static [u8])| {
            ((*name).to_owned(), Some(Bytes::from_static(value)))
        };
        pairs.iter().map(pair).collect()
    }

    fn refused(headers: Headers, key: Option<&[u8]>) -> String {
        ReceivedEvent::new(headers, key, None).unwrap_err().of("record t[0]@7").to_string()
    }

    #[test]
    fn id_and_type_are_the_first_of_their_names_and_the_others_stay() {
        let all = headers(&[
            ("b", b"1"),
            ("id", b"x"),
            ("eventType", b"Created"),
            ("id", b"y"),
            ("b", b"\xff"),
            ("eventType", b"z"),
        ]);
        let event = ReceivedEvent::new(all, Some(b""), None).unwrap();
        assert_eq!(event.id, EventId::from_text("x").unwrap());
        assert_eq!(event.event_type.as_deref(), Some("Created"));
        assert_eq!(event.key.as_deref(), Some(""));
        assert_eq!(event.headers, headers(&[("b", b"1"), ("b", b"\xff")]));
        assert_eq!((event.header("b"), event.header("c")), (Some("1"), None));
    }

    #[test]
    fn an_event_has_the_number_that_its_header_says() {
        for (header, number) in [(&b"7"[..], Some(7)), (b"x", None), (b"-1", None), (b"", None)] {
            let all = headers(&[("id", b"x"), ("outbox-sequence", header)]);
            assert_eq!(ReceivedEvent::new(all, None, None).unwrap().sequence(), number);
        }
        assert_eq!(
            ReceivedEvent::new(headers(&[("id", b"x")]), None, None).unwrap().sequence(),
            None
        );
    }

    #[test]
    fn a_message_without_an_event_is_named_with_what_it_lacks() {
        let no_id = refused(headers(&[("eventType", b"x")]), None);
        assert!(no_id.starts_with("record t[0]@7 cannot be read: it has no header id"), "{no_id}");
        assert_eq!(refused(vec![("id".to_owned(), None)], None), no_id, "null is no id either");
        let empty = refused(headers(&[("id", b"")]), None);
        assert!(empty.contains("1 to 255 bytes"), "{empty}");
        for (pairs, key, what) in [
            (&[("id", &b"\xff"[..])][..], None, "its header id is not UTF-8"),
            (&[("id", b"x"), ("eventType", b"\xff")], None, "its header eventType is not UTF-8"),
            (&[("id", b"x")], Some(&b"\xff"[..]), "its key is not UTF-8"),
        ] {
            let text = refused(headers(pairs), key);
            assert!(text.contains(what), "{text}");
        }
    }

    #[test]
    fn a_message_in_memory_is_received_as_it_was_sent() {
        let message = Message::new(event(1), "t".into());
        let received = ReceivedEvent::from(&message);
        assert_eq!(received.id, *message.id());
        assert_eq!(received.event_type.as_deref(), Some("Created"));
        assert_eq!(received.key.as_deref(), Some("a"));
        assert_eq!(received.payload.as_deref(), Some(&b"{}"[..]));
        assert!(!format!("{received:?}").contains("{}"), "{received:?}");
    }
}
