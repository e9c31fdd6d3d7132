//! `kind = "stdout"`: one line of JSON per message, for trials and for pipes.

use std::io::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use outbox::{Batch, Failure, FailureClass, KeyOrder, Message, Publisher, async_trait};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::AdapterError;
use crate::config::Settings;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Stdout {}

pub(super) async fn publisher(settings: Settings) -> Result<Arc<dyn Publisher>, AdapterError> {
    let Stdout {} = settings.read()?;
    Ok(Arc::new(Lines::default()))
}

/// Writes lines to standard output. A message is confirmed when whoever reads the output has it, or its buffer.
#[derive(Debug, Default)]
struct Lines {
    /// How often open messages were abandoned. One call writes at a time: it holds the lock.
    abandoned: Arc<Mutex<u64>>,
}

#[async_trait]
impl Publisher for Lines {
    async fn publish(&self, batch: Batch) {
        let abandoned = Arc::clone(&self.abandoned);
        let began = *lock(&abandoned);
        // A task of its own: when this future is dropped the writing goes on, and so do the verdicts.
        let writing = tokio::task::spawn_blocking(move || {
            let now = lock(&abandoned);
            if *now == began {
                write(&batch);
            }
        });
        if let Err(panic) = writing.await {
            std::panic::resume_unwind(panic.into_panic());
        }
    }

    /// Calls that wait for their turn find that they are too late; the one that writes is waited for.
    async fn abandon(&self) {
        let abandoned = Arc::clone(&self.abandoned);
        let waiting = tokio::task::spawn_blocking(move || *lock(&abandoned) += 1);
        waiting.await.expect("counting does not panic");
    }

    /// A call writes its lines in the order of its messages, and one that fails is repeated from its beginning.
    fn key_order(&self) -> KeyOrder {
        KeyOrder::Prefix
    }
}

fn lock(count: &Mutex<u64>) -> std::sync::MutexGuard<'_, u64> {
    count.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write(batch: &Batch) {
    let lines: String = batch.messages().iter().map(line).collect();
    let mut stdout = io::stdout().lock();
    match stdout.write_all(lines.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => (0..batch.len()).for_each(|index| _ = batch.confirm(index)),
        Err(error) => {
            let reason = format!("standard output does not take a line: {error}");
            batch.refuse_open(&Failure::new(FailureClass::Unavailable, reason));
        }
    }
}

fn line(message: &Message) -> String {
    let mut headers = Map::new();
    headers.insert("id".to_owned(), message.id().to_string().into());
    headers.insert("eventType".to_owned(), message.event_type().into());
    message.for_each_header(|name, value| _ = headers.insert(name.to_owned(), value.into()));
    let line = json!({
        "destination": &**message.destination(),
        "key": message.event().aggregate_id(),
        "headers": headers,
        "payload": message.payload().map(payload),
    });
    format!("{line}\n")
}

/// JSON as it is, other text as a string, and what is no text as base64.
fn payload(bytes: &[u8]) -> Value {
    match (serde_json::from_slice(bytes), std::str::from_utf8(bytes)) {
        (Ok(json), _) => json,
        (Err(_), Ok(text)) => text.into(),
        (Err(_), Err(_)) => json!({ "base64": BASE64.encode(bytes) }),
    }
}

#[cfg(test)]
mod tests {
    use super::payload;
    use serde_json::json;

    #[test]
    fn a_payload_is_json_text_or_base64() {
        assert_eq!(payload(br#"{"total": 3}"#), json!({ "total": 3 }));
        assert_eq!(payload(b"two pies"), json!("two pies"));
        assert_eq!(payload(&[0xff, 0]), json!({ "base64": "/wA=" }));
    }
}
