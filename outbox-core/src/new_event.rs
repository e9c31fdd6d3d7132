//! An event as an application writes it.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::Serialize;

use crate::EventId;
use crate::headers::{CORRELATION_ID, REPLAY, RESERVED, SEQUENCE, TRACEPARENT};

/// The longest aggregate type, aggregate id and event type in bytes.
pub const MAX_NAME_BYTES: usize = 255;

/// The longest header name in bytes.
pub const MAX_HEADER_NAME_BYTES: usize = 255;

/// All headers of one event together, in bytes of their JSON text.
pub const MAX_HEADERS_BYTES: usize = 64 * 1024;

/// The largest payload in bytes. Brokers take less: Kafka 1 MB by default, SQS 1 MiB.
pub const MAX_PAYLOAD_BYTES: usize = 64 * 1024 * 1024;

/// An event that is ready to be appended: every limit is checked, so that nothing is cut or refused later.
///
/// ```
/// use outbox_core::NewEvent;
/// # #[derive(serde::Serialize)] struct OrderCreated { total: u32 }
/// let event = NewEvent::builder("order", "order-1", "OrderCreated.v1")
///     .json(&OrderCreated { total: 1250 })
///     .header("tenant", "acme")
///     .build()?;
/// assert_eq!(event.payload(), Some(&br#"{"total":1250}"#[..]));
/// # Ok::<(), outbox_core::InvalidEvent>(())
/// ```
#[derive(Clone, Debug)]
pub struct NewEvent {
    id: EventId,
    aggregate_type: String,
    aggregate_id: Option<String>,
    event_type: String,
    payload: Option<Bytes>,
    headers: Option<String>,
    due: Option<Due>,
}

/// When an event may be published at the earliest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// This long after it was written, by the database's clock.
    After(Duration),
    /// At this time, by the database's clock.
    At(SystemTime),
}

impl NewEvent {
    /// Starts an event of `event_type` about the aggregate (`aggregate_type`, `aggregate_id`).
    ///
    /// Without a payload it is a tombstone.
    pub fn builder(
        aggregate_type: impl Into<String>,
        aggregate_id: impl Into<String>,
        event_type: impl Into<String>,
    ) -> NewEventBuilder {
        NewEventBuilder {
            id: None,
            aggregate_type: aggregate_type.into(),
            aggregate_id: Some(aggregate_id.into()),
            event_type: event_type.into(),
            payload: Ok(None),
            headers: Vec::new(),
            due: None,
        }
    }

    /// An event about `aggregate_id` whose payload is `payload` as JSON.
    ///
    /// # Errors
    ///
    /// See [`NewEventBuilder::build`].
    pub fn json(
        aggregate_type: impl Into<String>,
        aggregate_id: impl Into<String>,
        event_type: impl Into<String>,
        payload: &impl Serialize,
    ) -> Result<Self, InvalidEvent> {
        Self::builder(aggregate_type, aggregate_id, event_type).json(payload).build()
    }

    /// The event's identity.
    #[must_use]
    pub fn id(&self) -> &EventId {
        &self.id
    }

    /// What kind of aggregate the event is about.
    #[must_use]
    pub fn aggregate_type(&self) -> &str {
        &self.aggregate_type
    }

    /// The aggregate that the event is about; `None` is an unordered event.
    #[must_use]
    pub fn aggregate_id(&self) -> Option<&str> {
        self.aggregate_id.as_deref()
    }

    /// The event's type.
    #[must_use]
    pub fn event_type(&self) -> &str {
        &self.event_type
    }

    /// The payload; `None` is a tombstone.
    #[must_use]
    pub fn payload(&self) -> Option<&[u8]> {
        self.payload.as_deref()
    }

    /// The headers as one flat JSON object.
    #[must_use]
    pub fn headers(&self) -> Option<&str> {
        self.headers.as_deref()
    }

    /// When the event may be published at the earliest; `None` is at once.
    #[must_use]
    pub fn due(&self) -> Option<Due> {
        self.due
    }
}

/// Collects the parts of a [`NewEvent`].
#[derive(Debug)]
#[must_use]
pub struct NewEventBuilder {
    id: Option<EventId>,
    aggregate_type: String,
    aggregate_id: Option<String>,
    event_type: String,
    payload: Result<Option<Bytes>, serde_json::Error>,
    headers: Vec<(String, String)>,
    due: Option<Due>,
}

impl NewEventBuilder {
    /// The payload: bytes that pass through untouched.
    pub fn payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.payload = Ok(Some(payload.into()));
        self
    }

    /// The payload as JSON of `value`.
    pub fn json(mut self, value: &impl Serialize) -> Self {
        self.payload = serde_json::to_vec(value).map(|json| Some(json.into()));
        self
    }

    /// An identity of the application's own, to append idempotently or to name the event elsewhere.
    pub fn id(mut self, id: EventId) -> Self {
        self.id = Some(id);
        self
    }

    /// Adds a header; a name may come more than once.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The id that ties the event to the request that caused it; travels as header `correlationId`. With the feature
    /// `opentelemetry` the baggage's `correlationId` is taken by itself.
    pub fn correlation_id(self, correlation_id: impl Into<String>) -> Self {
        self.header(CORRELATION_ID, correlation_id)
    }

    /// The W3C trace context; with the feature `opentelemetry` the current span's is taken by itself.
    pub fn traceparent(self, traceparent: impl Into<String>) -> Self {
        self.header(TRACEPARENT, traceparent)
    }

    /// Publishes the event at this time at the earliest. It holds no other event of its aggregate.
    pub fn due(mut self, due: Due) -> Self {
        self.due = Some(due);
        self
    }

    /// Makes the event unordered: it has no aggregate id and no message key.
    pub fn unordered(mut self) -> Self {
        self.aggregate_id = None;
        self
    }

    /// Checks every limit.
    ///
    /// # Errors
    ///
    /// When a name is empty (an aggregate id may be empty), longer than [`MAX_NAME_BYTES`] or holds a NUL; when a
    /// header's name is empty, too long, reserved or one of the pair holds a NUL; when headers or payload are too
    /// large; when the payload could not be written as JSON.
    pub fn build(mut self) -> Result<NewEvent, InvalidEvent> {
        self.capture_trace();
        check_name("aggregate type", &self.aggregate_type, 1)?;
        check_name("event type", &self.event_type, 1)?;
        if let Some(aggregate_id) = &self.aggregate_id {
            check_name("aggregate id", aggregate_id, 0)?;
        }
        let headers = headers_json(&self.headers)?;
        let payload = self.payload.map_err(|source| {
            InvalidEvent::with_source("payload", "cannot be written as JSON".to_owned(), source)
        })?;
        if let Some(payload) = &payload
            && payload.len() > MAX_PAYLOAD_BYTES
        {
            let reason = format!("has {} bytes, {MAX_PAYLOAD_BYTES} are allowed", payload.len());
            return Err(InvalidEvent::new("payload", reason));
        }
        Ok(NewEvent {
            id: self.id.unwrap_or_else(EventId::generate),
            aggregate_type: self.aggregate_type,
            aggregate_id: self.aggregate_id,
            event_type: self.event_type,
            payload,
            headers,
            due: self.due,
        })
    }

    #[cfg(feature = "opentelemetry")]
    fn capture_trace(&mut self) {
        let mut capture = |name: &str, current: fn() -> Option<String>| {
            if !self.headers.iter().any(|(header, _)| header == name)
                && let Some(value) = current()
            {
                self.headers.push((name.to_owned(), value));
            }
        };
        capture(TRACEPARENT, crate::trace::current_traceparent);
        capture(CORRELATION_ID, crate::trace::current_correlation_id);
    }

    #[cfg(not(feature = "opentelemetry"))]
    #[expect(clippy::unused_self, clippy::needless_pass_by_ref_mut, reason = "the twin above")]
    fn capture_trace(&mut self) {}
}

fn check_name(field: &'static str, text: &str, min: usize) -> Result<(), InvalidEvent> {
    if text.len() < min {
        return Err(InvalidEvent::new(field, "is empty".to_owned()));
    }
    if text.len() > MAX_NAME_BYTES {
        let reason = format!("has {} bytes, {MAX_NAME_BYTES} are allowed", text.len());
        return Err(InvalidEvent::new(field, reason));
    }
    check_nul(field, text)
}

fn check_nul(field: &'static str, text: &str) -> Result<(), InvalidEvent> {
    match text.find('\0') {
        Some(at) => Err(InvalidEvent::new(field, format!("holds a NUL at byte {at}"))),
        None => Ok(()),
    }
}

fn headers_json(headers: &[(String, String)]) -> Result<Option<String>, InvalidEvent> {
    if headers.is_empty() {
        return Ok(None);
    }
    let mut json = String::from("{");
    for (name, value) in headers {
        check_header(name, value)?;
        if json.len() > 1 {
            json.push(',');
        }
        for (text, end) in [(name, ':'), (value, ' ')] {
            json.push_str(&serde_json::to_string(text).expect("a string is always valid JSON"));
            json.push(end);
        }
        json.pop();
    }
    json.push('}');
    if json.len() > MAX_HEADERS_BYTES {
        let reason = format!("have {} bytes as JSON, {MAX_HEADERS_BYTES} are allowed", json.len());
        return Err(InvalidEvent::new("headers", reason));
    }
    Ok(Some(json))
}

fn check_header(name: &str, value: &str) -> Result<(), InvalidEvent> {
    if name.is_empty() || name.len() > MAX_HEADER_NAME_BYTES {
        let reason = format!("has {} bytes, 1 to {MAX_HEADER_NAME_BYTES} are allowed", name.len());
        return Err(InvalidEvent::new("header name", reason));
    }
    if RESERVED.contains(&name) || name == SEQUENCE || name == REPLAY {
        let reason = format!("{name:?} is reserved: it is set by the writer or the publisher");
        return Err(InvalidEvent::new("header name", reason));
    }
    check_nul("header name", name)?;
    check_nul("header value", value)
}

/// An event that breaks a limit: which field, and how.
#[derive(Debug, thiserror::Error)]
#[error("{field} {reason}")]
pub struct InvalidEvent {
    field: &'static str,
    reason: String,
    source: Option<serde_json::Error>,
}

impl InvalidEvent {
    fn new(field: &'static str, reason: String) -> Self {
        Self { field, reason, source: None }
    }

    fn with_source(field: &'static str, reason: String, source: serde_json::Error) -> Self {
        Self { field, reason, source: Some(source) }
    }

    /// The field that breaks its limit.
    #[must_use]
    pub fn field(&self) -> &'static str {
        self.field
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn builder() -> NewEventBuilder {
        NewEvent::builder("order", "o-1", "Created")
    }

    fn field(result: Result<NewEvent, InvalidEvent>) -> &'static str {
        result.expect_err("a limit is broken").field()
    }

    /// B249
    #[test]
    fn names_are_limited_in_bytes_and_hold_no_nul() {
        let long = "ä".repeat(128);
        assert_eq!(field(NewEvent::builder(&long, "a", "b").build()), "aggregate type");
        assert_eq!(field(NewEvent::builder("a", &long, "b").build()), "aggregate id");
        assert_eq!(field(NewEvent::builder("a", "b", &long).build()), "event type");
        assert_eq!(field(NewEvent::builder("", "b", "c").build()), "aggregate type");
        assert_eq!(field(NewEvent::builder("a", "b\0", "c").build()), "aggregate id");
        assert!(NewEvent::builder("a", "x".repeat(255), "c").build().is_ok());
        assert!(NewEvent::builder("a", "", "c").build().is_ok());
    }

    #[test]
    fn headers_are_one_flat_json_object_in_the_order_given() {
        let event = builder().header("b", "x\"y").correlation_id("7").header("b", "").build();
        let expected = r#"{"b":"x\"y","correlationId":"7","b":""}"#;
        assert_eq!(event.unwrap().headers(), Some(expected));
        assert_eq!(builder().build().unwrap().headers(), None);
    }

    /// B255
    #[test]
    fn reserved_empty_and_nul_headers_are_refused() {
        for (name, value) in [
            ("id", ""),
            ("eventType", ""),
            ("outbox-sequence", "1"),
            ("outbox-replay", "1"),
            ("", ""),
            ("a\0", ""),
        ] {
            assert_eq!(field(builder().header(name, value).build()), "header name");
        }
        assert_eq!(field(builder().header("a", "\0").build()), "header value");
        let large = "x".repeat(MAX_HEADERS_BYTES);
        assert_eq!(field(builder().header("a", large).build()), "headers");
    }

    #[test]
    fn a_payload_that_is_no_json_is_an_error_of_build() {
        let not_json = std::collections::HashMap::from([((1, 2), 3)]);
        assert_eq!(field(builder().json(&not_json).build()), "payload");
    }
}
