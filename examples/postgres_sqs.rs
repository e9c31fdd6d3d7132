//! A shop on PostgreSQL whose events go to a FIFO queue of Amazon SQS, and a consumer that books each of them once.
//!
//! ```text
//! export DATABASE_URL=postgres://user:password@host/database AWS_REGION=eu-central-1
//! cargo run --example postgres_sqs --features postgres,sqs
//! ```
//!
//! Region, credentials and endpoint come from the AWS SDK's own chain. For a server on this machine set `AWS_ENDPOINT_URL`
//! and any `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`. `QUEUE` names the queue, `outbox-example.fifo` by default; it is
//! created if it is not there. While a server is down the relay waits for it, and says so in its log on standard error.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use aws_config::{BehaviorVersion, SdkConfig};
use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::{Message, MessageSystemAttributeName, QueueAttributeName};
use aws_smithy_http_client::tls;
use outbox::postgres::{PostgresConfig, PostgresInbox, PostgresOutbox, PostgresStore, Schema};
use outbox::sqs::{SqsConfig, SqsPublisher, received};
use outbox::{Hint, Inbox as _, NewEvent, ReceivedEvent, Relay, Router, Seen};
use serde_json::json;
use sqlx::PgPool;
use tokio::sync::oneshot;

/// For everything, with servers that answer.
const LIMIT: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // The relay logs through `tracing`: without a subscriber it would wait for a server in silence.
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let database = std::env::var("DATABASE_URL")
        .context("DATABASE_URL is not set: postgres://user:password@host:port/database")?;
    let queue = std::env::var("QUEUE").unwrap_or_else(|_| "outbox-example.fifo".to_owned());
    run(&database, &sdk().await, &queue).await
}

/// In a program of your own `aws_config::load_defaults` is enough. It brings TLS by aws-lc; this project's is by ring.
pub(crate) async fn sdk() -> SdkConfig {
    let ring = tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring);
    let http = aws_smithy_http_client::Builder::new().tls_provider(ring).build_https();
    aws_config::defaults(BehaviorVersion::latest()).http_client(http).load().await
}

/// Places orders, relays their events, books them, and looks whether each was booked once and in order.
pub(crate) async fn run(database: &str, sdk: &SdkConfig, queue: &str) -> anyhow::Result<()> {
    let config = PostgresConfig::from_url(database)?;
    Schema::new(&config)?.migrate().await?;
    let pool = PgPool::connect(database).await?;
    sqlx::raw_sql(
        "create table if not exists orders (id text primary key, cents bigint not null);
         create table if not exists bookings (
             number bigint generated always as identity primary key, order_id text not null, what text not null)",
    )
    .execute(&pool)
    .await?;
    let sqs = Client::new(sdk);
    let fifo =
        sqs.create_queue().queue_name(queue).attributes(QueueAttributeName::FifoQueue, "true");
    let fifo = fifo.send().await.with_context(|| format!("the queue {queue} cannot be created"))?;
    let queue_url = fifo.queue_url.context("SQS names no URL of the queue")?;

    // The hint lets the relay look at once when this process commits; without it, it looks twice a second.
    let hint = Hint::new();
    let outbox = PostgresOutbox::new(&config)?.with_hint(hint.clone());
    let store = Arc::new(PostgresStore::new(&config)?);
    let publisher = Arc::new(SqsPublisher::new(sdk, &SqsConfig::new().with_require_fifo(true))?);
    let relay = Relay::new(store, publisher).with_router(Router::new(queue)?).with_hint(hint);
    let (stop, stopped) = oneshot::channel::<()>();
    let relay = tokio::spawn(relay.run(async { drop(stopped.await) }));

    println!("The shop takes three orders. Each is one transaction: the order and its events.");
    let [first, refused, second] = [(); 3].map(|()| format!("order-{:016x}", fastrand::u64(..)));
    place_order(&pool, &outbox, &first, 1250).await?;
    let reason = place_order(&pool, &outbox, &refused, 999_999).await;
    println!("  {refused} is rolled back: {}", reason.expect_err("nobody pays that much"));
    place_order(&pool, &outbox, &second, 300).await?;

    println!("\nThe relay delivers, the consumer books.");
    let consumer =
        Consumer { pool: pool.clone(), inbox: PostgresInbox::new(&config)?, sqs, queue_url };
    let paid = consumer.run_until_paid(vec![first.clone(), second.clone()]);
    tokio::time::timeout(LIMIT, paid).await.context("the events do not come: see the log")??;
    drop(stop);
    relay.await??;

    println!("\nWhat was booked:");
    for (order, expected) in [
        (first, &["OrderPlaced.v1", "OrderPaid.v1"][..]),
        (second, &["OrderPlaced.v1", "OrderPaid.v1"]),
        (refused, &[]),
    ] {
        let booked: Vec<String> =
            sqlx::query_scalar("select what from bookings where order_id = $1 order by number")
                .bind(&order)
                .fetch_all(&pool)
                .await?;
        println!("  {order}: {booked:?}");
        ensure!(booked == expected, "{order} should have been booked as {expected:?}");
    }
    Ok(())
}

/// Takes an order: its row and its events commit together, or not at all.
async fn place_order(
    pool: &PgPool,
    outbox: &PostgresOutbox,
    id: &str,
    cents: i64,
) -> anyhow::Result<()> {
    let mut tx = pool.begin().await?;
    sqlx::query("insert into orders (id, cents) values ($1, $2)")
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

/// The other service. It has a database of its own, too, which here is the same.
struct Consumer {
    pool: PgPool,
    inbox: PostgresInbox,
    sqs: Client,
    queue_url: String,
}

impl Consumer {
    /// Takes messages until these orders are paid. The first message is not deleted after its booking, as when a consumer is
    /// killed in that moment: it comes again.
    async fn run_until_paid(&self, mut open: Vec<String>) -> anyhow::Result<()> {
        let (mut first, mut has_come_again) = (None, false);
        while !(open.is_empty() && has_come_again) {
            for message in self.receive().await? {
                let event = received(&message)?;
                self.book(&event).await?;
                let Some(first) = &first else {
                    first = Some(event.id);
                    self.give_back(&message).await?;
                    continue;
                };
                has_come_again |= *first == event.id;
                self.delete(&message).await?;
                if event.event_type.as_deref() == Some("OrderPaid.v1") {
                    open.retain(|id| event.key.as_ref() != Some(id));
                }
            }
        }
        Ok(())
    }

    /// Mark and effect in one transaction, unless the event was booked before.
    async fn book(&self, event: &ReceivedEvent) -> anyhow::Result<()> {
        let order = event.key.as_deref().context("an event without an order")?;
        let what = event.event_type.as_deref().context("an event without a type")?;
        let tx = self.pool.begin().await?;
        match self.inbox.once(tx, "bookkeeping", &event.id.to_string()).await? {
            Seen::First(mut tx) => {
                sqlx::query("insert into bookings (order_id, what) values ($1, $2)")
                    .bind(order)
                    .bind(what)
                    .execute(&mut *tx)
                    .await?;
                tx.commit().await?;
                println!("  {order}: {what}");
            }
            Seen::Again(_) => println!("  {order}: {what} comes again, and is not booked again"),
        }
        Ok(())
    }

    async fn receive(&self) -> anyhow::Result<Vec<Message>> {
        let request = self.sqs.receive_message().queue_url(&self.queue_url);
        let request = request.max_number_of_messages(10).wait_time_seconds(5);
        // What the request does not ask for, SQS leaves out.
        let request = request
            .message_attribute_names("All")
            .message_system_attribute_names(MessageSystemAttributeName::All);
        Ok(request.send().await?.messages.unwrap_or_default())
    }

    async fn delete(&self, message: &Message) -> anyhow::Result<()> {
        let request = self.sqs.delete_message().queue_url(&self.queue_url);
        request.set_receipt_handle(message.receipt_handle.clone()).send().await?;
        Ok(())
    }

    /// Lets the message come again at once. A consumer that is killed lets it come when its visibility timeout ends.
    async fn give_back(&self, message: &Message) -> anyhow::Result<()> {
        let request = self.sqs.change_message_visibility().queue_url(&self.queue_url);
        let request = request.set_receipt_handle(message.receipt_handle.clone());
        request.visibility_timeout(0).send().await?;
        Ok(())
    }
}
