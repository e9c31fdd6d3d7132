//! For tests of a publisher beside the rules: a message from an event's texts, and the verdicts on a call.

use std::time::Duration;

use outbox_core::{
    Batch, EventId, EventRow, EventRows, Failure, FailureClass, Message, Publisher, Verdict,
};

/// Time for a call that nothing hinders; a busy machine needs a part of it.
const LIMIT: Duration = Duration::from_secs(30);

/// An event's texts, with defaults that a test need not name: a new id, and an event `Created` of aggregate `a` with the
/// payload `{}`.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    /// The event's id.
    pub id: EventId,
    /// What the event is about.
    pub aggregate_type: &'a str,
    /// The key; `None` is an unordered event.
    pub aggregate_id: Option<&'a str>,
    /// The event's type.
    pub event_type: &'a str,
    /// `None` is a tombstone.
    pub payload: Option<&'a [u8]>,
    /// One flat JSON object.
    pub headers: Option<&'a str>,
    /// When it was written, in microseconds since 1970.
    pub created_at_micros: i64,
}

impl Default for Row<'_> {
    fn default() -> Self {
        Self {
            id: EventId::generate(),
            aggregate_type: "order",
            aggregate_id: Some("a"),
            event_type: "Created",
            payload: Some(b"{}"),
            headers: None,
            created_at_micros: 1_700_000_000_123_456,
        }
    }
}

impl Row<'_> {
    /// The message to this destination.
    #[must_use]
    pub fn to(&self, destination: &str) -> Message {
        let mut rows = EventRows::default();
        let mut row = EventRow::new(1, 0, self.id.clone());
        row.aggregate_type = self.aggregate_type;
        row.aggregate_id = self.aggregate_id;
        row.event_type = self.event_type;
        row.payload = self.payload;
        row.headers = self.headers;
        row.created_at_micros = self.created_at_micros;
        rows.push(&row);
        Message::new(rows.finish().pop().expect("one row was pushed"), destination.into())
    }
}

/// Publishes and returns the verdicts, of which some may be open.
///
/// # Panics
///
/// When the call does not return within half a minute.
pub async fn publish(publisher: &dyn Publisher, messages: Vec<Message>) -> Vec<Option<Verdict>> {
    let batch = Batch::new(messages);
    tokio::time::timeout(LIMIT, publisher.publish(batch.clone())).await.expect("the call returns");
    verdicts(&batch)
}

/// The verdicts in the order of the messages; `None` is open.
#[must_use]
pub fn verdicts(batch: &Batch) -> Vec<Option<Verdict>> {
    (0..batch.len()).map(|index| batch.verdict(index)).collect()
}

/// The failure that this verdict is.
///
/// # Panics
///
/// When it is none.
#[must_use]
pub fn failure(verdict: &Option<Verdict>) -> &Failure {
    match verdict {
        Some(Verdict::Failed(failure)) => failure,
        other => panic!("a failure was expected, not {other:?}"),
    }
}

/// The class of the failure; `None` is confirmed.
///
/// # Panics
///
/// When there is no verdict.
#[must_use]
pub fn class(verdict: &Option<Verdict>) -> Option<FailureClass> {
    match verdict {
        Some(Verdict::Failed(failure)) => Some(failure.class),
        Some(Verdict::Confirmed) => None,
        None => panic!("a verdict was expected"),
    }
}
