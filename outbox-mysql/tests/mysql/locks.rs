//! Locks: a claim takes none, and no writer waits for one of the relay's.

use std::time::Duration;

use outbox_core::{Event, Store as _};
use outbox_mysql::{MySqlStore, PayloadType};
use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection};
use xtask::services;

use super::{both, commit, delivered, event, everything, owner, spread};
use crate::common::Harness;

/// The server counts row locks, and reads of its own take none; sessions that set nothing lock what they read.
const COUNTING: &[(&str, &str)] = &[
    ("innodb_monitor_enable", "lock_rec_lock_requests"),
    ("innodb_stats_auto_recalc", "OFF"),
    ("transaction_isolation", "SERIALIZABLE"),
    ("autocommit", "0"),
];

/// H019, H032, B027: as the server counts them, and even where a plain read of the application's takes a lock on each row.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_takes_no_row_lock() {
    let mysql = services::MySql::start_with(COUNTING);
    let mariadb = services::MariaDb::start_with(COUNTING);
    for server in [mysql.url(), mariadb.url()] {
        let outbox = Harness::new(&server, PayloadType::LongText).await;
        commit(&outbox, &spread(1_000)).await;
        outbox.execute("update outbox set attempts = 1, due_at = utc_timestamp(6) limit 10").await;
        let requested = "select cast(count as signed) from information_schema.innodb_metrics
                          where name = 'lock_rec_lock_requests'";
        let before = outbox.number(requested).await;
        for _ in 0..10 {
            let events = outbox.store.claim(&everything(1_000)).await.unwrap().events;
            assert_eq!(events.len(), 1_000);
        }
        assert_eq!(outbox.number(requested).await, before, "row locks of ten claims");

        assert_eq!(outbox.number("select count(*) from outbox").await, 1_000);
        let locked = outbox.number(requested).await - before;
        assert!(locked >= 1_000, "the server counted {locked} locks of a read of 1,000 rows");
    }
}

/// H020, H032, B028: a settlement stands still with every lock that it takes, and applications append to its lanes and
/// aggregates without a wait, under the isolation that servers have by default and under the strictest. The newest of its
/// events is gone, where a stricter session than the relay's would lock the end of the table.
#[tokio::test]
async fn writers_do_not_wait_for_the_relay() {
    for outbox in both().await {
        let config = outbox.config.clone().with_lock_timeout(Duration::from_secs(60));
        let config = config.with_statement_timeout(Duration::from_secs(60));
        let (worker, lanes) = owner(&outbox).await;
        for isolation in ["repeatable read", "serializable"] {
            let store = MySqlStore::new(&config).unwrap();
            commit(&outbox, &spread(1_000)).await;
            commit(&outbox, &[event("gone")]).await;
            let mut events = store.claim(&everything(2_000)).await.unwrap().events;
            // As a settlement goes through them.
            events.sort_by_key(|event| (event.lane(), event.position()));
            let [.., before_last, last] = &events[..] else { panic!("there are events") };
            assert_ne!(last.aggregate_id(), Some("gone"));
            outbox.execute("delete from outbox where aggregateid = 'gone'").await;
            let mut operator = session(&outbox, "read committed").await;
            run(&mut operator, &format!("begin; {}", locking(last, ""))).await;
            let before_last = locking(before_last, "skip locked");
            let settlements = delivered(&worker, &lanes, &events);
            let settled = tokio::spawn(async move { store.settle(&settlements).await });
            let mut observer = session(&outbox, "read committed").await;
            while run(&mut observer, &before_last).await == 1 {
                assert!(!settled.is_finished(), "the settlement did not wait");
                tokio::task::yield_now().await;
            }

            let mut application = session(&outbox, isolation).await;
            run(&mut application, "set innodb_lock_wait_timeout = 1").await;
            let mut tx = application.begin().await.unwrap();
            let writer = outbox.writer();
            for _ in 0..2 {
                writer.append(&mut tx, &spread(500)).await.expect("nobody holds up an append");
            }
            writer.append(&mut tx, &[event("new")]).await.unwrap();
            tx.commit().await.unwrap();
            run(&mut operator, "rollback").await;
            assert_eq!(settled.await.unwrap().unwrap().missing, 1, "{isolation}");
        }
    }
}

/// Locks this event's row.
fn locking(event: &Event, how: &str) -> String {
    let position = event.position();
    format!("select position from outbox where position = {position} for update {how}")
}

async fn session(outbox: &Harness, isolation: &str) -> MySqlConnection {
    let mut session = MySqlConnection::connect(&outbox.admin_url).await.unwrap();
    run(&mut session, &format!("set session transaction isolation level {isolation}")).await;
    session
}

/// How many rows the statements gave.
async fn run(session: &mut MySqlConnection, sql: &str) -> usize {
    sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(session).await.unwrap().len()
}
