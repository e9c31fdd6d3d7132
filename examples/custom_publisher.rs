//! A publisher of your own: it appends each message as one line of JSON to a file.
//!
//! `cargo run --example custom_publisher` sends events through it; `cargo test --example custom_publisher` holds it against
//! the contract with the conformance kit. `docs/custom-adapters.md` walks through it.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use outbox::memory::MemoryStore;
use outbox::{
    Batch, Failure, FailureClass, KeyOrder, Message, NewEvent, PublishError, Publisher, Relay,
    Writer as _, async_trait,
};
use serde_json::json;

/// Appends messages to a file. A message is confirmed when the disk has it.
#[derive(Debug)]
struct JsonLines(Arc<File>);

#[derive(Debug)]
struct File {
    path: PathBuf,
    /// How often open messages were abandoned. One call writes at a time: it holds the lock.
    abandoned: Mutex<u64>,
}

impl JsonLines {
    fn new(path: impl Into<PathBuf>) -> Self {
        Self(Arc::new(File { path: path.into(), abandoned: Mutex::new(0) }))
    }
}

#[async_trait]
impl Publisher for JsonLines {
    async fn publish(&self, batch: Batch) {
        let (file, abandoned) = (Arc::clone(&self.0), *self.0.lock());
        // A task of its own: when this future is dropped the writing goes on, and so do the verdicts.
        let writing = tokio::task::spawn_blocking(move || file.publish(&batch, abandoned));
        if let Err(panic) = writing.await {
            std::panic::resume_unwind(panic.into_panic());
        }
    }

    /// Calls that wait for the lock find that they are too late; the one that holds it is waited for.
    async fn abandon(&self) {
        let file = Arc::clone(&self.0);
        let waiting = tokio::task::spawn_blocking(move || *file.lock() += 1);
        waiting.await.expect("counting does not panic");
    }

    /// A call is one write, in the order of its messages: all of it is in the file, or nothing.
    fn key_order(&self) -> KeyOrder {
        KeyOrder::Prefix
    }

    async fn check(&self) -> Result<(), PublishError> {
        OpenOptions::new().create(true).append(true).open(&self.0.path).map(drop).map_err(|error| {
            let path = self.0.path.display();
            PublishError::misconfigured(format!("the file {path} cannot be opened"))
                .with_source(error)
        })
    }
}

impl File {
    fn publish(&self, batch: &Batch, abandoned: u64) {
        let now = self.lock();
        if *now != abandoned {
            return; // without a verdict: whoever abandoned these messages publishes them again
        }
        let mut lines = String::new();
        for (index, message) in batch.messages().iter().enumerate() {
            match line(message) {
                Ok(line) => lines.push_str(&line),
                Err(reason) => _ = batch.refuse(index, reason),
            }
        }
        match self.append(lines.as_bytes()) {
            Ok(()) => (0..batch.len()).for_each(|index| _ = batch.confirm(index)),
            Err(error) => {
                let reason = format!("cannot append to {}: {error}", self.path.display());
                batch.refuse_open(&Failure::new(FailureClass::Unavailable, reason));
            }
        }
    }

    /// An error says that the file is as it was before.
    fn append(&self, lines: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).open(&self.path)?;
        let before = file.metadata()?.len();
        let written = file.write_all(lines).and_then(|()| file.sync_all());
        if written.is_err() {
            file.set_len(before).expect("what was written in part can be cut off");
        }
        written
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.abandoned.lock().expect("no call panics while it writes")
    }
}

/// The line of a message; what no line can hold is the message's own fault, for good.
fn line(message: &Message) -> Result<String, Failure> {
    let text = |bytes| {
        let reason = "this file holds text only, and the payload is no UTF-8";
        std::str::from_utf8(bytes).map_err(|_| Failure::new(FailureClass::Permanent, reason))
    };
    let mut headers = vec![
        ("id".to_owned(), message.id().to_string()),
        ("eventType".to_owned(), message.event_type().to_owned()),
    ];
    message.for_each_header(|name, value| headers.push((name.to_owned(), value.to_owned())));
    let line = json!({
        "destination": &**message.destination(),
        "key": message.key().map(text).transpose()?,
        "payload": message.payload().map(text).transpose()?,
        "headers": headers,
    });
    Ok(format!("{line}\n"))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("messages.jsonl");
    let store = MemoryStore::new();
    let mut transaction = store.begin();
    for total in [1250, 300] {
        let event =
            NewEvent::json("order", "order-1", "OrderChanged.v1", &json!({ "total": total }))?;
        store.append(&mut transaction, &[event]).await?;
    }
    transaction.commit();

    let publisher = JsonLines::new(&path);
    let relay = Relay::new(Arc::new(store.clone()), Arc::new(publisher));
    relay.run(store.wait_until_nothing_pending(Duration::from_secs(20))).await?;
    print!("{}", std::fs::read_to_string(&path)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use outbox_conformance::{Faults, PublisherHarness, Received, publisher_conformance};
    use serde_json::Value;
    use tempfile::TempDir;

    use super::*;

    struct Harness {
        folder: TempDir,
    }

    async fn harness() -> Harness {
        let folder = tempfile::tempdir().expect("a folder for the file");
        fs::create_dir(folder.path().join("up")).expect("an empty folder");
        Harness { folder }
    }

    impl Harness {
        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }
    }

    #[async_trait]
    impl PublisherHarness for Harness {
        async fn publisher(&self) -> Arc<dyn Publisher> {
            Arc::new(JsonLines::new(self.path("up").join("messages.jsonl")))
        }

        fn destination(&self) -> Arc<str> {
            "orders".into()
        }

        async fn received(&self) -> Vec<Received> {
            received(&self.path("up").join("messages.jsonl"))
        }

        fn faults(&self) -> Faults {
            Faults::default().with_outage().with_whole_calls()
        }

        /// Without its folder the file cannot be opened.
        async fn outage(&self, on: bool) {
            let (from, to) = if on { ("up", "down") } else { ("down", "up") };
            fs::rename(self.path(from), self.path(to)).expect("the folder can be renamed");
        }
    }

    fn received(path: &Path) -> Vec<Received> {
        let lines = fs::read_to_string(path).unwrap_or_default();
        let bytes = |value: &Value| value.as_str().map(|text| text.as_bytes().to_vec());
        let message = |line: &str| {
            let line: Value = serde_json::from_str(line).expect("each line is JSON");
            let headers = line["headers"].as_array().expect("a list of pairs").iter();
            let pair = |pair: &Value| {
                let name = pair[0].as_str().expect("a name").to_owned();
                (name, bytes(&pair[1]).expect("a value"))
            };
            Received {
                key: bytes(&line["key"]),
                payload: bytes(&line["payload"]),
                headers: headers.map(pair).collect(),
            }
        };
        lines.lines().map(message).collect()
    }

    publisher_conformance!(harness);
}
