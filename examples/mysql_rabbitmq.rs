//! A shop on MySQL or MariaDB whose events go to RabbitMQ, and a consumer that books each of them once.
//!
//! ```text
//! export DATABASE_URL=mysql://user:password@host/database RABBITMQ_URL=amqps://user:password@host/%2f
//! cargo run --example mysql_rabbitmq --features mysql,rabbitmq
//! ```
//!
//! `QUEUE` names the exchange and its queue, `outbox-example` by default; they are declared if they are not there. While a
//! server is down the relay waits for it, and says so in its log on standard error.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use futures_util::StreamExt as _;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};
use outbox::mysql::{MySqlConfig, MySqlInbox, MySqlOutbox, MySqlStore, Schema};
use outbox::rabbitmq::{
    Exchange, ExchangeType, Queue, RabbitMqConfig, RabbitMqPublisher, Routing, received,
};
use outbox::{Hint, Inbox as _, NewEvent, Publisher as _, ReceivedEvent, Relay, Seen};
use serde_json::json;
use sqlx::MySqlPool;
use tokio::sync::oneshot;
use tracing_subscriber::EnvFilter;

/// For everything, with servers that answer.
const LIMIT: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // The relay logs through `tracing`: without a subscriber it would wait for a server in silence.
    // lapin, the client, calls the end of each connection an error; the relay tells of those that matter.
    let filter = EnvFilter::new("info,lapin=off");
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let setting = |name, example| {
        std::env::var(name).with_context(|| format!("{name} is not set: {example}"))
    };
    let database = setting("DATABASE_URL", "mysql://user:password@host:port/database")?;
    let rabbitmq = setting("RABBITMQ_URL", "amqps://user:password@host:port/vhost")?;
    let queue = std::env::var("QUEUE").unwrap_or_else(|_| "outbox-example".to_owned());
    run(&database, &rabbitmq, &queue).await
}

/// Places orders, relays their events, books them, and looks whether each was booked once and in order.
pub(crate) async fn run(database: &str, rabbitmq: &str, queue: &str) -> anyhow::Result<()> {
    let config = MySqlConfig::from_url(database)?;
    Schema::new(&config)?.migrate().await?;
    let pool = MySqlPool::connect(database).await?;
    sqlx::raw_sql(
        "create table if not exists orders (id varchar(50) primary key, cents bigint not null);
         create table if not exists bookings (
             number bigint auto_increment primary key, order_id varchar(50) not null, what varchar(50) not null)",
    )
    .execute(&pool)
    .await?;
    let broker = RabbitMqConfig::new(rabbitmq)
        .with_routing(Routing::one_exchange(queue))
        // Only where the publisher may declare them; by default nothing is declared.
        .with_exchange(Exchange::new(queue, ExchangeType::Topic))
        .with_queue(Queue::quorum(queue).bound_to(queue, "outbox.event.order"));
    let publisher = Arc::new(RabbitMqPublisher::new(&broker)?);
    publisher.check().await?; // declares them now, for the consumer

    // The hint lets the relay look at once when this process commits; without it, it looks twice a second.
    let hint = Hint::new();
    let outbox = MySqlOutbox::new(&config)?.with_hint(hint.clone());
    let store = Arc::new(MySqlStore::new(&config)?);
    let relay = Relay::new(store, publisher).with_hint(hint);
    let (stop, stopped) = oneshot::channel::<()>();
    let relay = tokio::spawn(relay.run(async { drop(stopped.await) }));

    println!("The shop takes three orders. Each is one transaction: the order and its events.");
    let [first, refused, second] = [(); 3].map(|()| format!("order-{:016x}", fastrand::u64(..)));
    place_order(&pool, &outbox, &first, 1250).await?;
    let reason = place_order(&pool, &outbox, &refused, 999_999).await;
    println!("  {refused} is rolled back: {}", reason.expect_err("nobody pays that much"));
    place_order(&pool, &outbox, &second, 300).await?;

    println!("\nThe relay delivers, the consumer books.");
    let consumer = Consumer { pool: pool.clone(), inbox: MySqlInbox::new(&config)? };
    let connect = async || Connection::connect(rabbitmq, ConnectionProperties::default()).await;
    let booked = async {
        consumer.run_until_killed(connect().await?, queue).await?;
        consumer.run_until_paid(connect().await?, queue, vec![first.clone(), second.clone()]).await
    };
    let ignored = tokio::time::timeout(LIMIT, booked).await;
    let ignored = ignored.context("the events do not come: see the log")??;
    ensure!(ignored > 0, "the message that was not acknowledged should have come again");
    drop(stop);
    relay.await??;

    println!("\nWhat was booked:");
    for (order, expected) in [
        (first, &["OrderPlaced.v1", "OrderPaid.v1"][..]),
        (second, &["OrderPlaced.v1", "OrderPaid.v1"]),
        (refused, &[]),
    ] {
        let booked: Vec<String> =
            sqlx::query_scalar("select what from bookings where order_id = ? order by number")
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
    pool: &MySqlPool,
    outbox: &MySqlOutbox,
    id: &str,
    cents: i64,
) -> anyhow::Result<()> {
    let mut tx = pool.begin().await?;
    sqlx::query("insert into orders (id, cents) values (?, ?)")
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
    pool: MySqlPool,
    inbox: MySqlInbox,
}

impl Consumer {
    /// Books one message and is killed before it can acknowledge it: the message comes again.
    async fn run_until_killed(&self, connection: Connection, queue: &str) -> anyhow::Result<()> {
        let mut deliveries = subscribe(&connection, queue).await?;
        let delivery = deliveries.next().await.context("the connection is gone")??;
        self.book(&received(&delivery)?).await?;
        Ok(connection.close(200, "killed".into()).await?)
    }

    /// Books messages until these orders are paid; returns how many had been booked before.
    async fn run_until_paid(
        &self,
        connection: Connection,
        queue: &str,
        mut open: Vec<String>,
    ) -> anyhow::Result<u32> {
        let mut deliveries = subscribe(&connection, queue).await?;
        let mut ignored = 0;
        while !open.is_empty() {
            let delivery = deliveries.next().await.context("the connection is gone")??;
            let event = received(&delivery)?;
            ignored += u32::from(!self.book(&event).await?);
            delivery.ack(BasicAckOptions::default()).await?;
            if event.event_type.as_deref() == Some("OrderPaid.v1") {
                open.retain(|id| event.key.as_ref() != Some(id));
            }
        }
        connection.close(200, "done".into()).await?;
        Ok(ignored)
    }

    /// Mark and effect in one transaction; `false` when the event was booked before.
    async fn book(&self, event: &ReceivedEvent) -> anyhow::Result<bool> {
        let order = event.key.as_deref().context("an event without an order")?;
        let what = event.event_type.as_deref().context("an event without a type")?;
        let tx = self.pool.begin().await?;
        let seen = self.inbox.once(tx, "bookkeeping", &event.id.to_string()).await?;
        let Seen::First(mut tx) = seen else {
            println!("  {order}: {what} comes again, and is not booked again");
            return Ok(false);
        };
        sqlx::query("insert into bookings (order_id, what) values (?, ?)")
            .bind(order)
            .bind(what)
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        println!("  {order}: {what}");
        Ok(true)
    }
}

/// One message at a time, so that one that comes again comes before its successors.
async fn subscribe(connection: &Connection, queue: &str) -> anyhow::Result<lapin::Consumer> {
    let channel = connection.create_channel().await?;
    channel.basic_qos(1, BasicQosOptions::default()).await?;
    let options = BasicConsumeOptions::default();
    let consumer = channel.basic_consume(queue.into(), "".into(), options, FieldTable::default());
    Ok(consumer.await?)
}
