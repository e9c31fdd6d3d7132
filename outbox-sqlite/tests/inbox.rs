//! The consumer's side.

#![allow(clippy::unwrap_used, reason = "also in the helpers of these tests")]

mod common;

use std::time::Duration;

use common::{Fixture, fixture, fixture_with};
use outbox_core::{Inbox as _, InboxTable, Seen, StoreErrorKind};
use outbox_sqlite::SqliteInbox;
use sqlx::{Sqlite, Transaction};

async fn inbox(fixture: &Fixture) -> SqliteInbox {
    fixture.execute("create table effects (event_id text)").await;
    SqliteInbox::new(&fixture.config).unwrap()
}

async fn effect(tx: &mut Transaction<'static, Sqlite>, id: &str) {
    let insert = sqlx::query("insert into effects values (?1)").bind(id.to_owned());
    insert.execute(&mut **tx).await.unwrap();
}

/// B272, H200: sixteen tasks get the same thousand ids at once; the first try at every tenth fails after its effect, and comes
/// again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_copies_of_a_thousand_events_have_one_effect_each() {
    // SQLite's lock has no queue.
    let fixture = fixture_with(|config| config.with_busy_timeout(Duration::from_secs(60))).await;
    let inbox = inbox(&fixture).await;
    let tasks = (0..16).map(|_| {
        let (pool, config, inbox) = (fixture.pool.clone(), fixture.config.clone(), inbox.clone());
        tokio::spawn(async move {
            let outbox = outbox_sqlite::SqliteOutbox::new(&config).unwrap();
            for n in 0..1_000 {
                let mut fails = n % 10 == 0;
                loop {
                    let tx = outbox.begin(&pool).await.unwrap();
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
    assert_eq!(fixture.number("select count(*) from effects").await, 1_000);
    assert_eq!(fixture.number("select count(distinct event_id) from effects").await, 1_000);
    assert_eq!(fixture.number("select count(*) from outbox_inbox").await, 1_000);
}

/// B276, H201: whatever becomes of the effect becomes of the mark.
#[tokio::test]
async fn effect_and_mark_commit_together() {
    let fixture = fixture().await;
    let inbox = inbox(&fixture).await;
    for commits in [false, true, true] {
        let tx = fixture.outbox.begin(&fixture.pool).await.unwrap();
        if let Seen::First(mut tx) = inbox.once(tx, "billing", "1").await.unwrap() {
            effect(&mut tx, "1").await;
            if commits {
                tx.commit().await.unwrap();
            }
        }
        assert_eq!(fixture.number("select count(*) from effects").await, i64::from(commits));
        assert_eq!(fixture.number("select count(*) from outbox_inbox").await, i64::from(commits));
    }
}

/// A table that was there before: with a column for the consumer or without, with a time or without.
#[tokio::test]
async fn a_table_of_the_applications_own_keeps_the_marks() {
    let fixture = fixture().await;
    fixture
        .execute(
            "create table processed_events (event_id varchar(36) primary key);
             create table handled (seq integer primary key, message text, handler text, at integer,
               unique (message, handler))",
        )
        .await;
    let own = || SqliteInbox::new(&fixture.config).unwrap();
    let one = InboxTable::of_one("billing", "processed_events", "event_id");
    let shared = InboxTable::shared("handled", "handler", "message").with_seen_at("at");
    for (table, second) in [(one, None), (shared, Some(true))] {
        let inbox = own().with_table(table).unwrap().with_source("orders").unwrap();
        let mut tx = fixture.outbox.begin(&fixture.pool).await.unwrap();
        assert!(inbox.first_seen(&mut tx, "billing", "1").await.unwrap());
        assert!(!inbox.first_seen(&mut tx, "billing", "1").await.unwrap());
        assert_eq!(inbox.first_seen(&mut tx, "mailing", "1").await.ok(), second);
        tx.commit().await.unwrap();
    }
    let found = "select count(*) from processed_events where event_id = 'orders:1'";
    assert_eq!(fixture.number(found).await, 1);
    let fresh = "select count(*) from handled where at > (unixepoch() - 60) * 1000000";
    assert_eq!(fixture.number(fresh).await, 2);
}

/// H203: on such a table events would be taken for others, or be handled twice.
#[tokio::test]
async fn a_table_that_cannot_be_an_inbox_is_refused_with_the_reason() {
    let fixture = fixture().await;
    fixture
        .execute(
            "create table no_key (event_id text);
             create table other_key (event_id text, part int, unique (event_id, part));
             create table partial (event_id text);
             create unique index partial_key on partial (event_id) where event_id <> '';
             create table a_number (event_id integer primary key);
             create table folds (event_id text collate nocase primary key)",
        )
        .await;
    for (table, reason) in [
        ("no_key", "no unique key, compared byte for byte, of exactly these columns: event_id"),
        ("other_key", "no unique key"),
        ("partial", "no unique key"),
        ("a_number", "its column event_id is of type INTEGER: make it text"),
        ("folds", "no unique key, compared byte for byte"),
        ("nowhere", "mark an event in"),
    ] {
        let own = SqliteInbox::new(&fixture.config).unwrap();
        let inbox = own.with_table(InboxTable::of_one("billing", table, "event_id")).unwrap();
        let tx = fixture.outbox.begin(&fixture.pool).await.unwrap();
        let error = inbox.once(tx, "billing", "1").await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{table}");
        let text = error.to_string();
        assert!(text.contains(table) && text.contains(reason), "{text}");
    }
    let own = SqliteInbox::new(&fixture.config).unwrap();
    assert!(own.with_table(InboxTable::of_one("billing", "a b", "event_id")).is_err());
}
