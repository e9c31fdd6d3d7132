//! Eight writers that change orders and append events in the same transactions, and remember what they meant.

mod event_maker;
mod library_writer;
mod psql_writer;

use std::sync::Arc;

use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::support::checker::Intent;
use crate::support::database::Database;
use event_maker::EventMaker;
use library_writer::LibraryWriter;
use psql_writer::PsqlWriter;

/// Six over the library, two over `psql`.
const LIBRARY_WRITERS: u64 = 6;
const PSQL_WRITERS: u64 = 2;
/// Aggregates of the two types together; those of the second have ids that also occur in the first.
const AGGREGATES: [usize; 2] = [300, 200];
/// One transaction in this many is rolled back.
pub(crate) const ROLLED_BACK: f64 = 0.1;

/// Writers at work.
pub(crate) struct Workload {
    gate: Arc<Semaphore>,
    written: watch::Receiver<usize>,
    writers: JoinSet<Vec<Intent>>,
    /// The topics to which the events are routed by default.
    pub(crate) topics: Vec<String>,
}

impl Workload {
    /// Creates the business tables. The writers start, and wait for [`release`](Self::release).
    pub(crate) async fn start(database: &Database, seed: u64) -> Self {
        let orders = Orders::create(database).await;
        let gate = Arc::new(Semaphore::new(0));
        let (counter, written) = watch::channel(0);
        let mut writers = JoinSet::new();
        for number in 0..LIBRARY_WRITERS {
            let maker = EventMaker::new(seed, number, orders.clone());
            let outbox = database.outbox();
            let writer = LibraryWriter::new(database.pool.clone(), outbox, maker);
            writers.spawn(write(Writer::Library(writer), gate.clone(), counter.clone()));
        }
        for number in LIBRARY_WRITERS..LIBRARY_WRITERS + PSQL_WRITERS {
            let maker = EventMaker::new(seed, number, orders.clone());
            let writer = PsqlWriter::start(&database.url, maker);
            writers.spawn(write(Writer::Psql(writer.into()), gate.clone(), counter.clone()));
        }
        Self { gate, written, writers, topics: orders.topics() }
    }

    /// Lets the writers make this many transactions more.
    pub(crate) fn release(&self, transactions: usize) {
        self.gate.add_permits(transactions);
    }

    /// Returns when this many transactions have ended since the start.
    pub(crate) async fn written(&mut self, transactions: usize) {
        let enough = self.written.wait_for(|written| *written >= transactions);
        enough.await.expect("no writer ends before it is told to");
    }

    /// Ends the writers and returns what they appended.
    pub(crate) async fn finish(self) -> Vec<Intent> {
        self.gate.close();
        self.writers.join_all().await.concat()
    }
}

/// The aggregates that the writers share.
#[derive(Clone)]
pub(crate) struct Orders {
    /// Type and id of each.
    aggregates: Arc<[(String, String)]>,
    types: [String; 2],
}

impl Orders {
    /// With type names of their own, since the topics carry them and the broker may be shared.
    async fn create(database: &Database) -> Self {
        let run = fastrand::u32(..);
        let types = ["order", "invoice"].map(|name| format!("{name}-{run:08x}"));
        let aggregates: Vec<(String, String)> = types
            .iter()
            .zip(AGGREGATES)
            .flat_map(|(name, count)| (0..count).map(move |id| (name.clone(), format!("no {id}"))))
            .collect();
        sqlx::query(
            "create table orders (type text, id text, version bigint not null default 0, primary key (type, id))",
        )
        .execute(&database.pool)
        .await
        .unwrap();
        let (type_column, id_column): (Vec<_>, Vec<_>) = aggregates.iter().cloned().unzip();
        sqlx::query("insert into orders (type, id) select * from unnest($1::text[], $2::text[])")
            .bind(type_column)
            .bind(id_column)
            .execute(&database.pool)
            .await
            .unwrap();
        Self { aggregates: aggregates.into(), types }
    }

    fn topics(&self) -> Vec<String> {
        self.types.iter().map(|name| format!("outbox.event.{name}")).collect()
    }
}

enum Writer {
    Library(LibraryWriter),
    Psql(Box<PsqlWriter>),
}

async fn write(
    mut writer: Writer,
    gate: Arc<Semaphore>,
    counter: watch::Sender<usize>,
) -> Vec<Intent> {
    let mut intents = Vec::new();
    while let Ok(permit) = gate.acquire().await {
        permit.forget();
        intents.extend(match &mut writer {
            Writer::Library(writer) => writer.transaction().await,
            Writer::Psql(writer) => writer.transaction().await,
        });
        counter.send_modify(|written| *written += 1);
    }
    intents
}
