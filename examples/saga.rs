//! An order passes three services, each with a database, an outbox and an inbox of its own: it is placed, its goods are
//! reserved, its card is charged. A card that is declined undoes the reservation. One service fails in the middle of a
//! step and takes it again. No server, no flags: `cargo run --example saga`.
//!
//! Nobody conducts the others: each service knows what it answers to which event, and writes effect, answer and the mark
//! that it has seen the event in one transaction. So every step happens once, however often its event comes.
//!
//! In your own program `outbox_sqlite` is `outbox::sqlite`, with the feature `sqlite`.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use outbox::{Batch, Hint, Inbox as _, NewEvent, Publisher, Relay, Seen, StoreError, async_trait};
use outbox_sqlite::{Schema, SqliteConfig, SqliteInbox, SqliteOutbox, SqliteStore};
use serde::{Deserialize, Serialize};
use sqlx::{Sqlite, SqlitePool, Transaction};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let end = run().await?;
    println!("\nWhat was seen:");
    for (order, state) in &end.orders {
        println!("  {order} is {state}");
    }
    println!("  {} of 10 pieces are left in stock, {} cents were charged", end.stock, end.charged);
    println!("  what the declined order had reserved is back, and nobody was charged twice");
    Ok(())
}

/// How the saga ended.
#[derive(Debug)]
pub(crate) struct End {
    /// Id and state of each order, by id.
    pub(crate) orders: Vec<(String, String)>,
    /// Pieces left.
    pub(crate) stock: i64,
    /// Cents taken from all cards.
    pub(crate) charged: i64,
}

/// Places three orders and waits until each is confirmed or cancelled.
pub(crate) async fn run() -> anyhow::Result<End> {
    let folder = tempfile::tempdir()?;
    let mut bus = Bus::default();
    let mut to_orders = bus.subscribe(&["stock", "payment"]);
    let mut to_stock = bus.subscribe(&["order", "payment"]);
    let mut to_payment = bus.subscribe(&["stock"]);
    let bus = Arc::new(bus);

    let tables = "create table orders (id text primary key, state text not null)";
    let orders = Service::start("orders", folder.path(), tables, &bus).await?;
    let tables = "create table stock (pieces integer not null check (pieces >= 0));
                  insert into stock values (10);
                  create table reservations (order_id text primary key, pieces integer not null)";
    let stock = Service::start("stock", folder.path(), tables, &bus).await?;
    let tables = "create table charges (order_id text not null, cents integer not null)";
    let payment = Service::start("payment", folder.path(), tables, &bus).await?;

    for (id, pieces, cents) in [("order-1", 2, 1250), ("order-2", 3, 999_999), ("order-3", 1, 399)]
    {
        place_order(&orders, id, Order { pieces, cents }).await?;
    }

    let has_failed = AtomicBool::new(false);
    let saga = async {
        // The services of a real system are programs of their own. Here all three take turns in one task.
        tokio::select! {
            ended = orders.consume_until_decided(&mut to_orders) => ended,
            ended = stock.consume(&mut to_stock, reserve_or_release) => ended,
            ended = payment.consume(&mut to_payment, async |tx: &mut Tx, event: &Delivery| {
                let answer = charge(tx, event).await?;
                if event.key == "order-3" && !has_failed.swap(true, Ordering::Relaxed) {
                    bail!("the service stops in the middle of its step");
                }
                Ok(answer)
            }) => ended,
        }
    };
    tokio::time::timeout(Duration::from_secs(30), saga)
        .await
        .context("the saga takes too long")??;

    let end = End {
        orders: sqlx::query_as("select id, state from orders order by id")
            .fetch_all(&orders.pool)
            .await?,
        stock: sqlx::query_scalar("select pieces from stock").fetch_one(&stock.pool).await?,
        charged: sqlx::query_scalar("select sum(cents) from charges")
            .fetch_one(&payment.pool)
            .await?,
    };
    for service in [orders, stock, payment] {
        service.stop().await?;
    }
    Ok(end)
}

type Tx = Transaction<'static, Sqlite>;

/// What the order service tells about an order, and the others pass on.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Order {
    pieces: i64,
    cents: i64,
}

/// Begins the saga.
async fn place_order(orders: &Service, id: &str, order: Order) -> anyhow::Result<()> {
    let mut tx = orders.outbox.begin(&orders.pool).await?;
    sqlx::query("insert into orders values (?1, 'placed')").bind(id).execute(&mut *tx).await?;
    let placed = NewEvent::json("order", id, "OrderPlaced.v1", &order)?;
    orders.outbox.append(&mut tx, &[placed]).await?;
    orders.outbox.commit(tx).await?;
    Ok(())
}

/// The order service: the last word.
async fn decide(tx: &mut Tx, event: &Delivery) -> anyhow::Result<Option<NewEvent>> {
    let state = match event.event_type.as_str() {
        "PaymentTaken.v1" => "confirmed",
        "StockRefused.v1" | "StockReleased.v1" => "cancelled",
        _ => return Ok(None),
    };
    sqlx::query("update orders set state = ?1 where id = ?2")
        .bind(state)
        .bind(&event.key)
        .execute(&mut **tx)
        .await?;
    Ok(None)
}

/// The stock service: reserves for an order, and gives back what was reserved when its payment fails.
async fn reserve_or_release(tx: &mut Tx, event: &Delivery) -> anyhow::Result<Option<NewEvent>> {
    let answer = match event.event_type.as_str() {
        "OrderPlaced.v1" => {
            let taken = "update stock set pieces = pieces - ?1 where pieces >= ?1";
            let taken = sqlx::query(taken).bind(event.order.pieces).execute(&mut **tx).await?;
            if taken.rows_affected() == 0 {
                "StockRefused.v1"
            } else {
                sqlx::query("insert into reservations values (?1, ?2)")
                    .bind(&event.key)
                    .bind(event.order.pieces)
                    .execute(&mut **tx)
                    .await?;
                "StockReserved.v1"
            }
        }
        // The compensation: not a rollback, which is over, but a change of its own that takes the first one back.
        "PaymentDeclined.v1" => {
            let released: i64 =
                sqlx::query_scalar("delete from reservations where order_id = ?1 returning pieces")
                    .bind(&event.key)
                    .fetch_one(&mut **tx)
                    .await?;
            sqlx::query("update stock set pieces = pieces + ?1")
                .bind(released)
                .execute(&mut **tx)
                .await?;
            "StockReleased.v1"
        }
        _ => return Ok(None),
    };
    Ok(Some(NewEvent::json("stock", &event.key, answer, &event.order)?))
}

/// The payment service: charges what is reserved.
async fn charge(tx: &mut Tx, event: &Delivery) -> anyhow::Result<Option<NewEvent>> {
    if event.event_type != "StockReserved.v1" {
        return Ok(None);
    }
    let answer = if event.order.cents > 10_000 {
        "PaymentDeclined.v1"
    } else {
        sqlx::query("insert into charges values (?1, ?2)")
            .bind(&event.key)
            .bind(event.order.cents)
            .execute(&mut **tx)
            .await?;
        "PaymentTaken.v1"
    };
    Ok(Some(NewEvent::json("payment", &event.key, answer, &event.order)?))
}

/// A service with its database, and the relay of its outbox.
#[derive(Debug)]
struct Service {
    name: &'static str,
    pool: SqlitePool,
    outbox: SqliteOutbox,
    inbox: SqliteInbox,
    stop: tokio::sync::oneshot::Sender<()>,
    relay: tokio::task::JoinHandle<Result<(), StoreError>>,
}

impl Service {
    async fn start(
        name: &'static str,
        folder: &Path,
        tables: &'static str,
        bus: &Arc<Bus>,
    ) -> anyhow::Result<Self> {
        let config = SqliteConfig::new(folder.join(name).with_extension("db"));
        Schema::new(&config)?.migrate().await?;
        let pool = SqlitePool::connect_with(config.connect_options()).await?;
        sqlx::raw_sql(tables).execute(&pool).await?;
        let hint = Hint::new();
        let outbox = SqliteOutbox::new(&config)?.with_hint(hint.clone());
        let relay = Relay::new(Arc::new(SqliteStore::new(&config)?), bus.clone());
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let relay = tokio::spawn(relay.with_hint(hint).run(async { drop(stopped.await) }));
        let inbox = SqliteInbox::new(&config)?;
        Ok(Self { name, pool, outbox, inbox, stop, relay })
    }

    async fn stop(self) -> anyhow::Result<()> {
        drop(self.stop);
        Ok(self.relay.await??)
    }

    /// Takes what comes, for ever. A step that fails is rolled back, and its event comes again, as from any broker.
    async fn consume(
        &self,
        deliveries: &mut UnboundedReceiver<Delivery>,
        step: impl AsyncFn(&mut Tx, &Delivery) -> anyhow::Result<Option<NewEvent>>,
    ) -> anyhow::Result<()> {
        while let Some(delivery) = deliveries.recv().await {
            while let Err(error) = self.handle(&delivery, &step).await {
                println!("    {} fails at {}: {error}", self.name, delivery.event_type);
            }
        }
        bail!("the bus is gone")
    }

    /// Mark, effect and answer in one transaction.
    async fn handle(
        &self,
        delivery: &Delivery,
        step: &impl AsyncFn(&mut Tx, &Delivery) -> anyhow::Result<Option<NewEvent>>,
    ) -> anyhow::Result<()> {
        let tx = self.outbox.begin(&self.pool).await?;
        if let Seen::First(mut tx) = self.inbox.once(tx, self.name, &delivery.id).await? {
            let answer = step(&mut tx, delivery).await?;
            self.outbox.append(&mut tx, answer.as_slice()).await?;
            self.outbox.commit(tx).await?;
        }
        Ok(())
    }

    /// Consumes as the order service, until no order is open.
    async fn consume_until_decided(
        &self,
        deliveries: &mut UnboundedReceiver<Delivery>,
    ) -> anyhow::Result<()> {
        let open = "select exists (select 1 from orders where state = 'placed')";
        while sqlx::query_scalar(open).fetch_one(&self.pool).await? {
            let delivery = deliveries.recv().await.context("the bus is gone")?;
            self.handle(&delivery, &decide).await?;
        }
        Ok(())
    }
}

/// Stands for the broker between the services.
#[derive(Debug, Default)]
struct Bus {
    /// Subscribers by destination.
    queues: HashMap<String, Vec<UnboundedSender<Delivery>>>,
}

/// What a consumer gets.
#[derive(Clone, Debug)]
struct Delivery {
    id: String,
    event_type: String,
    /// The aggregate's id: in all three services the order's.
    key: String,
    order: Order,
}

impl Bus {
    fn subscribe(&mut self, aggregate_types: &[&str]) -> UnboundedReceiver<Delivery> {
        let (queue, deliveries) = unbounded_channel();
        for aggregate_type in aggregate_types {
            let destination = format!("outbox.event.{aggregate_type}");
            self.queues.entry(destination).or_default().push(queue.clone());
        }
        deliveries
    }
}

#[async_trait]
impl Publisher for Bus {
    async fn publish(&self, batch: Batch) {
        for (index, message) in batch.messages().iter().enumerate() {
            let delivery = Delivery {
                id: message.id().to_string(),
                event_type: message.event_type().to_owned(),
                key: String::from_utf8_lossy(message.key().unwrap_or_default()).into_owned(),
                order: serde_json::from_slice(message.payload().unwrap_or_default())
                    .expect("every event of this saga carries its order"),
            };
            println!("  {} {}", delivery.key, delivery.event_type);
            for queue in self.queues.get(&**message.destination()).into_iter().flatten() {
                // At the very end nobody listens any more.
                let _ = queue.send(delivery.clone());
            }
            batch.confirm(index);
        }
    }

    async fn abandon(&self) {
        // Every message has its verdict before `publish` returns: nothing is ever left open.
    }
}
