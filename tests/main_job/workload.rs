//! Eight writers that change orders and append events in the same transactions, and remember what they meant.

mod library_writer;
mod psql_writer;

use std::sync::Arc;

use outbox::Router;

use crate::support::database::Database;
use crate::support::event_maker::EventMaker;
use crate::support::workload::{Workload, Writer};
use library_writer::LibraryWriter;
use psql_writer::PsqlWriter;

/// Six over the library, two over `psql`.
const LIBRARY_WRITERS: u64 = 6;
const PSQL_WRITERS: u64 = 2;
/// Aggregates of the two types together; those of the second have ids that also occur in the first.
const AGGREGATES: [usize; 2] = [300, 200];
/// One transaction in this many is rolled back.
pub(crate) const ROLLED_BACK: f64 = 0.1;
/// One event in this many is a tombstone.
const TOMBSTONES: f64 = 0.02;

/// Creates the business tables and starts the writers. Returns them with the topics to which the events are routed by
/// default.
pub(crate) async fn start(database: &Database, seed: u64) -> (Workload, Vec<String>) {
    // Type names of our own, since the topics carry them and the broker may be shared.
    let run = fastrand::u32(..);
    let types = ["order", "invoice"].map(|name| format!("{name}-{run:08x}"));
    let aggregates: Arc<[(String, String)]> = types
        .iter()
        .zip(AGGREGATES)
        .flat_map(|(name, count)| (0..count).map(move |id| (name.clone(), format!("no {id}"))))
        .collect();
    create_orders(database, &aggregates).await;
    let maker =
        |number| EventMaker::new(seed, number, aggregates.clone(), Router::default(), TOMBSTONES);
    let mut writers: Vec<Box<dyn Writer>> = Vec::new();
    for number in 0..LIBRARY_WRITERS {
        let pool = database.pool.clone();
        writers.push(Box::new(LibraryWriter::new(pool, database.outbox(), maker(number))));
    }
    for number in LIBRARY_WRITERS..LIBRARY_WRITERS + PSQL_WRITERS {
        writers.push(Box::new(PsqlWriter::start(&database.url, maker(number))));
    }
    let topics = types.map(|name| Router::default().destination(&name, ""));
    (Workload::start(writers), topics.into())
}

async fn create_orders(database: &Database, aggregates: &[(String, String)]) {
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
}
