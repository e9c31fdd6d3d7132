//! Numbered events, and a consumer that notices what is missing.

use std::sync::Arc;

use outbox_core::{Arrival, Store as _, StoreErrorKind};
use outbox_mysql::{MySqlConfig, MySqlInbox, MySqlOutbox, Schema};
use sqlx::mysql::MySqlPoolOptions;
use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection};
use tokio::sync::Barrier;

use super::{both, event, everything, spread};
use crate::common::Harness;

const ISOLATIONS: [&str; 2] = ["read committed", "repeatable read"];

fn numbered(harness: &Harness) -> MySqlConfig {
    harness.config.clone().with_sequence(true)
}

fn writer(harness: &Harness) -> MySqlOutbox {
    MySqlOutbox::new(&numbered(harness)).unwrap()
}

/// A session of the application whose transactions have this isolation.
async fn session(harness: &Harness, isolation: &str) -> MySqlConnection {
    let mut session = MySqlConnection::connect(&harness.admin_url).await.unwrap();
    let set = format!("set session transaction isolation level {isolation}");
    sqlx::raw_sql(AssertSqlSafe(set)).execute(&mut session).await.unwrap();
    session
}

/// The headers of what is pending, in order.
async fn headers(harness: &Harness) -> Vec<String> {
    let mut events = harness.store.claim(&everything(1_000)).await.unwrap().events;
    events.sort_by_key(outbox_core::Event::position);
    events.iter().map(|event| event.headers().unwrap_or("none").to_owned()).collect()
}

fn number(n: u64) -> String {
    format!("{{\"outbox-sequence\":\"{n}\"}}")
}

/// A transaction whose snapshot is older than another's commit goes on from what that one has written, in either isolation.
#[tokio::test]
async fn an_old_snapshot_draws_and_accepts_no_number_twice() {
    for harness in both().await {
        let (writer, inbox) = (writer(&harness), MySqlInbox::new(&numbered(&harness)).unwrap());
        for (key, isolation) in ["a", "b"].into_iter().zip(ISOLATIONS) {
            for (expected, told) in [(1, Arrival::Next), (2, Arrival::Next)] {
                let mut tx = harness.pool.begin().await.unwrap();
                writer.append(&mut tx, &[event(key)]).await.unwrap();
                let arrival = inbox.arrival(&mut tx, "billing", key, Some(expected)).await;
                assert_eq!(arrival.unwrap(), told);
                tx.commit().await.unwrap();
            }
            let mut session = session(&harness, isolation).await;
            let mut old = session.begin().await.unwrap();
            let look = "select (select count(*) from outbox_sequences) + (select count(*) from outbox_arrivals)";
            sqlx::query(look).execute(&mut *old).await.unwrap();
            let mut tx = harness.pool.begin().await.unwrap();
            writer.append(&mut tx, &[event(key)]).await.unwrap();
            assert_eq!(
                inbox.arrival(&mut tx, "billing", key, Some(3)).await.unwrap(),
                Arrival::Next
            );
            tx.commit().await.unwrap();
            writer.append(&mut old, &[event(key)]).await.unwrap();
            let again = inbox.arrival(&mut old, "billing", key, Some(3)).await.unwrap();
            assert_eq!(again, Arrival::Duplicate, "{isolation}");
            let next = inbox.arrival(&mut old, "billing", key, Some(4)).await.unwrap();
            assert_eq!(next, Arrival::Next, "{isolation}");
            old.commit().await.unwrap();
        }
        let expected = [1, 2, 3, 4, 1, 2, 3, 4].map(number);
        assert_eq!(headers(&harness).await, expected);
    }
}

/// H010, H204: in one append there may be more aggregates than one statement takes.
#[tokio::test]
async fn any_number_of_aggregates_fits_into_one_append() {
    for harness in both().await {
        let writer = writer(&harness);
        for _ in 0..2 {
            let mut tx = harness.pool.begin().await.unwrap();
            writer.append(&mut tx, &spread(450)).await.unwrap();
            tx.commit().await.unwrap();
        }
        let mut expected = vec![number(1); 450];
        expected.resize(900, number(2));
        assert_eq!(headers(&harness).await, expected);
    }
}

/// Writers that meet at the same aggregates, in either isolation, each in another order: none loses.
#[tokio::test(flavor = "multi_thread")]
async fn writers_of_either_isolation_do_not_lock_each_other_out() {
    for harness in both().await {
        let harness = Arc::new(harness);
        let tasks = [["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"], ["c", "a", "b"]];
        let tasks = tasks.into_iter().zip(ISOLATIONS.iter().cycle()).map(|(keys, isolation)| {
            let harness = Arc::clone(&harness);
            tokio::spawn(async move {
                let (writer, mut session) = (writer(&harness), session(&harness, isolation).await);
                for _ in 0..15 {
                    let mut tx = session.begin().await.unwrap();
                    writer.append(&mut tx, &keys.map(event)).await.unwrap();
                    tx.commit().await.unwrap();
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        let dense = "select cast(count(*) as signed) from (
            select cast(json_value(headers, '$.\"outbox-sequence\"') as signed) as n,
                   row_number() over (partition by aggregateid order by position) as place from outbox) e
             where n = place";
        assert_eq!(harness.number(dense).await, 180);
    }
}

/// B216: the one way to lose a deadlock here: the first append about an aggregate is rolled back while others wait for it. Who
/// loses learns it from `append`, nothing of its transaction is left, and no number is missing.
#[tokio::test(flavor = "multi_thread")]
async fn who_loses_a_deadlock_at_a_number_leaves_nothing() {
    for harness in both().await {
        let mut first = harness.pool.begin().await.unwrap();
        writer(&harness).append(&mut first, &[event("a")]).await.unwrap();
        let begun = Arc::new(Barrier::new(3));
        let others = [0, 1].map(|_| {
            let (pool, writer) = (harness.pool.clone(), writer(&harness));
            let begun = Arc::clone(&begun);
            tokio::spawn(async move {
                let mut tx = pool.begin().await.unwrap();
                begun.wait().await;
                let appended = writer.append(&mut tx, &[event("a")]).await;
                if let Err(error) = &appended {
                    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
                    return false;
                }
                tx.commit().await.unwrap();
                true
            })
        });
        begun.wait().await;
        waiting(&harness, 2).await;
        first.rollback().await.unwrap();
        let mut won = 0;
        for other in others {
            won += u64::from(other.await.unwrap());
        }
        assert!(won >= 1, "one of them gets through");
        assert_eq!(headers(&harness).await, (1..=won).map(number).collect::<Vec<_>>());
    }
}

/// Returns once so many transactions of this database wait for a lock.
async fn waiting(harness: &Harness, count: i64) {
    let waiting = format!(
        "select count(*) from information_schema.innodb_trx t
           join information_schema.processlist p on p.id = t.trx_mysql_thread_id
          where p.db = '{}' and t.trx_state = 'LOCK WAIT'",
        harness.name
    );
    for _ in 0..1_000 {
        if harness.number(&waiting).await == count {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("nobody waits for a lock");
}

/// Numbers are found by their key, however many aggregates there are.
#[tokio::test]
async fn numbers_are_found_by_their_key() {
    for harness in both().await {
        let writer = writer(&harness);
        for start in (0..5_000).step_by(1_000) {
            let mut tx = harness.pool.begin().await.unwrap();
            let events: Vec<_> = (start..start + 1_000).map(|n| event(&format!("{n}"))).collect();
            writer.append(&mut tx, &events).await.unwrap();
            tx.commit().await.unwrap();
        }
        harness.execute("analyze table outbox_sequences").await;
        let mut session = session(&harness, ISOLATIONS[0]).await;
        sqlx::raw_sql("flush status").execute(&mut session).await.unwrap();
        let mut tx = session.begin().await.unwrap();
        let some: Vec<_> = (0..100).map(|n| event(&format!("{}", n * 50))).collect();
        writer.append(&mut tx, &some).await.unwrap();
        let status = "show session status where variable_name in
                      ('handler_read_next', 'handler_read_rnd_next', 'handler_read_first')";
        let read: Vec<(String, String)> = sqlx::query_as(status).fetch_all(&mut *tx).await.unwrap();
        let rows: u64 = read.iter().map(|(_, rows)| rows.parse::<u64>().unwrap()).sum();
        assert!(rows < 300, "it reads {read:?}");
    }
}

/// H086: what `docs/schema-mysql.md` grants is enough, for a writer and for a consumer.
#[tokio::test]
async fn the_documented_rights_on_the_tables_of_numbers_are_enough() {
    for harness in both().await {
        let name = &harness.name;
        let shop = format!("shop{}", &name[4..24]);
        harness
            .execute(&format!(
                "create user {shop}@'127.0.0.1' identified by 'kit';
                 grant insert on {name}.outbox to {shop}@'127.0.0.1';
                 grant insert on {name}.outbox_inbox to {shop}@'127.0.0.1';
                 grant select, insert, update on {name}.outbox_sequences to {shop}@'127.0.0.1';
                 grant select, insert, update on {name}.outbox_arrivals to {shop}@'127.0.0.1'"
            ))
            .await;
        // The database's name begins like the user's.
        let url = harness.url.replace(&format!("{}:", harness.user), &format!("{shop}:"));
        let pool = MySqlPoolOptions::new().max_connections(1).connect(&url).await.unwrap();
        let inbox = MySqlInbox::new(&numbered(&harness)).unwrap();
        for n in 1..=2 {
            let mut tx = pool.begin().await.unwrap();
            writer(&harness).append(&mut tx, &[event("a")]).await.unwrap();
            assert!(inbox.first_seen(&mut tx, "billing", &n.to_string()).await.unwrap());
            assert_eq!(
                inbox.arrival(&mut tx, "billing", "a", Some(n)).await.unwrap(),
                Arrival::Next
            );
            inbox.accept(&mut tx, "billing", "b", n).await.unwrap();
            tx.commit().await.unwrap();
        }
        assert_eq!(headers(&harness).await, [1, 2].map(number));
    }
}

/// With `sequence` the tables of numbers are looked after as the others are; without, nobody needs them.
#[tokio::test]
async fn the_tables_of_numbers_are_made_and_compared() {
    for harness in both().await {
        let schema = Schema::new(&numbered(&harness)).unwrap();
        assert_eq!(schema.check().await.unwrap(), []);
        for (change, named) in [
            ("drop table outbox_sequences", "outbox_sequences"),
            ("drop table outbox_arrivals", "outbox_arrivals"),
            ("alter table outbox_sequences modify last int not null", "outbox_sequences.last"),
            (
                "alter table outbox_arrivals modify `key` varchar(255) character set latin1 not null",
                "outbox_arrivals.key",
            ),
            ("alter table outbox_arrivals drop primary key", "outbox_arrivals"),
        ] {
            harness.execute(change).await;
            let drift = schema.check().await.unwrap();
            let is_named = |drift: &outbox_core::Drift| drift.to_string().contains(named);
            assert!(drift.iter().any(is_named), "{change}: {drift:?}");
            let plain = Schema::new(&harness.config).unwrap();
            assert_eq!(plain.check().await.unwrap(), [], "without `sequence`");
            harness.execute("drop table if exists outbox_sequences, outbox_arrivals").await;
            schema.migrate().await.unwrap();
            assert_eq!(schema.check().await.unwrap(), [], "made anew");
        }
    }
}

/// Where the tables are missing the error says what to do.
#[tokio::test]
async fn without_its_tables_the_way_out_is_named() {
    for harness in both().await {
        harness.execute("drop table outbox_sequences, outbox_arrivals").await;
        let inbox = MySqlInbox::new(&harness.config).unwrap();
        let mut tx = harness.pool.begin().await.unwrap();
        let appended = writer(&harness).append(&mut tx, &[event("a")]).await.unwrap_err();
        let told = inbox.arrival(&mut tx, "billing", "a", Some(1)).await.unwrap_err();
        for error in [appended, told] {
            assert_eq!(error.kind(), StoreErrorKind::Misconfigured);
            assert!(error.to_string().contains("run migrate"), "{error}");
        }
    }
}
