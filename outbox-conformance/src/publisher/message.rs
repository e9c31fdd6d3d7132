//! The relay's part in a rule: messages, calls and what came of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use outbox_core::{Batch, EventId, EventRow, EventRows, FailureClass, Message, Publisher, Verdict};

use super::{PublisherHarness, Received};

/// How long a call may take that nothing hinders.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// A message to be sent.
#[derive(Clone, Debug, Default)]
pub(super) struct Draft {
    /// A new one when absent.
    pub(super) id: Option<EventId>,
    /// `Created.v1` when absent.
    pub(super) event_type: Option<String>,
    pub(super) key: Option<String>,
    pub(super) payload: Option<Vec<u8>>,
    pub(super) headers: Vec<(String, String)>,
}

impl Draft {
    pub(super) fn of_key(key: impl Into<String>) -> Self {
        Self { key: Some(key.into()), payload: Some(b"{}".to_vec()), ..Self::default() }
    }

    pub(super) fn to(&self, destination: &Arc<str>) -> Message {
        let headers: Vec<String> = self
            .headers
            .iter()
            .map(|(name, value)| format!("{}:{}", quoted(name), quoted(value)))
            .collect();
        let headers = (!headers.is_empty()).then(|| format!("{{{}}}", headers.join(",")));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is past 1970");
        let mut rows = EventRows::default();
        let mut row = EventRow::new(1, 0, self.id.clone().unwrap_or_else(EventId::generate));
        row.aggregate_type = "order";
        row.aggregate_id = self.key.as_deref();
        row.event_type = self.event_type.as_deref().unwrap_or("Created.v1");
        row.payload = self.payload.as_deref();
        row.headers = headers.as_deref();
        row.created_at_micros = i64::try_from(now.as_micros()).expect("it is before 294000");
        rows.push(&row);
        let event = rows.finish().pop().expect("one row was pushed");
        Message::new(event, Arc::clone(destination))
    }
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a string is always valid JSON")
}

/// A batch of messages with these keys, in this order.
pub(super) fn batch_of(harness: &dyn PublisherHarness, keys: &[&str]) -> Batch {
    batch(harness, &keys.iter().map(|key| Draft::of_key(*key)).collect::<Vec<_>>())
}

pub(super) fn batch(harness: &dyn PublisherHarness, drafts: &[Draft]) -> Batch {
    let destination = harness.destination();
    Batch::new(drafts.iter().map(|draft| draft.to(&destination)).collect())
}

/// Publishes, and expects every verdict in time.
pub(super) async fn publish(publisher: &dyn Publisher, batch: &Batch) {
    let call = tokio::time::timeout(PATIENCE, publisher.publish(batch.clone()));
    assert!(call.await.is_ok(), "publish returns within {PATIENCE:?}: {batch:?}");
    assert_eq!(batch.open(), 0, "every message has a verdict when publish returns");
}

/// Publishes, and expects every message to be confirmed.
pub(super) async fn confirmed(publisher: &dyn Publisher, batch: &Batch) {
    publish(publisher, batch).await;
    for index in 0..batch.len() {
        assert_eq!(batch.verdict(index), Some(Verdict::Confirmed), "message {index}");
    }
}

/// A call in a task of its own, to be dropped or waited for.
pub(super) fn call(publisher: &Arc<dyn Publisher>, batch: &Batch) -> tokio::task::JoinHandle<()> {
    let (publisher, batch) = (Arc::clone(publisher), batch.clone());
    tokio::spawn(async move { publisher.publish(batch).await })
}

pub(super) fn class(batch: &Batch, index: usize) -> Option<FailureClass> {
    match batch.verdict(index) {
        Some(Verdict::Failed(failure)) => Some(failure.class),
        _ => None,
    }
}

pub(super) fn is_confirmed(batch: &Batch, index: usize) -> bool {
    batch.verdict(index) == Some(Verdict::Confirmed)
}

pub(super) fn ids(batch: &Batch) -> Vec<String> {
    batch.messages().iter().map(|message| message.id().to_string()).collect()
}

pub(super) async fn received_ids(harness: &dyn PublisherHarness) -> Vec<String> {
    id_headers(&harness.received().await)
}

/// Checks the batches against what the broker holds: whatever was confirmed is there, what failed is not, and nothing twice.
pub(super) async fn check(harness: &dyn PublisherHarness, batches: &[&Batch]) {
    let received = received_ids(harness).await;
    for batch in batches {
        for (index, id) in ids(batch).iter().enumerate() {
            let count = received.iter().filter(|received| *received == id).count();
            match batch.verdict(index) {
                Some(Verdict::Confirmed) => {
                    assert_eq!(count, 1, "message {index} was confirmed and came {count} times");
                }
                Some(Verdict::Failed(failure)) => {
                    assert_eq!(
                        count, 0,
                        "message {index} failed ({failure:?}) and came all the same"
                    );
                }
                None => assert!(count <= 1, "message {index} is open and came {count} times"),
            }
        }
    }
}

/// The ids that came, by key, in their order.
pub(super) fn by_key(received: &[Received]) -> BTreeMap<Option<Vec<u8>>, Vec<String>> {
    let mut keys: BTreeMap<_, Vec<String>> = BTreeMap::new();
    for message in received {
        let id = message.header("id").expect("each message carries its event's id");
        keys.entry(message.key.clone()).or_default().push(id);
    }
    keys
}

fn id_headers(received: &[Received]) -> Vec<String> {
    let id =
        |message: &Received| message.header("id").expect("each message carries its event's id");
    received.iter().map(id).collect()
}
