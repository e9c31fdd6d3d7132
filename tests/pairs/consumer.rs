//! A consumer in a process of its own: it books each event's amount in its own ledger, through the inbox, and acknowledges
//! after the commit.

use std::collections::BTreeMap;
use std::time::Duration;

use lapin::options::{BasicAckOptions, BasicGetOptions};
use outbox::{Inbox as _, ReceivedEvent, Seen, async_trait};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::{Message as _, Offset, TopicPartitionList};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::task::block_in_place;

use crate::ledger::{Ledger, MySqlLedger, PostgresLedger, SqliteLedger};
use crate::support::process::Role;
use crate::support::relay_process::{BrokerAt, StoreAt};
use crate::support::{kafka, rabbitmq};

/// Events that are acknowledged together, so that some come again when the process is killed.
const ACKNOWLEDGED_TOGETHER: usize = 10;
/// How long an empty queue or topic is waited for.
const PAUSE: Duration = Duration::from_millis(20);
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// What a consumer process takes from where, and where it books.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Consumer {
    pub(crate) broker: BrokerAt,
    /// The topic or queue.
    pub(crate) source: String,
    pub(crate) ledger: StoreAt,
}

impl Role for Consumer {
    const TEST: &str = "consumer_process";

    /// Goes on to the last message, and ends only then.
    async fn serve(self, shutdown: oneshot::Receiver<()>) {
        let source: Box<dyn Source> = match &self.broker {
            BrokerAt::Kafka(bootstrap) => Box::new(Topic::open(bootstrap, &self.source)),
            BrokerAt::RabbitMq(url) => Box::new(Queue::open(url, &self.source).await),
            BrokerAt::Sqs(_) => unimplemented!("no test consumes from SQS this way"),
        };
        match &self.ledger {
            StoreAt::Postgres(url) => consume::<PostgresLedger>(source, url, shutdown).await,
            StoreAt::MySql(url) => consume::<MySqlLedger>(source, url, shutdown).await,
            StoreAt::Sqlite(url) => consume::<SqliteLedger>(source, url, shutdown).await,
        }
    }
}

async fn consume<L: Ledger>(
    mut source: Box<dyn Source>,
    ledger: &str,
    mut shutdown: oneshot::Receiver<()>,
) {
    let ledger = L::open(ledger).await;
    let mut handled = 0;
    loop {
        let ending = shutdown.try_recv() != Err(TryRecvError::Empty);
        let event = source.next().await;
        if let Some(event) = &event {
            handle(&ledger, event).await;
            handled += 1;
        }
        if handled == ACKNOWLEDGED_TOGETHER || event.is_none() && handled > 0 {
            source.acknowledge().await;
            handled = 0;
        }
        if ending && event.is_none() && source.is_at_end() {
            return;
        }
    }
}

/// Mark and effect in one transaction.
async fn handle<L: Ledger>(ledger: &L, event: &ReceivedEvent) {
    let tx = ledger.begin().await.unwrap();
    let id = event.id.to_string();
    if let Seen::First(mut tx) = ledger.inbox().once(tx, "ledger", &id).await.unwrap() {
        let account = event.key.as_deref().expect("each event is about an account");
        L::book(&mut tx, account, amount(event), &id).await.unwrap();
        tx.commit().await.unwrap();
    }
}

/// The amount that the event tells: its version, as its writer booked it.
fn amount(event: &ReceivedEvent) -> i64 {
    let payload = event.payload.as_deref().expect("each event has a payload");
    let payload: serde_json::Value = serde_json::from_slice(payload).unwrap();
    payload["version"].as_i64().unwrap()
}

#[async_trait]
trait Source: Send {
    /// The next event, or nothing when none has come for a moment.
    async fn next(&mut self) -> Option<ReceivedEvent>;

    /// Acknowledges all events that [`next`](Self::next) has given.
    async fn acknowledge(&mut self);

    /// Whether nothing is there that [`next`](Self::next) has not given.
    fn is_at_end(&self) -> bool;
}

/// A topic, without a group that would wait for a killed member's session to end.
struct Topic {
    consumer: BaseConsumer,
    name: String,
    /// The next offset of each partition.
    positions: BTreeMap<i32, i64>,
}

impl Topic {
    fn open(bootstrap: &str, name: &str) -> Self {
        let mut config = kafka::config(bootstrap);
        config.set("group.id", name).set("enable.auto.commit", "false");
        let consumer: BaseConsumer = config.create().unwrap();
        let mut partitions = TopicPartitionList::new();
        partitions.add_partition_range(name, 0, kafka::PARTITIONS - 1);
        let committed = consumer.committed_offsets(partitions, ANSWER_LIMIT).unwrap();
        let mut positions = BTreeMap::new();
        for partition in 0..kafka::PARTITIONS {
            let mut partition = committed.find_partition(name, partition).unwrap();
            let position = partition.offset().to_raw().filter(|offset| *offset >= 0).unwrap_or(0);
            partition.set_offset(Offset::Offset(position)).unwrap();
            positions.insert(partition.partition(), position);
        }
        consumer.assign(&committed).unwrap();
        Self { consumer, name: name.to_owned(), positions }
    }
}

#[async_trait]
impl Source for Topic {
    async fn next(&mut self) -> Option<ReceivedEvent> {
        let message = block_in_place(|| self.consumer.poll(PAUSE))?.unwrap();
        self.positions.insert(message.partition(), message.offset() + 1);
        Some(outbox::kafka::received(&message).unwrap())
    }

    async fn acknowledge(&mut self) {
        let mut offsets = TopicPartitionList::new();
        for (partition, position) in &self.positions {
            let offset = Offset::Offset(*position);
            offsets.add_partition_offset(&self.name, *partition, offset).unwrap();
        }
        block_in_place(|| self.consumer.commit(&offsets, CommitMode::Sync)).unwrap();
    }

    fn is_at_end(&self) -> bool {
        block_in_place(|| {
            self.positions.iter().all(|(partition, position)| {
                let ends = self.consumer.fetch_watermarks(&self.name, *partition, ANSWER_LIMIT);
                ends.unwrap().1 == *position
            })
        })
    }
}

struct Queue {
    _connection: lapin::Connection,
    channel: lapin::Channel,
    name: String,
    /// The delivery tag of the last event that is not acknowledged.
    last: Option<u64>,
}

impl Queue {
    async fn open(url: &str, name: &str) -> Self {
        let (_connection, channel) = rabbitmq::connect(url).await.unwrap();
        Self { _connection, channel, name: name.to_owned(), last: None }
    }
}

#[async_trait]
impl Source for Queue {
    async fn next(&mut self) -> Option<ReceivedEvent> {
        let get = self.channel.basic_get(self.name.as_str().into(), BasicGetOptions::default());
        let Some(message) = get.await.unwrap() else {
            tokio::time::sleep(PAUSE).await;
            return None;
        };
        let event = outbox::rabbitmq::received(&message.delivery).unwrap();
        self.last = Some(message.delivery.delivery_tag);
        Some(event)
    }

    async fn acknowledge(&mut self) {
        let last = self.last.take().expect("there is something to acknowledge");
        self.channel.basic_ack(last, BasicAckOptions { multiple: true }).await.unwrap();
    }

    /// A queue gives what it has before it says that it is empty.
    fn is_at_end(&self) -> bool {
        true
    }
}
