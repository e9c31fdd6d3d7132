//! The consumer's side.

use outbox_core::{Inbox as _, InboxTable, Seen, StoreErrorKind};
use outbox_postgres::PostgresInbox;
use sqlx::{Postgres, Transaction};

use crate::common::Outbox;

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
