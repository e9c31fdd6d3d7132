//! A topic of the bench's own: created, counted, read back.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Headers as _, Message as _};
use rdkafka::{Offset, TopicPartitionList};
use serde::{Deserialize, Serialize};

use crate::events::{EVENT_TYPE, Sample};

/// Partitions of a topic of the bench.
pub const PARTITIONS: i32 = 6;

const PATIENCE: Duration = Duration::from_secs(30);

/// A topic that [`create`](Topic::create) made and [`remove`](Topic::remove) removes.
#[derive(Debug)]
pub struct Topic {
    bootstrap: String,
    name: String,
}

/// What a topic holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Content {
    /// Messages.
    pub messages: u64,
    /// Events of which a message was there before.
    pub duplicates: u64,
    /// Events that are missing.
    pub missing: u64,
    /// Messages whose key, headers or body are not those of an event of the run.
    pub altered: u64,
    /// Events whose first message came behind that of a later event of their aggregate.
    pub overtaken: u64,
}

impl Topic {
    /// A new topic of [`PARTITIONS`] partitions.
    ///
    /// # Errors
    ///
    /// When the broker does not answer or refuses.
    pub async fn create(bootstrap: &str) -> Result<Self> {
        let name = format!("outbox-bench-{:016x}", fastrand::u64(..));
        let topic = NewTopic::new(&name, PARTITIONS, TopicReplication::Fixed(1));
        let created = admin(bootstrap)?
            .create_topics([&topic], &AdminOptions::new())
            .await
            .context("cannot reach Kafka: see --bootstrap, or run `cargo xtask services start`")?;
        created.into_iter().collect::<Result<Vec<_>, _>>().map_err(|(name, code)| {
            anyhow::anyhow!("the broker does not create the topic {name}: {code}")
        })?;
        Ok(Self { bootstrap: bootstrap.to_owned(), name })
    }

    /// The topic's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Messages in the topic, by the offsets of its partitions.
    ///
    /// # Errors
    ///
    /// When the broker does not answer.
    pub fn count(&self) -> Result<u64> {
        let ends = self.ends(&self.consumer()?)?;
        Ok(ends.values().map(|end| end.unsigned_abs()).sum())
    }

    /// Reads everything and compares it with events 0 to `events`.
    ///
    /// # Errors
    ///
    /// When the broker does not answer or stops giving messages.
    pub fn read_back(&self, events: u64) -> Result<Content> {
        let consumer = self.consumer()?;
        let ends = self.ends(&consumer)?;
        let mut partitions = TopicPartitionList::new();
        for partition in ends.keys() {
            partitions.add_partition_offset(&self.name, *partition, Offset::Beginning)?;
        }
        consumer.assign(&partitions)?;
        let total: u64 = ends.values().map(|end| end.unsigned_abs()).sum();
        let mut content = Content { messages: total, ..Content::default() };
        let mut seen = vec![false; usize::try_from(events)?];
        let mut last: HashMap<Vec<u8>, u64> = HashMap::new();
        for _ in 0..total {
            let message = consumer.poll(PATIENCE).context("the topic ends too early")??;
            let number = message.payload().and_then(Sample::number).filter(|n| *n < events);
            let Some(n) = number.filter(|n| is_unaltered(&message, *n)) else {
                content.altered += 1;
                continue;
            };
            if std::mem::replace(&mut seen[usize::try_from(n)?], true) {
                content.duplicates += 1;
                continue;
            }
            let last = last.entry(message.key().unwrap_or_default().to_vec()).or_insert(n);
            content.overtaken += u64::from(n < *last);
            *last = (*last).max(n);
        }
        content.missing = seen.iter().filter(|seen| !**seen).count() as u64;
        Ok(content)
    }

    /// Removes the topic.
    ///
    /// # Errors
    ///
    /// When the broker does not answer.
    pub async fn remove(self) -> Result<()> {
        admin(&self.bootstrap)?.delete_topics(&[&self.name], &AdminOptions::new()).await?;
        Ok(())
    }

    fn ends(&self, consumer: &BaseConsumer) -> Result<HashMap<i32, i64>> {
        (0..PARTITIONS)
            .map(|partition| {
                let (low, high) = consumer.fetch_watermarks(&self.name, partition, PATIENCE)?;
                ensure!(low == 0, "partition {partition} of {} begins at {low}", self.name);
                Ok((partition, high))
            })
            .collect()
    }

    fn consumer(&self) -> Result<BaseConsumer> {
        Ok(ClientConfig::new()
            .set("bootstrap.servers", &self.bootstrap)
            .set("group.id", &self.name)
            .set("enable.auto.commit", "false")
            .set("queued.max.messages.kbytes", "16384")
            .create()?)
    }
}

fn is_unaltered(message: &rdkafka::message::BorrowedMessage<'_>, n: u64) -> bool {
    let sample = Sample::new(n);
    let (id, traceparent) = (sample.id.to_string(), sample.traceparent);
    let expected =
        [("id", id.as_str()), ("eventType", EVENT_TYPE), ("traceparent", traceparent.as_str())];
    let headers = message.headers();
    let headers = headers.is_some_and(|headers| {
        headers.count() == expected.len()
            && headers.iter().zip(expected).all(|(header, (key, value))| {
                header.key == key && header.value == Some(value.as_bytes())
            })
    });
    headers
        && message.key() == Some(sample.aggregate.as_bytes())
        && message.payload() == Some(sample.payload.as_bytes())
}

fn admin(bootstrap: &str) -> Result<AdminClient<DefaultClientContext>> {
    Ok(ClientConfig::new().set("bootstrap.servers", bootstrap).create()?)
}
