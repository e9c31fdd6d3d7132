//! Messages per second by number of channels, as the relay sends them: four calls at a time, of a thousand messages with
//! different keys. Runs are interleaved, so that a machine that gets slower does so for all.
//!
//! `cargo run --release -p outbox-rabbitmq --example channels -- amqp://guest:guest@127.0.0.1:5672/%2f 5`: a broker, and
//! how many rounds.

use std::time::Instant;

use lapin::options::QueueDeleteOptions;
use lapin::{Connection, ConnectionProperties};
use outbox_core::memory::MemoryStore;
use outbox_core::{Batch, Event, Message, NewEvent, Publisher, Verdict, Writer as _};
use outbox_rabbitmq::{Queue, RabbitMqConfig, RabbitMqPublisher, Routing};

const CHANNELS: [u16; 4] = [1, 2, 4, 8];
const CALL: usize = 1_000;

type Error = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or("the broker's URL is missing")?;
    let rounds: usize = arguments.next().map_or(Ok(5), |rounds| rounds.parse())?;
    println!("{:>8} {:>6}  {}", "queue", "bytes", CHANNELS.map(|n| format!("{n:>8}")).join(""));
    for queue_type in ["quorum", "classic"] {
        for (bytes, calls) in [(300, 10), (10_000, 3)] {
            let events = events(bytes).await?;
            let mut rates = CHANNELS.map(|_| Vec::new());
            for round in 0..=rounds {
                for (channels, rates) in CHANNELS.into_iter().zip(&mut rates) {
                    let rate = rate(&url, queue_type, &events, calls, channels).await?;
                    // The first one warms everything up.
                    if round > 0 {
                        rates.push(rate);
                    }
                }
            }
            for (word, pick) in [("median", rounds / 2), ("lowest", 0), ("highest", rounds - 1)] {
                let row = rates.each_mut().map(|rates| {
                    rates.sort_by(f64::total_cmp);
                    format!("{:>8.0}", rates[pick])
                });
                println!("{queue_type:>8} {bytes:>6}  {}  {word}", row.join(""));
            }
        }
    }
    Ok(())
}

async fn events(bytes: usize) -> Result<Vec<Event>, Error> {
    let store = MemoryStore::new();
    let mut transaction = store.begin();
    let text = "x".repeat(bytes);
    for n in 0..CALL {
        let event = NewEvent::json("order", format!("order-{n}"), "OrderPlaced.v1", &text)?;
        store.append(&mut transaction, &[event]).await?;
    }
    transaction.commit();
    Ok(store.pending())
}

/// Messages a second into a queue of its own.
async fn rate(
    url: &str,
    queue_type: &str,
    events: &[Event],
    calls: usize,
    channels: u16,
) -> Result<f64, Error> {
    let name = format!("outbox-channels-{queue_type}");
    let admin = Connection::connect(url, ConnectionProperties::default()).await?;
    let admin = admin.create_channel().await?;
    admin.queue_delete(name.as_str().into(), QueueDeleteOptions::default()).await?;
    let queue = match queue_type {
        "quorum" => Queue::quorum(&name),
        _ => Queue::classic(&name),
    };
    let mut config = RabbitMqConfig::new(url).with_routing(Routing::Queue).with_queue(queue);
    config.channels = channels;
    let publisher = RabbitMqPublisher::new(&config)?;
    publisher.check().await?;
    let started = Instant::now();
    let call = async || {
        for _ in 0..calls {
            let message = |event: &Event| Message::new(event.clone(), name.as_str().into());
            let batch = Batch::new(events.iter().map(message).collect());
            publisher.publish(batch.clone()).await;
            let all = |index| batch.verdict(index) == Some(Verdict::Confirmed);
            assert!((0..CALL).all(all), "all are confirmed");
        }
    };
    tokio::join!(call(), call(), call(), call());
    let rate = (4 * calls * CALL) as f64 / started.elapsed().as_secs_f64();
    admin.queue_delete(name.as_str().into(), QueueDeleteOptions::default()).await?;
    Ok(rate)
}
