//! What a message looks like on the wire.

use std::fmt::Write as _;

use aws_sdk_sqs::primitives::Blob;
use aws_sdk_sqs::types::{MessageAttributeValue, SendMessageBatchRequestEntry};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use outbox_core::headers::{EVENT_TYPE, ID};
use outbox_core::{Failure, FailureClass, Message};
use sha2::{Digest, Sha256};

use crate::config::{BodyEncoding, HeaderOverflow, SqsConfig};
use crate::queue::Queue;

pub(crate) const AGGREGATE_ID: &str = "aggregateId";
pub(crate) const ENCODING: &str = "outbox-encoding";
pub(crate) const HEADERS: &str = "outbox-headers";
/// Names that own headers cannot take for an attribute.
const TAKEN: [&str; 5] = [ID, EVENT_TYPE, AGGREGATE_ID, ENCODING, HEADERS];

const MAX_ATTRIBUTES: usize = 10;
const MAX_NAME_CHARS: usize = 256;
/// Characters of a group.
const MAX_GROUP_CHARS: usize = 128;
/// Characters of an event's id in a deduplication id, which has 128: `#` and the number of a replay may follow.
const MAX_ID_CHARS: usize = MAX_GROUP_CHARS - 11;
/// Begins what stands for a text that SQS does not allow.
const HASHED: &str = "sha256.";

/// A message as it goes into a request.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) entry: SendMessageBatchRequestEntry,
    /// What SQS counts: the body, and of each attribute name, type and value.
    pub(crate) bytes: usize,
}

/// The entry that carries `message` under this number; why it can never be sent, if its own data say so.
pub(crate) fn entry(
    message: &Message,
    number: usize,
    queue: &Queue,
    config: &SqsConfig,
) -> Result<Entry, Failure> {
    let written = write(message, number, queue, config).map_err(|defect| {
        Failure::new(FailureClass::Permanent, format!("queue {}: {defect}", message.destination()))
    })?;
    Ok(written)
}

fn write(
    message: &Message,
    number: usize,
    queue: &Queue,
    config: &SqsConfig,
) -> Result<Entry, String> {
    let mut attributes = Attributes::default();
    let mut id = [0; 36];
    let id = message.id().text(&mut id);
    attributes.add_text(ID, id)?;
    attributes.add_text(EVENT_TYPE, message.event_type())?;

    let key = message.event().aggregate_id();
    let group = queue.fifo.then(|| group(key.unwrap_or(id)));
    if let Some(key) = key.filter(|key| *key == id || group.as_deref() != Some(key)) {
        if allowed_text(key) || config.body == BodyEncoding::Text {
            attributes.add_text(AGGREGATE_ID, key)?;
        } else {
            attributes.add_bytes(AGGREGATE_ID, key.as_bytes())?;
        }
    }
    let body = body(message, config)?;
    if matches!(body, Body::Base64(_)) {
        attributes.add_text(ENCODING, "base64")?;
    }
    let (Body::Text(body) | Body::Base64(body)) = body;
    attributes.add_headers(message, config)?;

    let bytes = body.len() + attributes.bytes;
    let limit = queue.max_message_bytes.min(config.max_request_bytes);
    if bytes > limit {
        return Err(format!(
            "the message is too large: {bytes} bytes with its attributes, {limit} are allowed \
             (MaximumMessageSize of the queue, max_request_bytes)"
        ));
    }
    let entry = SendMessageBatchRequestEntry::builder()
        .id(number.to_string())
        .message_body(body)
        .set_message_attributes(Some(attributes.list.into_iter().collect()))
        .set_message_deduplication_id(queue.fifo.then(|| deduplication_id(id, message.replay())))
        .set_message_group_id(group);
    Ok(Entry { entry: entry.build().expect("id and body are given"), bytes })
}

enum Body {
    Text(String),
    Base64(String),
}

fn body(message: &Message, config: &SqsConfig) -> Result<Body, String> {
    let Some(payload) = message.payload() else {
        return Err("the event has no payload, and SQS no message without a body".to_owned());
    };
    if payload.is_empty() {
        return Err("the payload has zero bytes, and SQS has no empty body".to_owned());
    }
    let text = std::str::from_utf8(payload).ok().filter(|text| text.chars().all(is_allowed));
    match (config.body, text) {
        (BodyEncoding::Text | BodyEncoding::Base64IfRefused, Some(text)) => {
            Ok(Body::Text(text.to_owned()))
        }
        (BodyEncoding::Text, None) => {
            Err("the payload has bytes or characters that SQS refuses; see the setting body"
                .to_owned())
        }
        (BodyEncoding::Base64IfRefused | BodyEncoding::Base64, _) => {
            Ok(Body::Base64(BASE64_STANDARD.encode(payload)))
        }
    }
}

/// The group of a key, or of the id of an event that has none.
pub(crate) fn group(key: &str) -> String {
    token(key, MAX_GROUP_CHARS)
}

/// The event's id, so that a message sent again is taken once; each replay of it is another one.
fn deduplication_id(id: &str, replay: Option<u32>) -> String {
    // A `#` of its own would make one event's replay another event.
    let mut text = if id.contains('#') { hashed(id) } else { token(id, MAX_ID_CHARS) };
    if let Some(replay) = replay {
        let _ = write!(text, "#{replay}");
    }
    text
}

/// The text itself if SQS allows it as a group, else its hash.
fn token(text: &str, max: usize) -> String {
    let allowed = |byte: u8| byte.is_ascii_graphic();
    let plain = (1..=max).contains(&text.len()) && text.bytes().all(allowed);
    if plain && !text.starts_with(HASHED) { text.to_owned() } else { hashed(text) }
}

fn hashed(text: &str) -> String {
    let mut token = HASHED.to_owned();
    for byte in Sha256::digest(text) {
        let _ = write!(token, "{byte:02x}");
    }
    token
}

#[derive(Default)]
struct Attributes {
    list: Vec<(String, MessageAttributeValue)>,
    bytes: usize,
}

impl Attributes {
    fn add_text(&mut self, name: &str, value: &str) -> Result<(), String> {
        if !allowed_text(value) {
            return Err(format!(
                "{name} is empty or has characters that SQS refuses in an attribute: {value:?}"
            ));
        }
        let built = MessageAttributeValue::builder().data_type("String").string_value(value);
        self.add(name, "String", value.len(), built.build().expect("a data type is given"));
        Ok(())
    }

    fn add_bytes(&mut self, name: &str, value: &[u8]) -> Result<(), String> {
        if value.is_empty() {
            return Err(format!("{name} is empty, and SQS has no empty attribute"));
        }
        let built = MessageAttributeValue::builder().data_type("Binary");
        let built = built.binary_value(Blob::new(value)).build().expect("a data type is given");
        self.add(name, "Binary", value.len(), built);
        Ok(())
    }

    fn add(&mut self, name: &str, kind: &str, bytes: usize, value: MessageAttributeValue) {
        self.bytes += name.len() + kind.len() + bytes;
        self.list.push((name.to_owned(), value));
    }

    /// Own headers, each by the rule at [`HeaderOverflow`].
    fn add_headers(&mut self, message: &Message, config: &SqsConfig) -> Result<(), String> {
        let mut headers: Vec<(String, String)> = Vec::new();
        message.for_each_header(|name, value| headers.push((name.to_owned(), value.to_owned())));
        let room = MAX_ATTRIBUTES - self.list.len();
        let fits: Vec<bool> = (0..headers.len()).map(|at| has_attribute(&headers, at)).collect();
        let all_fit = headers.len() <= room && fits.iter().all(|fits| *fits);
        if all_fit {
            return headers.iter().try_for_each(|(name, value)| self.add_text(name, value));
        }
        if config.header_overflow == HeaderOverflow::Refuse {
            return Err(format!(
                "not all of the {} headers can be attributes: {room} have room, and only names and values \
                 that SQS allows; see the setting header_overflow",
                headers.len()
            ));
        }
        let (mut own, mut folded) = (0, String::new());
        for ((name, value), fits) in headers.iter().zip(fits) {
            if fits && own < room - 1 {
                own += 1;
                self.add_text(name, value)?;
            } else {
                let comma = if folded.is_empty() { '{' } else { ',' };
                let _ = write!(folded, "{comma}{}:{}", quoted(name), quoted(value));
            }
        }
        folded.push('}');
        self.add_text(HEADERS, &folded)
    }
}

/// Whether the header at this place can be an attribute, if there is room.
fn has_attribute(headers: &[(String, String)], at: usize) -> bool {
    let (name, value) = &headers[at];
    let first = headers[..at].iter().all(|(before, _)| before != name);
    first && allowed_name(name) && allowed_text(value)
}

fn allowed_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    let lower = name.to_ascii_lowercase();
    (1..=MAX_NAME_CHARS).contains(&name.len())
        && name.bytes().all(allowed)
        && !TAKEN.contains(&name)
        && !lower.starts_with("aws.")
        && !lower.starts_with("amazon.")
        && !name.starts_with('.')
        && !name.ends_with('.')
        && !name.contains("..")
}

fn allowed_text(text: &str) -> bool {
    !text.is_empty() && text.chars().all(is_allowed)
}

/// The characters of XML 1.0.
fn is_allowed(char: char) -> bool {
    matches!(char, '\t' | '\n' | '\r' | ' '..='\u{fffd}' | '\u{10000}'..)
}

/// A JSON string of allowed characters only.
fn quoted(text: &str) -> String {
    let json = serde_json::to_string(text).expect("a string is always valid JSON");
    json.replace('\u{fffe}', "\\ufffe").replace('\u{ffff}', "\\uffff")
}

#[cfg(test)]
pub(crate) mod tests {
    use outbox_core::{EventId, EventRow, EventRows};

    use super::*;

    /// An event's texts, with defaults that a test need not name.
    struct Row<'a> {
        id: &'a str,
        key: Option<&'a str>,
        payload: Option<&'a [u8]>,
        headers: Option<&'a str>,
    }

    impl Default for Row<'_> {
        fn default() -> Self {
            Self { id: "1", key: Some("a"), payload: Some(b"{}"), headers: None }
        }
    }

    impl Row<'_> {
        fn message(&self) -> Message {
            row("order", self, "q")
        }

        fn fifo(&self) -> SendMessageBatchRequestEntry {
            entry(&self.message(), 0, &queue(true), &SqsConfig::new()).unwrap().entry
        }
    }

    /// A message of this aggregate to this queue.
    pub(crate) fn event_message(kind: &str, key: Option<&str>, queue: &str) -> Message {
        row(kind, &Row { key, ..Row::default() }, queue)
    }

    fn row(kind: &str, row: &Row<'_>, queue: &str) -> Message {
        let mut rows = EventRows::default();
        let mut event = EventRow::new(1, 0, EventId::from_text(row.id).unwrap());
        event.aggregate_type = kind;
        event.aggregate_id = row.key;
        event.event_type = "Created";
        event.payload = row.payload;
        event.headers = row.headers;
        rows.push(&event);
        Message::new(rows.finish().pop().unwrap(), queue.into())
    }

    fn queue(fifo: bool) -> Queue {
        Queue { url: "u".to_owned(), fifo, max_message_bytes: 1 << 20 }
    }

    fn attribute(entry: &SendMessageBatchRequestEntry, name: &str) -> Option<String> {
        entry.message_attributes()?.get(name)?.string_value().map(ToOwned::to_owned)
    }

    fn defect(row: &Row<'_>, config: &SqsConfig) -> Option<Failure> {
        entry(&row.message(), 0, &queue(true), config).err()
    }

    /// B195, B202, H153
    #[test]
    fn group_is_the_key_and_deduplication_id_the_events() {
        let entry = Row::default().fifo();
        assert_eq!(entry.message_group_id(), Some("a"));
        assert_eq!(entry.message_deduplication_id(), Some("1"));
        assert_eq!(attribute(&entry, AGGREGATE_ID), None);
        let keyless = Row { key: None, ..Row::default() }.fifo();
        assert_eq!(keyless.message_group_id(), Some("1"));
        assert_eq!(attribute(&keyless, AGGREGATE_ID), None);
        let like_its_id = Row { key: Some("1"), ..Row::default() }.fifo();
        assert_eq!(attribute(&like_its_id, AGGREGATE_ID).as_deref(), Some("1"));
    }

    /// H055: else the queue would swallow a replay within five minutes.
    #[test]
    fn each_replay_has_a_deduplication_id_of_its_own() {
        let replay = |id, headers| {
            let entry = Row { id, headers: Some(headers), ..Row::default() }.fifo();
            entry.message_deduplication_id().unwrap().to_owned()
        };
        assert_eq!(replay("x", r#"{"outbox-replay":"2"}"#), "x#2");
        assert_ne!(replay("x#2", "{}"), "x#2");
        assert!(replay(&"x".repeat(255), r#"{"outbox-replay":"4294967295"}"#).len() <= 128);
    }

    /// H154
    #[test]
    fn a_key_that_can_be_no_group_is_hashed_and_sent_beside() {
        for key in ["ä", "a b", &"x".repeat(129), "sha256.x"] {
            let entry = Row { key: Some(key), ..Row::default() }.fifo();
            let group = entry.message_group_id().unwrap();
            assert!(group.len() == 71 && group.starts_with(HASHED), "{group}");
            assert_eq!(attribute(&entry, AGGREGATE_ID).as_deref(), Some(key));
        }
        // echo -n abc | sha256sum
        assert_eq!(
            hashed("abc"),
            "sha256.ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    /// B199, H154, H178
    #[test]
    fn what_sqs_refuses_is_refused_or_encoded() {
        let text = SqsConfig::new();
        let if_refused = SqsConfig::new().with_body(BodyEncoding::Base64IfRefused);
        let always = SqsConfig::new().with_body(BodyEncoding::Base64);
        let payloads: [&[u8]; 5] =
            [b"a\0", b"\x0b", "\u{fffe}".as_bytes(), b"\xed\xa0\x80", b"\xff\xfe"];
        for payload in payloads {
            let row = Row { payload: Some(payload), ..Row::default() };
            assert_eq!(defect(&row, &text).unwrap().class, FailureClass::Permanent);
            let entry = entry(&row.message(), 0, &queue(false), &if_refused).unwrap().entry;
            assert_eq!(BASE64_STANDARD.decode(entry.message_body()).unwrap(), payload);
            assert_eq!(attribute(&entry, ENCODING).as_deref(), Some("base64"));
        }
        let plain = Row { payload: Some("\t\r\n \u{7f}\u{1f980}".as_bytes()), ..Row::default() };
        let sent = |config| entry(&plain.message(), 0, &queue(false), config).unwrap().entry;
        assert_eq!(sent(&text).message_body().as_bytes(), plain.payload.unwrap());
        assert_eq!(attribute(&sent(&if_refused), ENCODING), None);
        assert_eq!(attribute(&sent(&always), ENCODING).as_deref(), Some("base64"));
        for payload in [None, Some(&b""[..])] {
            let row = Row { payload, ..Row::default() };
            assert_eq!(defect(&row, &always).unwrap().class, FailureClass::Permanent);
        }
    }

    /// H181, B255
    #[test]
    fn headers_become_attributes_while_sqs_has_room_for_them() {
        let headers =
            r#"{"b":"1","AWS.x":"2","b":"3","empty":"","a..b":"4","zero":"\u0000","n":7}"#;
        let entry = Row { headers: Some(headers), ..Row::default() }.fifo();
        assert_eq!(attribute(&entry, "b").as_deref(), Some("1"));
        assert_eq!(attribute(&entry, "n").as_deref(), Some("7"));
        assert_eq!(
            attribute(&entry, HEADERS).as_deref(),
            Some(r#"{"AWS.x":"2","b":"3","empty":"","a..b":"4","zero":"\u0000"}"#)
        );
        let refuse = SqsConfig::new().with_header_overflow(HeaderOverflow::Refuse);
        let row = Row { headers: Some(headers), ..Row::default() };
        assert_eq!(defect(&row, &refuse).unwrap().class, FailureClass::Permanent);
    }

    /// H154
    #[test]
    fn there_are_never_more_than_ten_attributes() {
        for count in [0, 7, 8, 9, 60] {
            let pairs: Vec<String> = (0..count).map(|n| format!(r#""h{n:02}":"v""#)).collect();
            let headers = format!("{{{}}}", pairs.join(","));
            let row = Row { key: Some("ä"), headers: Some(&headers), ..Row::default() };
            let attributes = row.fifo().message_attributes.unwrap();
            let expected = (count + 3).min(10);
            assert_eq!(attributes.len(), expected, "{count} headers");
            assert_eq!(attributes.contains_key(HEADERS), count > 7, "{count} headers");
        }
    }

    /// B206, H154: attributes count, with their names and types.
    #[test]
    fn too_large_a_message_is_refused_by_its_size_with_attributes() {
        // id String 1, eventType String Created
        let attributes = 2 + 6 + 1 + 9 + 6 + 7;
        let small = Queue { max_message_bytes: 1_024, ..queue(true) };
        let fits = vec![b'x'; 1_024 - attributes];
        let row = |payload| Row { payload: Some(payload), ..Row::default() }.message();
        let sent = entry(&row(&fits), 0, &small, &SqsConfig::new()).unwrap();
        assert_eq!(sent.bytes, 1_024);
        let failure =
            entry(&row(&[&fits[..], b"x"].concat()), 0, &small, &SqsConfig::new()).unwrap_err();
        assert_eq!(failure.class, FailureClass::Permanent);
        assert!(failure.reason.contains("MaximumMessageSize"), "{}", failure.reason);
    }

    #[test]
    fn a_text_that_no_attribute_can_have_is_refused_with_its_name() {
        let row = Row { key: Some("a\u{1}b"), ..Row::default() };
        let failure = defect(&row, &SqsConfig::new()).unwrap();
        assert!(failure.reason.contains(AGGREGATE_ID), "{}", failure.reason);
        let encoded = SqsConfig::new().with_body(BodyEncoding::Base64IfRefused);
        let entry = entry(&row.message(), 0, &queue(true), &encoded).unwrap().entry;
        let attributes = entry.message_attributes.unwrap();
        let value = attributes[AGGREGATE_ID].binary_value().unwrap();
        assert_eq!(value.as_ref(), b"a\x01b");
    }
}
