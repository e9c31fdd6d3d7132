//! H037: several processes on one file.

#![allow(clippy::unwrap_used, reason = "also in the helpers of these tests")]

mod common;

use std::collections::HashMap;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{event, fixture_with, settlements, worker};
use outbox_core::{ClaimRequest, Delivered, LaneCursor, Store};
use outbox_sqlite::{Journal, SqliteConfig, SqliteOutbox, SqliteStore};
use sqlx::SqlitePool;

const FILE: &str = "OUTBOX_SQLITE_TEST_FILE";
const PROCESSES: usize = 4;
const EVENTS: usize = 200;
/// Longer than the default: SQLite's lock has no queue, and these processes do nothing but fight for it.
const PATIENCE: Duration = Duration::from_secs(60);

/// What each child process does: one event a transaction, each after a read in the same transaction. By itself, without
/// the variable that its parent sets, it has nothing to do.
#[tokio::test]
async fn child() {
    let Ok(file) = std::env::var(FILE) else { return };
    let config = SqliteConfig::new(file).with_busy_timeout(PATIENCE);
    let pool = SqlitePool::connect_with(config.connect_options()).await.unwrap();
    let outbox = SqliteOutbox::new(&config).unwrap();
    let aggregate = std::process::id().to_string();
    for number in 0..EVENTS {
        let mut tx = outbox.begin(&pool).await.unwrap();
        sqlx::query("select count(*) from outbox").execute(&mut *tx).await.unwrap();
        outbox.append(&mut tx, &[event(&aggregate, &number.to_string())]).await.unwrap();
        outbox.commit(tx).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_processes_write_while_two_relays_settle() {
    for journal in [Journal::Wal, Journal::Rollback] {
        let fixture =
            fixture_with(|config| config.with_journal(journal).with_busy_timeout(PATIENCE)).await;
        let children: Vec<_> = (0..PROCESSES)
            .map(|_| {
                Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", "child"])
                    .env(FILE, &fixture.config.file)
                    .stdout(Stdio::null())
                    .spawn()
                    .unwrap()
            })
            .collect();

        let relays = [1, 2].map(|_| {
            let config = fixture.config.clone();
            tokio::spawn(async move { relay(&config).await })
        });
        let mut seen = HashMap::<String, Vec<usize>>::new();
        for relay in relays {
            seen.extend(relay.await.unwrap());
        }
        for mut child in children {
            assert!(child.wait().unwrap().success());
        }
        assert_eq!(seen.len(), PROCESSES);
        assert!(seen.values().all(|numbers| numbers.iter().copied().eq(0..EVENTS)), "{journal:?}");
        assert_eq!(fixture.number("select count(*) from outbox").await, 0);
    }
}

/// Claims and settles half of the lanes until everything that was written has been seen by somebody.
async fn relay(config: &SqliteConfig) -> HashMap<String, Vec<usize>> {
    let store = SqliteStore::new(config).unwrap();
    let me = worker("main");
    store.join(&me).await.unwrap();
    store.acquire(&me, 8).await.unwrap();
    let owned = store.heartbeat(&me, common::LEASE).await.unwrap().lanes;
    assert_eq!(owned.len(), 8);
    let pool = SqlitePool::connect_with(config.connect_options()).await.unwrap();
    let total = i64::try_from(PROCESSES * EVENTS).unwrap();
    let mut seen = HashMap::<String, Vec<usize>>::new();
    loop {
        let top = store.probe(0).await.unwrap().top;
        let lanes = owned.iter().map(|owned| LaneCursor::new(owned.lane, 0, top, 100)).collect();
        let request = ClaimRequest::new(me.pipeline.clone(), lanes, 100, usize::MAX);
        // Drawn before the claim: when everything had been written by then, an empty claim is the end.
        let drawn = drawn(&pool).await;
        let events = store.claim(&request).await.unwrap().events;
        if events.is_empty() && drawn == total {
            return seen;
        }
        let mut verdicts = settlements(&me, &owned, &events);
        verdicts.delivered =
            events.iter().map(|event| Delivered::new(event.receipt(), "x")).collect();
        for event in &events {
            let number = std::str::from_utf8(event.payload().unwrap()).unwrap().parse().unwrap();
            seen.entry(event.aggregate_id().unwrap().to_owned()).or_default().push(number);
        }
        let settled = store.settle(&verdicts).await.unwrap();
        assert_eq!((settled.held.len(), settled.missing), (verdicts.lanes.len(), 0));
    }
}

/// The highest position ever drawn, whether its row is still there or not.
async fn drawn(pool: &SqlitePool) -> i64 {
    let drawn = sqlx::query_scalar("select seq from sqlite_sequence where name = 'outbox'");
    drawn.fetch_optional(pool).await.unwrap().unwrap_or(0)
}
