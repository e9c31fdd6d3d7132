//! The consumer's side.

use std::time::Duration;

use outbox_core::{Inbox as _, InboxTable, Purged, Seen, StoreErrorKind};
use outbox_mysql::{MySqlInbox, PayloadType};
use sqlx::mysql::MySqlPoolOptions;
use sqlx::{AssertSqlSafe, MySql, Transaction};

use super::both;
use crate::common::{Harness, hostile_mysql};

async fn inbox(harness: &Harness) -> MySqlInbox {
    harness.execute("create table effects (event_id varchar(9)) engine = innodb").await;
    MySqlInbox::new(&harness.config).unwrap()
}

async fn effect(tx: &mut Transaction<'static, MySql>, id: &str) {
    sqlx::query("insert into effects values (?)").bind(id).execute(&mut **tx).await.unwrap();
}

/// B272, H200, H205: sixteen tasks get the same thousand ids at once; the first try at every tenth fails after its effect, and
/// comes again, as does whoever lost a deadlock.
#[tokio::test(flavor = "multi_thread")]
async fn sixteen_copies_of_a_thousand_events_have_one_effect_each() {
    for harness in both().await {
        let inbox = inbox(&harness).await;
        let tasks = (0..16).map(|_| {
            let (pool, inbox) = (harness.pool.clone(), inbox.clone());
            tokio::spawn(async move {
                for n in 0..1_000 {
                    let mut fails = n % 10 == 0;
                    loop {
                        let id = n.to_string();
                        match inbox.once(pool.begin().await.unwrap(), "billing", &id).await {
                            Ok(Seen::Again(_)) => break,
                            Ok(Seen::First(mut tx)) => {
                                effect(&mut tx, &id).await;
                                if !std::mem::take(&mut fails) {
                                    break tx.commit().await.unwrap();
                                }
                            }
                            Err(error) => {
                                assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
                            }
                        }
                    }
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        assert_eq!(harness.number("select count(*) from effects").await, 1_000);
        assert_eq!(harness.number("select count(distinct event_id) from effects").await, 1_000);
        assert_eq!(harness.number("select count(*) from outbox_inbox").await, 1_000);
    }
}

/// B276, H201: whatever becomes of the effect becomes of the mark.
#[tokio::test]
async fn a_mark_goes_with_its_effect() {
    for harness in both().await {
        let inbox = inbox(&harness).await;
        for commits in [false, true, true] {
            let tx = harness.pool.begin().await.unwrap();
            if let Seen::First(mut tx) = inbox.once(tx, "billing", "1").await.unwrap() {
                effect(&mut tx, "1").await;
                if commits {
                    tx.commit().await.unwrap();
                }
            }
            for table in ["effects", "outbox_inbox"] {
                let count = harness.number(&format!("select count(*) from {table}")).await;
                assert_eq!(count, i64::from(commits), "{table}");
            }
        }
    }
}

/// B216: who loses a deadlock at the mark gets no transaction back, in which more could be done: it would commit by
/// itself, the server has ended the transaction.
#[tokio::test]
async fn of_two_that_mark_crosswise_one_wins_and_the_other_leaves_nothing() {
    for harness in both().await {
        let inbox = inbox(&harness).await;
        let started = tokio::sync::Barrier::new(2);
        let cross = |first: &'static str, second: &'static str| {
            let (inbox, pool, started) = (&inbox, &harness.pool, &started);
            async move {
                let tx = pool.begin().await.unwrap();
                let Seen::First(mut tx) = inbox.once(tx, "billing", first).await.unwrap() else {
                    panic!("{first} is new");
                };
                effect(&mut tx, first).await;
                started.wait().await;
                match inbox.once(tx, "billing", second).await {
                    Ok(Seen::First(mut tx) | Seen::Again(mut tx)) => {
                        effect(&mut tx, second).await;
                        tx.commit().await.unwrap();
                        true
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
                        false
                    }
                }
            }
        };
        let (a, b) = tokio::join!(cross("1", "2"), cross("2", "1"));
        assert!(a != b, "one of them loses");
        assert_eq!(harness.number("select count(*) from effects").await, 2);
        assert_eq!(harness.number("select count(*) from outbox_inbox").await, 2);
    }
}

const BYTEWISE: &str =
    "character set utf8mb4 collate /*!80017 utf8mb4_0900_bin */ /*M!100200 utf8mb4_nopad_bin */";

/// A table that was there before: with a column for the consumer or without, with a time or without.
#[tokio::test]
async fn a_table_of_the_applications_own_keeps_the_marks() {
    for harness in both().await {
        let create = format!(
            "create table processed_events (event_id varbinary(64) primary key) engine = innodb;
             create table `Handled ``x` (message varchar(100) {BYTEWISE}, seq int auto_increment unique,
               handler varchar(100) {BYTEWISE}, at datetime(6), unique (message, handler)) engine = innodb"
        );
        harness.execute(&create).await;
        let own = || MySqlInbox::new(&harness.config).unwrap();
        let one = InboxTable::of_one("billing", "processed_events", "event_id");
        let shared = InboxTable::shared("Handled `x", "handler", "message").with_seen_at("at");
        for (table, second) in [(one, None), (shared, Some(true))] {
            let inbox = own().with_table(table).unwrap().with_source("orders").unwrap();
            let mut tx = harness.pool.begin().await.unwrap();
            assert!(inbox.first_seen(&mut tx, "billing", "1").await.unwrap());
            assert!(!inbox.first_seen(&mut tx, "billing", "1").await.unwrap());
            assert_eq!(inbox.first_seen(&mut tx, "mailing", "1").await.ok(), second);
            tx.commit().await.unwrap();
        }
        let found = "select count(*) from processed_events where event_id = 'orders:1'";
        assert_eq!(harness.number(found).await, 1);
        let fresh =
            "select count(*) from `Handled ``x` where at > utc_timestamp() - interval 1 minute";
        assert_eq!(harness.number(fresh).await, 2);
    }
}

/// H203: on such a table events would be taken for others, be handled twice, or keep a mark without their effect.
#[tokio::test]
async fn a_table_that_cannot_be_an_inbox_is_refused_with_the_reason() {
    for harness in both().await {
        let create = format!(
            "create table no_key (event_id varchar(36) {BYTEWISE});
             create table other_key (event_id varchar(36) {BYTEWISE}, part int, unique (event_id, part));
             create table prefix (event_id varchar(36) {BYTEWISE}, unique (event_id(8)));
             create table a_number (event_id bigint primary key);
             create table folds (event_id varchar(36) character set utf8mb4 collate utf8mb4_general_ci primary key);
             create table no_rollback (event_id varchar(36) {BYTEWISE} primary key) engine = myisam"
        );
        harness.execute(&create).await;
        for (table, reason) in [
            ("no_key", "no unique key of exactly these columns: event_id"),
            ("other_key", "no unique key"),
            ("prefix", "no unique key"),
            ("a_number", "its column event_id is of type bigint"),
            ("folds", "utf8mb4_general_ci: make it varchar(255) character set utf8mb4"),
            ("no_rollback", "make it InnoDB"),
            ("nowhere", "the table does not exist"),
        ] {
            let own = MySqlInbox::new(&harness.config).unwrap();
            let inbox = own.with_table(InboxTable::of_one("billing", table, "event_id")).unwrap();
            let tx = harness.pool.begin().await.unwrap();
            let error = inbox.once(tx, "billing", "1").await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{table}: {error}");
            let text = error.to_string();
            assert!(text.contains(table) && text.contains(reason), "{text}");
        }
        let own = MySqlInbox::new(&harness.config).unwrap();
        assert!(own.with_table(InboxTable::of_one("billing", "x".repeat(65), "event_id")).is_err());
    }
}

/// A server without strict mode would cut an id, and take the next one that begins alike for the same event.
#[tokio::test]
async fn an_id_that_its_column_would_cut_is_refused() {
    let harness = Harness::new(&hostile_mysql(), PayloadType::LongText).await;
    let create =
        format!("create table seen (event_id varchar(36) {BYTEWISE} primary key) engine = innodb");
    harness.execute(&create).await;
    let inbox = MySqlInbox::new(&harness.config).unwrap();
    let inbox = inbox.with_table(InboxTable::of_one("billing", "seen", "event_id")).unwrap();
    for (id, fits) in [("ä".repeat(36), true), ("ä".repeat(37), false)] {
        let mut tx = harness.pool.begin().await.unwrap();
        match inbox.first_seen(&mut tx, "billing", &id).await {
            Ok(first) => assert!(first && fits, "{id}"),
            Err(error) => {
                assert_eq!((error.kind(), fits), (StoreErrorKind::Rejected, false));
                assert!(
                    error.to_string().contains("37 characters, its column takes 36"),
                    "{error}"
                );
            }
        }
        tx.commit().await.unwrap();
    }
    assert_eq!(harness.number("select count(*) from seen").await, 1);
}

const HOUR: Duration = Duration::from_secs(3600);

/// H205: a purge reads the marks that it removes, by the index, however many there are.
#[tokio::test]
async fn a_purge_reads_what_it_removes() {
    for harness in both().await {
        harness
            .execute(
                "insert into outbox_inbox (consumer, event_id, seen_at)
                 with recursive n (n) as (select 1 union all select n + 1 from n where n < 1000)
                 select concat('c', m.n), n.n, utc_timestamp(6) - interval if(m.n = 1, 2, 0) hour
                   from n join n m on m.n <= 20",
            )
            .await;
        let options = harness.pool.connect_options().as_ref().clone();
        let one = MySqlPoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
        sqlx::raw_sql("flush status").execute(&one).await.unwrap();
        let inbox = MySqlInbox::new(&harness.config).unwrap().with_purge_batch(100);
        assert_eq!(inbox.purge(&one, HOUR).await.unwrap(), Purged::new(1_000, false));
        let read = "select cast(sum(variable_value) as signed) from";
        let status = "session_status where variable_name like 'handler_read%'";
        let mysql = format!("{read} performance_schema.{status}");
        let mariadb = format!("{read} information_schema.{status}");
        let read: i64 = match sqlx::query_scalar(AssertSqlSafe(mysql)).fetch_one(&one).await {
            Ok(read) => read,
            Err(_) => sqlx::query_scalar(AssertSqlSafe(mariadb)).fetch_one(&one).await.unwrap(),
        };
        assert!(read <= 3_300, "{read} rows and index entries for 1,000 marks");
        assert_eq!(harness.number("select count(*) from outbox_inbox").await, 19_000);
    }
}

/// Makes a mark of two hours ago, and a transaction that has it locked.
async fn hold_an_old_mark(harness: &Harness) -> Transaction<'static, MySql> {
    let old =
        "insert into outbox_inbox values ('billing', 'old', utc_timestamp(6) - interval 2 hour)";
    harness.execute(old).await;
    let mut consumer = harness.pool.begin().await.unwrap();
    let hold =
        "select 1 from outbox_inbox where (consumer, event_id) = ('billing', 'old') for update";
    sqlx::raw_sql(hold).execute(&mut *consumer).await.unwrap();
    consumer
}

/// Of two one works, the other says so at once; and nobody who marks waits for either.
#[tokio::test]
async fn a_purge_that_finds_another_at_work_makes_way() {
    for harness in both().await {
        let inbox = MySqlInbox::new(&harness.config).unwrap();
        let consumer = hold_an_old_mark(&harness).await;
        let stuck = {
            let (pool, inbox) = (harness.pool.clone(), inbox.clone());
            tokio::spawn(async move { inbox.purge(&pool, HOUR).await.unwrap() })
        };
        let waiting = format!(
            "select count(*) from information_schema.processlist where db = '{}' and info like 'delete%'",
            harness.name
        );
        let waits = async {
            while harness.number(&waiting).await == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), waits).await.expect("it waits for the row");
        assert_eq!(inbox.purge(&harness.pool, HOUR).await.unwrap(), Purged::new(0, true));
        let tx = harness.pool.begin().await.unwrap();
        let Seen::First(tx) = inbox.once(tx, "mailing", "new").await.unwrap() else {
            panic!("new")
        };
        tx.commit().await.unwrap();
        consumer.rollback().await.unwrap();
        assert_eq!(stuck.await.unwrap(), Purged::new(1, false));
        assert_eq!(inbox.purge(&harness.pool, HOUR).await.unwrap(), Purged::new(0, false));
    }
}

/// Who gives up a purge leaves its lock to nobody: it is given back when the batch under way has ended.
#[tokio::test]
async fn a_dropped_purge_gives_its_lock_back() {
    for harness in both().await {
        let inbox = MySqlInbox::new(&harness.config).unwrap();
        let consumer = hold_an_old_mark(&harness).await;
        let given_up =
            tokio::time::timeout(Duration::from_millis(300), inbox.purge(&harness.pool, HOUR));
        assert!(given_up.await.is_err(), "it waits for the lock on its row");
        consumer.rollback().await.unwrap();
        let freed = async {
            while inbox.purge(&harness.pool, HOUR).await.unwrap().busy {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), freed).await.expect("the lock is free");
        assert_eq!(harness.number("select count(*) from outbox_inbox").await, 0);
    }
}
