//! Queues, messages and a reader for the tests of this crate.
#![allow(dead_code, clippy::unwrap_used, unreachable_pub)]

pub mod rules;
pub mod stub;

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::{BehaviorVersion, Credentials, Region, SharedCredentialsProvider};
use aws_sdk_sqs::types::{
    DeleteMessageBatchRequestEntry, MessageSystemAttributeName, QueueAttributeName,
};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use outbox_conformance::Received;
pub use outbox_conformance::messages::*;
use outbox_core::{Batch, Message, Publisher, Verdict};
use outbox_sqs::{SdkConfig, SqsConfig, SqsPublisher};

/// Time for anything that must happen; a busy machine needs a part of it.
pub const LIMIT: Duration = Duration::from_secs(30);

/// The shared server's URL.
pub fn endpoint() -> String {
    std::env::var("OUTBOX_TEST_SQS_ENDPOINT").expect(
        "OUTBOX_TEST_SQS_ENDPOINT is not set: run `cargo xtask test`, or start the servers with \
         `cargo xtask services start` and set the variables that it prints",
    )
}

/// A name that nobody else uses.
pub fn random(prefix: &str) -> String {
    format!("{prefix}-{}", uuid::Uuid::new_v4().simple())
}

pub fn sdk(endpoint: &str) -> SdkConfig {
    let credentials = Credentials::new("test", "test", None, None, "tests");
    SdkConfig::builder()
        .behavior_version(BehaviorVersion::v2026_01_12())
        .region(Region::new("us-east-1"))
        .endpoint_url(endpoint)
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .build()
}

pub fn publisher(endpoint: &str, config: &SqsConfig) -> SqsPublisher {
    SqsPublisher::new(&sdk(endpoint), config).unwrap()
}

/// Messages of these keys with the payloads `0`, `1`, …
pub fn numbered<'a>(queue: &str, keys: impl IntoIterator<Item = &'a str>) -> Vec<Message> {
    let number = |(at, key): (usize, &str)| {
        let payload = at.to_string();
        let payload = Some(payload.as_bytes());
        Row { aggregate_id: Some(key), payload, ..Row::default() }.to(queue)
    };
    keys.into_iter().enumerate().map(number).collect()
}

/// As a relay does: what was not confirmed is sent again, in the order of its key.
pub async fn deliver_all(publisher: &dyn Publisher, mut pending: Vec<Message>) {
    let deadline = Instant::now() + LIMIT;
    while !pending.is_empty() {
        assert!(Instant::now() < deadline, "{} messages are not delivered", pending.len());
        let batch = Batch::new(pending.clone());
        tokio::time::timeout(LIMIT, publisher.publish(batch.clone())).await.expect("the call ends");
        if batch.open() > 0 {
            publisher.abandon().await;
        }
        let mut verdicts = verdicts(&batch).into_iter();
        pending.retain(|_| verdicts.next().flatten() != Some(Verdict::Confirmed));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Whether the numbers of each group rise.
pub fn in_order(stored: &[Stored]) -> bool {
    let mut last: HashMap<Option<&str>, usize> = HashMap::new();
    stored.iter().all(|stored| {
        let number = stored.body.parse().unwrap();
        last.insert(stored.group.as_deref(), number).is_none_or(|before| before < number)
    })
}

/// `ok`, `open`, or the class of the failure.
pub fn words(verdicts: &[Option<Verdict>]) -> Vec<&'static str> {
    let word = |verdict: &Option<Verdict>| match verdict {
        None => "open",
        Some(Verdict::Confirmed) => "ok",
        Some(Verdict::Failed(failure)) => failure.class.as_str(),
    };
    verdicts.iter().map(word).collect()
}

/// A message as a consumer gets it.
#[derive(Clone, Debug)]
pub struct Stored {
    pub body: String,
    /// Name, type and value.
    pub attributes: BTreeMap<String, (String, Vec<u8>)>,
    /// `None` on a standard queue.
    pub group: Option<String>,
    pub deduplication_id: Option<String>,
}

impl Stored {
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.get(name).map(|(_, value)| std::str::from_utf8(value).unwrap())
    }

    /// What a consumer makes of it, by the rules in the crate's documentation.
    pub fn received(&self) -> Received {
        let id = self.attribute("id").unwrap();
        let own_key = self.attributes.get("aggregateId").map(|(_, value)| value.clone());
        let group = self.group.as_ref().filter(|group| *group != id);
        let payload = match self.attribute("outbox-encoding") {
            Some("base64") => BASE64_STANDARD.decode(&self.body).unwrap(),
            other => {
                assert_eq!(other, None);
                self.body.clone().into_bytes()
            }
        };
        let mut headers = Vec::new();
        for (name, (_, value)) in &self.attributes {
            match &**name {
                "aggregateId" | "outbox-encoding" => {}
                "outbox-headers" => headers.extend(unfolded(std::str::from_utf8(value).unwrap())),
                _ => headers.push((name.clone(), value.clone())),
            }
        }
        Received {
            key: own_key.or_else(|| group.map(|group| group.clone().into_bytes())),
            payload: Some(payload),
            headers,
        }
    }
}

fn unfolded(json: &str) -> Vec<(String, Vec<u8>)> {
    let mut headers = Vec::new();
    outbox_core::headers::for_each(json, &mut |name, value| {
        headers.push((name.to_owned(), value.as_bytes().to_vec()));
    })
    .unwrap();
    headers
}

/// A reader and administrator of the queues of a real server.
#[derive(Debug)]
pub struct Reader(Client);

impl Reader {
    pub fn new(endpoint: &str) -> Self {
        let http = aws_smithy_http_client::Builder::new().build_http();
        Self(Client::new(&sdk(endpoint).into_builder().http_client(http).build()))
    }

    pub async fn create(&self, name: &str) {
        let mut create = self.0.create_queue().queue_name(name);
        if name.ends_with(".fifo") {
            create = create.attributes(QueueAttributeName::FifoQueue, "true");
        }
        create.send().await.unwrap();
    }

    pub async fn delete(&self, name: &str) {
        self.0.delete_queue().queue_url(self.url(name).await).send().await.unwrap();
    }

    pub async fn url(&self, name: &str) -> String {
        self.0.get_queue_url().queue_name(name).send().await.unwrap().queue_url.unwrap()
    }

    /// Takes all that the queue holds.
    pub async fn drain(&self, name: &str) -> Vec<Stored> {
        let url = self.url(name).await;
        let mut all = Vec::new();
        loop {
            let receive = self.0.receive_message().queue_url(&url).max_number_of_messages(10);
            let receive = receive
                .message_attribute_names("All")
                .message_system_attribute_names(MessageSystemAttributeName::All);
            let messages = receive.send().await.unwrap().messages.unwrap_or_default();
            if messages.is_empty() {
                return all;
            }
            let entry = |(at, message): (usize, &aws_sdk_sqs::types::Message)| {
                let entry = DeleteMessageBatchRequestEntry::builder().id(at.to_string());
                entry.receipt_handle(message.receipt_handle().unwrap()).build().unwrap()
            };
            let entries = messages.iter().enumerate().map(entry).collect();
            let delete = self.0.delete_message_batch().queue_url(&url).set_entries(Some(entries));
            assert!(delete.send().await.unwrap().failed().is_empty());
            all.extend(messages.iter().map(|message| stored(message, name.ends_with(".fifo"))));
        }
    }
}

fn stored(message: &aws_sdk_sqs::types::Message, fifo: bool) -> Stored {
    let system = |name| {
        let attributes = message.attributes().filter(|_| fifo)?;
        attributes.get(&name).cloned()
    };
    let attributes = message.message_attributes().into_iter().flatten().map(|(name, value)| {
        let bytes = match (value.string_value(), value.binary_value()) {
            (Some(text), _) => text.as_bytes().to_vec(),
            (None, Some(bytes)) => bytes.as_ref().to_vec(),
            (None, None) => panic!("{name} has no value"),
        };
        (name.clone(), (value.data_type().to_owned(), bytes))
    });
    Stored {
        body: message.body().unwrap().to_owned(),
        attributes: attributes.collect(),
        group: system(MessageSystemAttributeName::MessageGroupId),
        deduplication_id: system(MessageSystemAttributeName::MessageDeduplicationId),
    }
}
