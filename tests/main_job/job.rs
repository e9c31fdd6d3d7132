//! A run of the main job, from PostgreSQL to Kafka.

use std::time::Duration;

use crate::support::checker::Report;
use crate::support::database::Database;
use crate::support::job::Job;
use crate::support::kafka;
use crate::support::relay_process::{BrokerAt, RelaySettings, StoreAt};
use crate::workload;

/// Events that one relay holds at most between claim and settle.
pub(crate) const WINDOW: usize = 500;

/// Prepares database, topics, writers and two relays with this lease. Returns the run with the topics.
pub(crate) async fn start(
    server_url: &str,
    bootstrap: &str,
    lease: Duration,
) -> (Job<Database>, Vec<String>) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let database = Database::create(server_url).await;
    let (workload, topics) = workload::start(&database, seed).await;
    kafka::create_topics(bootstrap, &topics).await;
    let settings = RelaySettings {
        store: StoreAt::Postgres(database.url.clone()),
        broker: BrokerAt::Kafka(bootstrap.to_owned()),
        window_events: WINDOW,
        lease,
    };
    (Job::start(database, workload, &settings), topics)
}

/// Ends the run with what these topics hold.
pub(crate) async fn finish(job: Job<Database>, bootstrap: &str, topics: &[String]) -> Report {
    job.finish(async || tokio::task::block_in_place(|| kafka::read_all(bootstrap, topics))).await
}
