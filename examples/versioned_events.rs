//! `OrderCreated.v1` and `OrderCreated.v2` side by side, while two releases of a service are at work. No server, no
//! flags: `cargo run --example versioned_events`.
//!
//! The rules that it shows:
//!
//! - The version is part of the event type. What was written stays as it is: a change that old readers cannot read is a
//!   new type beside the old one.
//! - Consumers learn a version before any producer writes it.
//! - A consumer turns old versions into the newest one at its border, and knows one form inside.
//! - A version that it does not know is an error which names it. Skipping it would lose the event without a word.
//! - Order does not care for versions: they share the aggregate, so they come in the order of its events.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use outbox::memory::{MemoryPublisher, MemoryStore};
use outbox::{NewEvent, ReceivedEvent, Relay, Writer as _};
use serde::{Deserialize, Serialize};

/// What the release of last year writes.
#[derive(Debug, Serialize, Deserialize)]
struct OrderCreatedV1 {
    cents: i64,
}

/// What today's release writes: prices have a currency now.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OrderCreatedV2 {
    pub(crate) amount: i64,
    pub(crate) currency: String,
}

/// All that was sold before there were currencies was sold in euros.
impl From<OrderCreatedV1> for OrderCreatedV2 {
    fn from(old: OrderCreatedV1) -> Self {
        Self { amount: old.cents, currency: "EUR".into() }
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    for order in run().await? {
        println!("an order over {} {}", order.amount, order.currency);
    }
    Ok(())
}

/// Two releases create orders; returns what a consumer makes of them.
pub(crate) async fn run() -> anyhow::Result<Vec<OrderCreatedV2>> {
    let store = MemoryStore::new();
    let broker = MemoryPublisher::new();

    // A rolling deployment: both releases write.
    create(&store, "order-1", "OrderCreated.v1", &OrderCreatedV1 { cents: 1250 }).await?;
    let dollars = OrderCreatedV2 { amount: 80, currency: "USD".into() };
    create(&store, "order-2", "OrderCreated.v2", &dollars).await?;
    create(&store, "order-3", "OrderCreated.v1", &OrderCreatedV1 { cents: 399 }).await?;

    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let relay = Relay::new(Arc::new(store), Arc::new(broker.clone()));
    let relay = tokio::spawn(relay.run(async { drop(stopped.await) }));
    let messages = broker.wait_for(3, Duration::from_secs(10)).await;
    drop(stop);
    relay.await??;

    // From a real broker: `outbox::kafka::received` and its like.
    let mut received: Vec<ReceivedEvent> = messages.iter().map(ReceivedEvent::from).collect();
    received.sort_by(|left, right| left.key.cmp(&right.key));
    received.iter().map(read).collect()
}

async fn create(
    store: &MemoryStore,
    id: &str,
    event_type: &str,
    payload: &impl Serialize,
) -> anyhow::Result<()> {
    let mut transaction = store.begin();
    let event = NewEvent::json("order", id, event_type, payload)?;
    store.append(&mut transaction, &[event]).await?;
    transaction.commit();
    Ok(())
}

/// The consumer's border: every version in, the newest out.
fn read(event: &ReceivedEvent) -> anyhow::Result<OrderCreatedV2> {
    let payload = event.payload.as_deref().context("an order without a payload")?;
    Ok(match event.event_type.as_deref().context("an event without a type")? {
        "OrderCreated.v1" => serde_json::from_slice::<OrderCreatedV1>(payload)?.into(),
        "OrderCreated.v2" => serde_json::from_slice(payload)?,
        unknown => bail!("{unknown} is newer than this consumer: release it before its producers"),
    })
}
