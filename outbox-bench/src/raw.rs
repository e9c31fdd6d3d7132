//! The raw producer: the same messages by librdkafka alone, which no relay can beat.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use rdkafka::ClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{
    BaseRecord, DeliveryResult, NoCustomPartitioner, Producer as _, ProducerContext,
    ThreadedProducer,
};
use serde::{Deserialize, Serialize};

use crate::events::{EVENT_TYPE, Sample};
use crate::usage::{Meter, Usage};

/// Messages in flight at most.
const IN_FLIGHT: u64 = 40_000;

/// What to produce, and where to.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// `host:port` of the broker.
    #[arg(long)]
    pub bootstrap: String,
    /// The topic, which is there.
    #[arg(long)]
    pub topic: String,
    /// How many messages.
    #[arg(long)]
    pub events: u64,
}

/// What was measured.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Produced {
    /// Messages.
    pub events: u64,
    /// From the first send to the last confirmation.
    pub seconds: f64,
    /// Of this process and the broker.
    pub usage: Usage,
}

/// Produces all messages once.
///
/// # Errors
///
/// When the broker does not take them.
pub fn run(options: &Options) -> Result<Produced> {
    let messages: Vec<Sample> = (0..options.events).map(Sample::new).collect();
    let context = Context::default();
    let (confirmed, failed) = (context.confirmed.clone(), context.failed.clone());
    let producer: ThreadedProducer<Context> = ClientConfig::new()
        .set("bootstrap.servers", &options.bootstrap)
        .set("acks", "all")
        .set("enable.idempotence", "true")
        .set("message.timeout.ms", "0")
        .set("partitioner", "murmur2_random")
        .set("batch.size", "1000000")
        .set("batch.num.messages", "10000")
        .set("linger.ms", "5")
        .set("queue.buffering.max.messages", IN_FLIGHT.to_string())
        .create_with_context(context)?;
    producer.client().fetch_metadata(Some(&options.topic), Duration::from_secs(30))?;

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let meter = runtime.block_on(Meter::start(&options.bootstrap, None))?;
    let start = Instant::now();
    for sample in &messages {
        let mut record = record(sample, &options.topic);
        while let Err((error, back)) = producer.send(record) {
            let full = KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull);
            ensure!(error == full, "the producer refuses a message: {error}");
            std::thread::sleep(Duration::from_millis(1));
            record = back;
        }
    }
    while confirmed.load(Ordering::Acquire) + failed.load(Ordering::Acquire) < options.events {
        std::thread::sleep(Duration::from_micros(200));
    }
    let seconds = start.elapsed().as_secs_f64();
    let usage = runtime.block_on(meter.stop())?;
    ensure!(failed.load(Ordering::Acquire) == 0, "{failed:?} messages failed");
    Ok(Produced { events: options.events, seconds, usage })
}

fn record<'a>(sample: &'a Sample, topic: &'a str) -> BaseRecord<'a, str, str> {
    let mut id = [0; 36];
    let id = &*sample.id.hyphenated().encode_lower(&mut id);
    let headers = OwnedHeaders::new_with_capacity(4)
        .insert(Header { key: "id", value: Some(id) })
        .insert(Header { key: "eventType", value: Some(EVENT_TYPE) })
        .insert(Header { key: "traceparent", value: Some(&sample.traceparent) });
    BaseRecord::to(topic).key(&*sample.aggregate).payload(&*sample.payload).headers(headers)
}

/// One counter for all messages: nothing is kept per message or call.
#[derive(Debug, Default)]
struct Context {
    confirmed: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
}

impl ClientContext for Context {}

impl ProducerContext for Context {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        let counter = if result.is_ok() { &self.confirmed } else { &self.failed };
        counter.fetch_add(1, Ordering::AcqRel);
    }

    fn get_custom_partitioner(&self) -> Option<&NoCustomPartitioner> {
        None
    }
}
