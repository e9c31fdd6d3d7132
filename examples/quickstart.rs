//! A shop on one SQLite file: orders and their events commit together, a relay delivers them, a consumer books each
//! of them once. No server, no flags: `cargo run --example quickstart`.
//!
//! In your own program `outbox_sqlite` is `outbox::sqlite`, with the feature `sqlite`.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, bail};
use outbox::{
    Batch, Failure, FailureClass, Hint, Inbox as _, NewEvent, Publisher, Relay, RetryPolicies,
    RetryPolicy, Seen, async_trait,
};
use outbox_sqlite::{Schema, SqliteConfig, SqliteInbox, SqliteOutbox, SqliteStore};
use serde_json::json;
use sqlx::SqlitePool;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let config = SqliteConfig::new(folder.path().join("shop.db"));
    Schema::new(&config)?.migrate().await?;
    let pool = SqlitePool::connect_with(config.connect_options()).await?;
    sqlx::raw_sql(
        "create table orders (id text primary key, cents integer not null);
         create table bookings (order_id text not null, what text not null)",
    )
    .execute(&pool)
    .await?;

    let hint = Hint::new();
    let outbox = SqliteOutbox::new(&config)?.with_hint(hint.clone());

    println!("The shop takes three orders. Each is one transaction: the order and its events.");
    place_order(&pool, &outbox, "order-1", 1250).await?;
    let refused = place_order(&pool, &outbox, "order-2", 999_999).await;
    println!("  order-2 is rolled back: {}", refused.expect_err("nobody pays that much"));
    place_order(&pool, &outbox, "order-3", 300).await?;

    println!("\nThe relay delivers what was committed. One acknowledgement gets lost on the way.");
    let (queue, deliveries) = unbounded_channel();
    let broker = Broker { queue, delivered: Mutex::default() };
    let retry =
        RetryPolicy::default().with_delays(Duration::from_millis(200), Duration::from_secs(1));
    let relay = Relay::new(Arc::new(SqliteStore::new(&config)?), Arc::new(broker))
        .with_retry(RetryPolicies::new(retry))
        .with_hint(hint);

    let inbox = SqliteInbox::new(&config)?;
    let mut consumer = tokio::spawn(book_each_once(pool.clone(), outbox, inbox, deliveries));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let relay = tokio::spawn(relay.run(async { drop(stopped.await) }));
    let duplicates = tokio::time::timeout(Duration::from_secs(20), &mut consumer)
        .await
        .context("the deliveries take too long")???;
    drop(stop);
    relay.await??;

    let count = |sql| sqlx::query_scalar::<_, i64>(sql).fetch_one(&pool);
    let orders = count("select count(*) from orders").await?;
    let pending = count("select count(*) from outbox").await?;
    let bookings = count("select count(*) from bookings").await?;
    println!("\nWhat was seen:");
    println!(
        "  {orders} orders were committed; of the one that was rolled back no event ever left."
    );
    println!(
        "  {} messages came, and {bookings} bookings were made: the inbox knew the id of the {duplicates} that came twice.",
        bookings + i64::from(duplicates)
    );
    println!("  {pending} events are still pending: what is delivered is deleted from the outbox.");
    Ok(())
}

/// Takes an order: its row and its events commit together, or not at all.
async fn place_order(
    pool: &SqlitePool,
    outbox: &SqliteOutbox,
    id: &str,
    cents: i64,
) -> anyhow::Result<()> {
    let mut tx = outbox.begin(pool).await?;
    sqlx::query("insert into orders (id, cents) values (?1, ?2)")
        .bind(id)
        .bind(cents)
        .execute(&mut *tx)
        .await?;
    let placed = NewEvent::json("order", id, "OrderPlaced.v1", &json!({ "cents": cents }))?;
    outbox.append(&mut tx, &[placed]).await?;
    if cents > 10_000 {
        bail!("the card is declined"); // dropping the transaction rolls it back
    }
    let paid = NewEvent::json("order", id, "OrderPaid.v1", &json!({ "cents": cents }))?;
    outbox.append(&mut tx, &[paid]).await?;
    outbox.commit(tx).await?;
    println!("  {id} is committed with two events");
    Ok(())
}

/// Stands for Kafka or RabbitMQ: hands each message to the consumer's queue, and loses the acknowledgement of the
/// first `OrderPlaced` of `order-1`, so that the relay has to send it again.
#[derive(Debug)]
struct Broker {
    queue: UnboundedSender<Delivery>,
    delivered: Mutex<HashSet<String>>,
}

/// What the consumer gets.
#[derive(Debug)]
struct Delivery {
    event_id: String,
    event_type: String,
    order_id: String,
}

#[async_trait]
impl Publisher for Broker {
    async fn publish(&self, batch: Batch) {
        for (index, message) in batch.messages().iter().enumerate() {
            let delivery = Delivery {
                event_id: message.id().to_string(),
                event_type: message.event_type().to_owned(),
                order_id: String::from_utf8_lossy(message.key().unwrap_or_default()).into_owned(),
            };
            println!("  {} {}: {}", message.destination(), delivery.order_id, delivery.event_type);
            let mut delivered = self.delivered.lock().expect("nobody panics while holding it");
            let first_time = delivered.insert(delivery.event_id.clone());
            let is_unlucky = first_time
                && delivery.order_id == "order-1"
                && delivery.event_type == "OrderPlaced.v1";
            // The consumer ends when it has seen everything; then nobody listens any more.
            let _ = self.queue.send(delivery);
            if is_unlucky {
                batch.refuse(index, Failure::new(FailureClass::Transient, "no acknowledgement"));
            } else {
                batch.confirm(index);
            }
        }
    }

    async fn abandon(&self) {
        // Every message has its verdict before `publish` returns: nothing is ever left open.
    }
}

/// Books every delivery in one transaction with the mark that it was handled. Ends after the four events and the one
/// duplicate, and returns how many duplicates there were.
async fn book_each_once(
    pool: SqlitePool,
    outbox: SqliteOutbox,
    inbox: SqliteInbox,
    mut deliveries: UnboundedReceiver<Delivery>,
) -> anyhow::Result<u32> {
    let mut duplicates = 0;
    for _ in 0..5 {
        let delivery = deliveries.recv().await.context("the broker is gone")?;
        let tx = outbox.begin(&pool).await?;
        match inbox.once(tx, "bookkeeping", &delivery.event_id).await? {
            Seen::First(mut tx) => {
                sqlx::query("insert into bookings (order_id, what) values (?1, ?2)")
                    .bind(delivery.order_id)
                    .bind(delivery.event_type)
                    .execute(&mut *tx)
                    .await?;
                tx.commit().await?;
            }
            Seen::Again(_) => {
                let (order, what) = (delivery.order_id, delivery.event_type);
                println!("    … {order}: {what} came a second time and is not booked again");
                duplicates += 1;
            }
        }
    }
    Ok(duplicates)
}
