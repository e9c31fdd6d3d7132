//! Claims: what they cost, and that nobody waits for them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_core::memory::MemoryPublisher;
use outbox_core::{Event, Position, Relay, Store as _, Watermark};
use sqlx::{Connection as _, MySqlConnection, Row as _};
use xtask::services;

use super::{both, commit, delivered, event, everything, owner, spread};
use crate::common::{Harness, MYSQL, shared};
use outbox_mysql::{MySqlStore, PayloadType};

/// Three statements for a batch of 1,000: the list, the rows, the settlement. And the plans do not depend on statistics:
/// made on the empty table, they read what they return.
#[tokio::test]
async fn a_batch_of_1000_costs_three_statements_and_reads_what_it_returns() {
    let outbox = Harness::new(&shared(MYSQL), PayloadType::LongText).await;
    let (worker, lanes) = owner(&outbox).await;
    // Prepares everything while the table is empty.
    outbox.store.claim(&everything(1)).await.unwrap();
    commit(&outbox, &[event("first")]).await;
    let first = outbox.store.claim(&everything(1_000)).await.unwrap().events;
    outbox.store.settle(&delivered(&worker, &lanes, &first)).await.unwrap();
    for _ in 0..10 {
        commit(&outbox, &spread(2_000)).await;
    }
    let of_store = |figure: &str| {
        format!(
            "select cast({figure} as signed) from performance_schema.events_statements_summary_by_user_by_event_name
              where user = '{}' and event_name = 'statement/com/Execute'",
            outbox.user
        )
    };
    let (statements, examined) = (of_store("count_star"), of_store("sum_rows_examined"));
    let (before, rows) = (outbox.number(&statements).await, outbox.number(&examined).await);
    let mut request = everything(1_000);
    request.lanes.iter_mut().for_each(|cursor| cursor.take = 62);
    let events = outbox.store.claim(&request).await.unwrap().events;
    outbox.store.settle(&delivered(&worker, &lanes, &events)).await.unwrap();
    let after = outbox.number(&statements).await;
    let rows = outbox.number(&examined).await - rows;
    assert_eq!(events.len(), 992);
    assert_eq!(after - before, 3, "statements");
    println!("{rows} rows were examined for 992 events");
    // Six an event: once listed, twice fetched (the list, the row), thrice settled (the list, the lane, the row).
    assert!(rows <= 7 * 992, "{rows} rows were examined for 992 events");
}

/// A user who may not read the table of locks has a store without a watermark, which works all the same.
#[tokio::test]
async fn without_the_right_to_see_locks_there_is_no_watermark() {
    let outbox = Harness::new(&shared(MYSQL), PayloadType::LongText).await;
    let revoke = format!("revoke select on performance_schema.* from {}@'127.0.0.1'", outbox.user);
    outbox.execute(&revoke).await;
    let store = MySqlStore::new(&outbox.config).unwrap();
    assert_eq!(store.probe(7).await.unwrap().top, 7);
    assert_eq!(store.capabilities().watermark, Watermark::None);
    commit(&outbox, &[event("a")]).await;
    assert_eq!(store.claim(&everything(10)).await.unwrap().events.len(), 1);
}

/// H001, B001, B004: what commits late is delivered within 100 ms, with a watermark (MySQL) and without (MariaDB). The best of
/// five counts, because other tests use the machine too.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_commit_is_delivered_within_100_ms() {
    let [mysql, mariadb] = both().await;
    assert_eq!(mysql.store.capabilities().watermark, Watermark::Writers);
    assert_eq!(mariadb.store.capabilities().watermark, Watermark::None);
    for outbox in [mysql, mariadb] {
        let publisher = MemoryPublisher::new();
        let relay = Relay::new(outbox.store.clone(), Arc::new(publisher.clone()));
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let relay = tokio::spawn(relay.run(async move {
            let _ = stopped.await;
        }));
        let mut best = Duration::MAX;
        for round in 0..5 {
            let mut late = outbox.transaction().await;
            late.outbox.append(&mut late.transaction, &[event("late")]).await.unwrap();
            commit(&outbox, &[event("early")]).await;
            publisher.wait_for(2 * round + 1, Duration::from_secs(20)).await;
            late.transaction.commit().await.unwrap();
            let committed = Instant::now();
            publisher.wait_for(2 * round + 2, Duration::from_secs(20)).await;
            best = best.min(committed.elapsed());
        }
        assert!(best < Duration::from_millis(100), "{best:?}");
        stop.send(()).unwrap();
        relay.await.unwrap().unwrap();
    }
}

/// H023, B048, I9: delivered rows that an open snapshot keeps alive cost a claim little, as the server counts its looks at pages.
///
/// A clean claim looks at two or three pages for each of its rows. Behind the dead rows that is a level of the tree more at
/// most. Before them the server steps over dead entries, hundreds in a page of the index, in each of the statement's passes
/// over a lane, and samples ten pages of a range for the plan: together no more than again as much. Looking each dead row
/// up would be thirty times as much.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_reader_costs_a_claim_little() {
    let mysql = services::MySql::start_with(QUIET);
    let mariadb = services::MariaDb::start_with(QUIET);
    for server in [mysql.url(), mariadb.url()] {
        let outbox = Harness::new(&server, PayloadType::LongText).await;
        let (worker, lanes) = owner(&outbox).await;
        commit(&outbox, &spread(500)).await;
        let clean = pages_of_a_claim(&outbox, 0).await;

        commit(&outbox, &spread(20_000 - 500)).await;
        let mut reader = MySqlConnection::connect(&outbox.admin_url).await.unwrap();
        let snapshot = "set session transaction isolation level repeatable read;
                        start transaction with consistent snapshot";
        sqlx::raw_sql(snapshot).execute(&mut reader).await.unwrap();
        let mut dead = 0;
        for _ in 0..20 {
            let events = outbox.store.claim(&everything(1_000)).await.unwrap().events;
            outbox.store.settle(&delivered(&worker, &lanes, &events)).await.unwrap();
            dead = dead.max(events.iter().map(Event::position).max().unwrap());
        }
        commit(&outbox, &spread(500)).await;
        let (before, behind) =
            (pages_of_a_claim(&outbox, 0).await, pages_of_a_claim(&outbox, dead).await);
        println!("{clean} pages, with 20,000 dead rows {before}, from behind them {behind}");
        assert!(behind * 2 <= clean * 3, "{behind} pages behind dead rows, {clean} without");
        assert!(before * 2 <= clean * 5, "{before} pages before dead rows, {clean} without");
        let seen = sqlx::query_scalar::<_, i64>("select count(*) from outbox");
        assert_eq!(seen.fetch_one(&mut reader).await.unwrap(), 20_000, "its snapshot");
    }
}

/// The server looks at no page of its own accord.
const QUIET: &[(&str, &str)] = &[("innodb_stats_auto_recalc", "OFF")];

/// How many pages the server looks at for a claim of 500 events behind this position.
async fn pages_of_a_claim(outbox: &Harness, from: Position) -> u64 {
    let mut request = everything(1_000);
    request.lanes.iter_mut().for_each(|cursor| cursor.from = from);
    // Prepares the statements, and tells whether something waits.
    outbox.store.claim(&request).await.unwrap();
    let before = looks(outbox).await;
    for _ in 0..10 {
        assert_eq!(outbox.store.claim(&request).await.unwrap().events.len(), 500);
    }
    (looks(outbox).await - before) / 10
}

async fn looks(outbox: &Harness) -> u64 {
    let looks = "show global status like 'Innodb_buffer_pool_read_requests'";
    let looks = sqlx::raw_sql(looks).fetch_one(&outbox.pool).await.unwrap();
    looks.get_unchecked::<String, _>(1).parse().unwrap()
}
