//! Every store with every publisher on real servers, through faults; and from a service's commit to a consumer's effect.
//!
//! `OUTBOX_PAIRS=full` takes all twelve pairs and 5,000 events for each; unset, it is a sample: each store and each publisher
//! at least once.

#![allow(clippy::unwrap_used, reason = "all of this is test code, helpers included")]

#[path = "../support/mod.rs"]
mod support;

mod consumer;
mod ledger;
mod once;
mod pair;
mod servers;
mod writer;

use consumer::Consumer;
use ledger::{MySqlLedger, PostgresLedger};
use pair::Pair;
use servers::{BrokerKind, StoreKind};
use support::relay_process::{BrokerAt, RelaySettings};
use support::{alone, beside_others, process, server};

const STORES: [StoreKind; 4] =
    [StoreKind::Postgres, StoreKind::MySql, StoreKind::MariaDb, StoreKind::Sqlite];
const BROKERS: [BrokerKind; 3] = [BrokerKind::Kafka, BrokerKind::RabbitMq, BrokerKind::Sqs];

/// Nothing lost, nothing invented, in order, and repeats only of what was in flight at a fault: a relay that is killed, one
/// that is frozen beyond its lease, a broker and a database that restart.
#[test]
fn every_store_with_every_publisher_keeps_the_promises_through_faults() {
    let events = if full() { 5_000 } else { 1_000 };
    for pair in pairs() {
        alone(async move { pair.run(events).await.assert_clean() });
    }
}

/// All twelve, or one for each store: the publishers go round, from one that chance picks.
fn pairs() -> Vec<Pair> {
    let first = fastrand::usize(..BROKERS.len());
    let round = |(at, store): (usize, StoreKind)| Pair {
        store,
        broker: BROKERS[(first + at) % BROKERS.len()],
    };
    let all = |store| BROKERS.map(move |broker| Pair { store, broker });
    match full() {
        true => STORES.into_iter().flat_map(all).collect(),
        false => STORES.into_iter().enumerate().map(round).collect(),
    }
}

/// From PostgreSQL over Kafka to PostgreSQL: the consumer's balances are the committed ones, to the cent, and each event has
/// one effect.
#[test]
fn commits_on_postgres_have_one_effect_each_behind_kafka() {
    let database = server("OUTBOX_TEST_POSTGRES_URL");
    let broker = BrokerAt::Kafka(server("OUTBOX_TEST_KAFKA_BOOTSTRAP"));
    beside_others(once::run::<PostgresLedger>(&database, broker, kills()));
}

/// As before, from MySQL over RabbitMQ to MySQL.
#[test]
fn commits_on_mysql_have_one_effect_each_behind_rabbitmq() {
    let database = server("OUTBOX_TEST_MYSQL_URL");
    let broker = BrokerAt::RabbitMq(server("OUTBOX_TEST_RABBITMQ_URL"));
    beside_others(once::run::<MySqlLedger>(&database, broker, kills()));
}

fn kills() -> usize {
    if full() { 20 } else { 6 }
}

/// The role of the relay processes that the tests here start; does nothing in a test run.
#[test]
fn relay_process() {
    process::serve_if_asked::<RelaySettings>();
}

/// The role of the consumer processes.
#[test]
fn consumer_process() {
    process::serve_if_asked::<Consumer>();
}

fn full() -> bool {
    match std::env::var("OUTBOX_PAIRS").as_deref() {
        Ok("full") => true,
        Ok(other) => panic!("OUTBOX_PAIRS is {other:?}: it may be `full` or unset"),
        Err(_) => false,
    }
}
