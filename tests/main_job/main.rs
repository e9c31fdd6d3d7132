//! The main job on real servers: from business transactions on PostgreSQL to Kafka, through two relay processes.
//!
//! `OUTBOX_MAIN_JOB=full` makes it large (50,000 transactions and the default lease); unset, it is a sample.

#![allow(clippy::unwrap_used, reason = "all of this is test code, helpers included")]

#[path = "../support/mod.rs"]
mod support;

mod costs;
mod example;
mod job;
mod late_commits;
mod outage;
mod workload;

use std::time::Duration;

use job::WINDOW;
use support::relay_process::RelaySettings;
use support::{alone, process, server};
use xtask::services::{Kafka, Postgres, PostgresVersion};

/// Both relays together hold at most this many events in flight.
const BOTH_WINDOWS: usize = 2 * WINDOW;

/// Covers B001, B008, B009, B013, B015, B030, B042, B053, B056, B079, B085, B088; H001, H006, H008, H011, H021, H024,
/// H027, H035, H046, H166.
#[test]
fn crashes_a_freeze_and_a_broker_restart_lose_nothing_and_keep_every_order() {
    let (transactions, lease) = match full() {
        true => (50_000, Duration::from_secs(30)),
        false => (6_000, Duration::from_secs(6)),
    };
    let portion = transactions / 6;
    alone(async {
        let postgres = Postgres::start(PostgresVersion::V15);
        let kafka = Kafka::start();
        let (mut job, topics) = job::start(&postgres.url(), &kafka.bootstrap(), lease).await;
        job.write(portion).await;
        job.write_through("kill", WINDOW, portion, async |job| {
            job.relays[0].kill9();
            job.relays[0].start_again();
        })
        .await;
        job.write_through("freeze", WINDOW, portion, async |job| {
            job.relays[1].freeze();
            tokio::time::sleep(lease + lease / 2).await;
            job.relays[1].thaw();
        })
        .await;
        job.write_through("broker restart", BOTH_WINDOWS, portion, async |_| {
            tokio::task::block_in_place(|| kafka.restart());
        })
        .await;
        job.write_through("kill with much in flight", WINDOW, portion, async |job| {
            kafka.freeze();
            job.pending(portion / 4).await;
            job.relays[0].kill9();
            kafka.thaw();
            job.relays[0].start_again();
        })
        .await;
        job.write(transactions - 5 * portion).await;
        job::finish(job, &kafka.bootstrap(), &topics).await.assert_clean();
    });
}

/// A clean stop is no fault: the relays are restarted in turn. Covers B031, B079, B087, B088, B091; H001, H171.
#[test]
fn without_faults_every_event_arrives_exactly_once() {
    let (transactions, restarts) = if full() { (50_000, 20) } else { (4_000, 4) };
    let portion = transactions / (restarts + 1);
    alone(async {
        let postgres = server("OUTBOX_TEST_POSTGRES_URL");
        let kafka = server("OUTBOX_TEST_KAFKA_BOOTSTRAP");
        let (mut job, topics) = job::start(&postgres, &kafka, Duration::from_secs(30)).await;
        for restart in 0..restarts {
            job.write_through("clean stop", 0, portion, async |job| {
                let relay = &mut job.relays[restart % 2];
                tokio::task::block_in_place(|| relay.stop());
                relay.start_again();
            })
            .await;
        }
        job.write(transactions - restarts * portion).await;
        job::finish(job, &kafka, &topics).await.assert_clean();
    });
}

/// The role of the relay processes that the tests here start; does nothing in a test run.
#[test]
fn relay_process() {
    process::serve_if_asked::<RelaySettings>();
}

fn full() -> bool {
    match std::env::var("OUTBOX_MAIN_JOB").as_deref() {
        Ok("full") => true,
        Ok(other) => panic!("OUTBOX_MAIN_JOB is {other:?}: it may be `full` or unset"),
        Err(_) => false,
    }
}
