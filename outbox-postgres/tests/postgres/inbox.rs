//! The consumer's side.

use std::time::Duration;

use outbox_core::{Inbox as _, InboxTable, Purged, Seen, StoreErrorKind};
use outbox_postgres::PostgresInbox;
use sqlx::postgres::PgPoolOptions;
use sqlx::{Postgres, Transaction};

use crate::common::{Outbox, run};

async fn inbox(outbox: &Outbox) -> PostgresInbox {
    outbox.execute("create table effects (event_id text)").await;
    PostgresInbox::new(&outbox.config).unwrap()
}

async fn effect(tx: &mut Transaction<'static, Postgres>, id: &str) {
    sqlx::query("insert into effects values ($1)").bind(id).execute(&mut **tx).await.unwrap();
}

/// B272, H200: sixteen tasks get the same thousand ids at once; the first try at every tenth fails after its effect, and comes
/// again.
#[tokio::test(flavor = "multi_thread")]
async fn sixteen_copies_of_a_thousand_events_have_one_effect_each() {
    let outbox = Outbox::new().await;
    let inbox = inbox(&outbox).await;
    let tasks = (0..16).map(|_| {
        let (pool, inbox) = (outbox.pool.clone(), inbox.clone());
        tokio::spawn(async move {
            for n in 0..1_000 {
                let mut fails = n % 10 == 0;
                loop {
                    let tx = pool.begin().await.unwrap();
                    let id = n.to_string();
                    let Seen::First(mut tx) = inbox.once(tx, "billing", &id).await.unwrap() else {
                        break;
                    };
                    effect(&mut tx, &id).await;
                    if !std::mem::take(&mut fails) {
                        break tx.commit().await.unwrap();
                    }
                }
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(outbox.count("effects").await, 1_000);
    assert_eq!(outbox.number("select count(distinct event_id) from effects").await, 1_000);
    assert_eq!(outbox.count("outbox_inbox").await, 1_000);
}

/// B276, H201: whatever becomes of the effect becomes of the mark.
#[tokio::test]
async fn a_mark_goes_with_its_effect() {
    let outbox = Outbox::new().await;
    let inbox = inbox(&outbox).await;
    for commits in [false, true, true] {
        let tx = outbox.pool.begin().await.unwrap();
        if let Seen::First(mut tx) = inbox.once(tx, "billing", "1").await.unwrap() {
            effect(&mut tx, "1").await;
            if commits {
                tx.commit().await.unwrap();
            }
        }
        let effects = i64::from(commits);
        assert_eq!(
            (outbox.count("effects").await, outbox.count("outbox_inbox").await),
            (effects, effects)
        );
    }
}

/// A mark that fails takes the transaction with it, and what was done in it before.
#[tokio::test]
async fn a_failed_mark_leaves_nothing_of_its_transaction() {
    let outbox = Outbox::new().await;
    let inbox = inbox(&outbox).await;
    outbox.execute("drop table outbox_inbox").await;
    let mut tx = outbox.pool.begin().await.unwrap();
    effect(&mut tx, "1").await;
    let error = inbox.once(tx, "billing", "1").await.unwrap_err();
    assert!(error.to_string().contains("outbox_inbox"), "{error}");
    assert_eq!(outbox.count("effects").await, 0);
}

/// A table that was there before: with a column for the consumer or without, with a time or without.
#[tokio::test]
async fn a_table_of_the_applications_own_keeps_the_marks() {
    let outbox = Outbox::new().await;
    outbox
        .execute(
            "create table processed_events (event_id varchar(64) primary key);
             create table \"Handled \"\"x\" (message text, seq bigserial, handler text, at timestamptz,
               unique (message, handler))",
        )
        .await;
    let own = || PostgresInbox::new(&outbox.config).unwrap();
    let one = InboxTable::of_one("billing", "processed_events", "event_id");
    let shared = InboxTable::shared("Handled \"x", "handler", "message").with_seen_at("at");
    for (table, second) in [(one, None), (shared, Some(true))] {
        let inbox = own().with_table(table).unwrap().with_source("orders").unwrap();
        let mut tx = outbox.pool.begin().await.unwrap();
        assert!(inbox.first_seen(&mut tx, "billing", "1").await.unwrap());
        assert!(!inbox.first_seen(&mut tx, "billing", "1").await.unwrap());
        assert_eq!(inbox.first_seen(&mut tx, "mailing", "1").await.ok(), second);
        tx.commit().await.unwrap();
    }
    let ids = "select string_agg(event_id, ',') from processed_events";
    assert_eq!(outbox.text(ids).await, "orders:1");
    let fresh = "\"Handled \"\"x\" where at > now() - interval '1 minute'";
    assert_eq!(outbox.count(fresh).await, 2);
}

/// H203: on such a table events would be taken for others, or be handled twice.
#[tokio::test]
async fn a_table_that_cannot_be_an_inbox_is_refused_with_the_reason() {
    let outbox = Outbox::new().await;
    outbox
        .execute(
            "create collation folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
             create table no_key (event_id text);
             create table other_key (event_id text, part int, unique (event_id, part));
             create table partial (event_id text);
             create unique index on partial (event_id) where event_id <> '';
             create table a_uuid (event_id uuid primary key);
             create table folds (event_id text collate folded primary key)",
        )
        .await;
    for (table, reason) in [
        ("no_key", "no unique key of exactly these columns: event_id"),
        ("other_key", "no unique key"),
        ("partial", "no unique key"),
        ("a_uuid", "its column event_id is of type uuid: make it text"),
        ("folds", "takes different texts as equal"),
        ("nowhere", "the table does not exist"),
    ] {
        let own = PostgresInbox::new(&outbox.config).unwrap();
        let inbox = own.with_table(InboxTable::of_one("billing", table, "event_id")).unwrap();
        let tx = outbox.pool.begin().await.unwrap();
        let error = inbox.once(tx, "billing", "1").await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{table}");
        let text = error.to_string();
        assert!(text.contains(table) && text.contains(reason), "{text}");
    }
    let own = PostgresInbox::new(&outbox.config).unwrap();
    assert!(own.with_table(InboxTable::of_one("billing", "x".repeat(64), "event_id")).is_err());
}

/// H205: a purge reads the marks that it removes, by the index, however many there are; under an old snapshot, which keeps what
/// is dead in the index, each batch goes on where the one before has ended.
#[tokio::test]
async fn a_purge_reads_what_it_removes() {
    let outbox = Outbox::new().await;
    let one = PgPoolOptions::new().max_connections(1).connect(&outbox.url).await.unwrap();
    let inbox = PostgresInbox::new(&outbox.config).unwrap().with_purge_batch(100);
    outbox
        .execute(
            "alter table outbox_inbox set (autovacuum_enabled = off);
             insert into outbox_inbox
             select 'billing', n::text, clock_timestamp() - n * interval '1 s' from generate_series(1, 50000) n;
             analyze outbox_inbox",
        )
        .await;
    let mut snapshot = outbox.session().await;
    run(&mut snapshot, "begin isolation level repeatable read; select 1 from outbox_inbox limit 1")
        .await;
    let read = "select seq_scan, idx_tup_read from pg_stat_user_tables t
                  join pg_stat_user_indexes i on i.relid = t.relid
                 where indexrelname = 'outbox_inbox_seen_at'";
    for (older_than, dead_before) in [(48_000, 0), (46_000, 2_000)] {
        sqlx::raw_sql("select pg_stat_force_next_flush()").execute(&one).await.unwrap();
        let (scans, before): (i64, i64) = sqlx::query_as(read).fetch_one(&one).await.unwrap();
        let purged = inbox.purge(&one, Duration::from_secs(older_than)).await.unwrap();
        assert!((2_000..2_060).contains(&purged.marks), "{purged:?}");
        sqlx::raw_sql("select pg_stat_force_next_flush()").execute(&one).await.unwrap();
        let (scans_after, after): (i64, i64) = sqlx::query_as(read).fetch_one(&one).await.unwrap();
        assert_eq!(scans_after, scans, "the whole table was read");
        // Each batch reads the last mark of the one before once more.
        let most = dead_before + 2_060 + 2_060 / 100;
        assert!(after - before <= most, "{} index entries for {purged:?}", after - before);
    }
    run(&mut snapshot, "rollback").await;
}

/// Of two one works, the other says so at once; and nobody who marks waits for either.
#[tokio::test]
async fn a_purge_that_finds_another_at_work_makes_way() {
    let outbox = Outbox::new().await;
    let inbox = PostgresInbox::new(&outbox.config).unwrap();
    outbox
        .execute("insert into outbox_inbox values ('billing', 'old', clock_timestamp() - interval '2 h')")
        .await;
    let mut consumer = outbox.session().await;
    run(&mut consumer, "begin; select 1 from outbox_inbox where event_id = 'old' for update").await;
    let hour = Duration::from_secs(3600);
    let stuck = {
        let (pool, inbox) = (outbox.pool.clone(), inbox.clone());
        tokio::spawn(async move { inbox.purge(&pool, hour).await.unwrap() })
    };
    outbox.wait_for_lock_waiter().await;
    let second = tokio::time::timeout(Duration::from_secs(10), inbox.purge(&outbox.pool, hour));
    assert_eq!(second.await.expect("it waits for nobody").unwrap(), Purged::new(0, true));
    let tx = outbox.pool.begin().await.unwrap();
    let Seen::First(tx) = inbox.once(tx, "billing", "new").await.unwrap() else { panic!("new") };
    tx.commit().await.unwrap();
    run(&mut consumer, "rollback").await;
    assert_eq!(stuck.await.unwrap(), Purged::new(1, false));
}

/// A table of the application's own is purged by its own column, and one without a time not at all.
#[tokio::test]
async fn a_purge_needs_a_column_for_the_time() {
    let outbox = Outbox::new().await;
    outbox.execute("create table handled (event_id text primary key, at timestamptz)").await;
    let inbox = |table| {
        let own = PostgresInbox::new(&outbox.config).unwrap();
        own.with_table(table).unwrap()
    };
    let table = InboxTable::of_one("billing", "handled", "event_id");
    let timeless = inbox(table.clone());
    let error = timeless.purge(&outbox.pool, Duration::ZERO).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured);
    assert!(error.to_string().contains("with_seen_at"), "{error}");
    let inbox = inbox(table.with_seen_at("at"));
    let tx = outbox.pool.begin().await.unwrap();
    let Seen::First(tx) = inbox.once(tx, "billing", "1").await.unwrap() else { panic!("new") };
    tx.commit().await.unwrap();
    assert_eq!(inbox.purge(&outbox.pool, Duration::ZERO).await.unwrap().marks, 1);
}

/// A role with the rights of `docs/inbox.md` marks and purges.
#[tokio::test]
async fn the_documented_rights_are_enough() {
    let outbox = Outbox::new().await;
    let inbox = PostgresInbox::new(&outbox.config).unwrap();
    for (rights, purges) in [("insert", false), ("insert, select, delete", true)] {
        let mut tx = outbox.pool.begin().await.unwrap();
        let role = format!("role_{}", uuid::Uuid::new_v4().simple());
        let grant = format!(
            "create role {role}; grant {rights} on outbox_inbox to {role}; set role {role}"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(grant)).execute(&mut *tx).await.unwrap();
        assert!(inbox.first_seen(&mut tx, "billing", "1").await.unwrap());
        tx.rollback().await.unwrap();

        let one = PgPoolOptions::new().max_connections(1).connect(&outbox.url).await.unwrap();
        let setup = format!(
            "create role {role}; grant {rights} on outbox_inbox to {role}; set role {role}"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(setup)).execute(&one).await.unwrap();
        let purged = inbox.purge(&one, Duration::ZERO).await;
        assert_eq!(purged.is_ok(), purges, "{purged:?}");
        let end = format!("reset role; drop owned by {role}; drop role {role}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(end)).execute(&one).await.unwrap();
    }
}
