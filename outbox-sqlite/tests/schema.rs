//! Creating the tables, and refusing what is not as it should be.

#![allow(clippy::unwrap_used, reason = "also in the helpers of these tests")]

mod common;

use common::{fixture, fixture_with, rollback_journal, worker};
use outbox_core::{Store, StoreError, StoreErrorKind};
use outbox_sqlite::{Journal, Schema, SqliteConfig, SqliteStore};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

async fn run(config: &SqliteConfig, sql: &str) {
    let options = config.connect_options().create_if_missing(true);
    let mut connection = options.connect().await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

/// What `check` finds, and what a relay is refused for.
async fn found(config: &SqliteConfig) -> String {
    let drift = Schema::new(config).unwrap().check().await.unwrap();
    let text = drift.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    let joined = SqliteStore::new(config).unwrap().join(&worker("main")).await.map(|_| ());
    if drift.iter().any(|drift| drift.hazard) {
        assert!(refused(joined).contains(&text));
    } else {
        joined.unwrap();
    }
    text
}

fn refused(result: Result<(), StoreError>) -> String {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{error}");
    error.to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_may_migrate_at_once() {
    for journal in [Journal::Wal, Journal::Rollback] {
        let folder = tempfile::tempdir().unwrap();
        let config = SqliteConfig::new(folder.path().join("test.db")).with_journal(journal);
        let starts: Vec<_> = (0..8)
            .map(|_| {
                let schema = Schema::new(&config).unwrap();
                tokio::spawn(async move { schema.migrate().await })
            })
            .collect();
        for start in starts {
            start.await.unwrap().unwrap();
        }
        assert_eq!(Schema::new(&config).unwrap().check().await.unwrap(), []);
    }
}

#[tokio::test]
async fn migrate_changes_nothing_the_second_time() {
    let fixture = fixture().await;
    fixture.append(&[common::event("a", "1")]).await;
    let identity = fixture.claim_all().await.server;
    Schema::new(&fixture.config).unwrap().migrate().await.unwrap();
    let claimed = fixture.claim_all().await;
    assert_eq!((claimed.server, claimed.events.len()), (identity, 1));
}

#[tokio::test]
async fn two_outboxes_may_live_in_one_file() {
    let first = fixture().await;
    let config = SqliteConfig::new(&first.config.file).with_table("Second_outbox").with_lanes(4);
    Schema::new(&config).unwrap().migrate().await.unwrap();
    let store = SqliteStore::new(&config).unwrap();
    assert_eq!(store.join(&worker("main")).await.unwrap(), 4);
    assert_eq!(first.store.join(&worker("main")).await.unwrap(), 16);
}

#[tokio::test]
async fn a_table_with_finished_rows_is_refused_with_the_way_out() {
    let folder = tempfile::tempdir().unwrap();
    let config = SqliteConfig::new(folder.path().join("test.db"));
    run(&config, "create table outbox (id text, aggregatetype text, \"ProcessedAt\" text)").await;
    let message = refused(Schema::new(&config).unwrap().migrate().await);
    assert!(message.contains("\"ProcessedAt\"") && message.contains("rename to"), "{message}");

    run(
        &config,
        "drop table outbox; create table outbox (id text); insert into outbox values ('1')",
    )
    .await;
    let message = refused(Schema::new(&config).unwrap().migrate().await);
    assert!(message.contains("1 rows from before"), "{message}");
    assert!(found(&config).await.contains("outbox_lanes"));
}

#[tokio::test]
async fn every_difference_is_named() {
    let fixture = fixture().await;
    assert_eq!(found(&fixture.config).await, "");
    fixture.execute("alter table outbox add column tenant text").await;
    assert_eq!(found(&fixture.config).await, "", "a nullable column more is the application's own");
    fixture
        .execute(
            "alter table outbox add column published_at integer;
             alter table outbox drop column last_error;
             alter table outbox add column last_error any;
             alter table outbox_dead drop column reason;
             update outbox_lanes set owner = null;
             delete from outbox_workers;
             alter table outbox_workers add column zone text not null;
             drop index outbox_waiting;
             drop index outbox_due;
             create index outbox_due on outbox (due_at);
             drop table outbox_inbox",
        )
        .await;
    let message = found(&fixture.config).await;
    for part in [
        "column \"published_at\" of table \"outbox\" is a finish marker",
        "column \"last_error\" of table \"outbox\" is (\"any\"",
        "column \"reason\" of table \"outbox_dead\" is missing",
        "column \"zone\" of table \"outbox_workers\" is (\"text\"",
        "index \"outbox_waiting\" is missing",
        "index \"outbox_due\" is create index",
        "table \"outbox_inbox\" is missing",
    ] {
        assert!(message.contains(part), "{part} in {message}");
    }
    assert!(!message.contains("tenant"), "{message}");
}

/// With `sequence` the tables of numbers are looked after as the others are; without, nobody needs them.
#[tokio::test]
async fn the_tables_of_numbers_are_made_and_compared() {
    let plain = fixture().await;
    let config = plain.config.clone().with_sequence(true);
    assert_eq!(found(&plain.config).await, "");
    for table in ["outbox_sequences", "outbox_arrivals"] {
        assert!(found(&config).await.contains(&format!("table \"{table}\" is missing")));
    }
    Schema::new(&config).unwrap().migrate().await.unwrap();
    assert_eq!(found(&config).await, "");
    plain
        .execute(
            "drop table outbox_sequences;
             create table outbox_sequences (aggregatetype text not null, aggregateid text not null, last text not null,
               primary key (aggregatetype, aggregateid)) strict, without rowid",
        )
        .await;
    assert!(
        found(&config).await.contains("column \"last\" of table \"outbox_sequences\" is (\"text\"")
    );
}

/// What serves operators only keeps no relay from starting. H084
#[tokio::test]
async fn an_index_for_operators_is_advice() {
    for (drop, index) in [
        ("drop index outbox_dead_id", "outbox_dead_id"),
        ("drop index outbox_archive_id", "outbox_archive_id"),
        ("drop index outbox_archive_settled", "outbox_archive_settled"),
        ("drop index outbox_inbox_seen", "outbox_inbox_seen"),
    ] {
        let fixture = fixture().await;
        fixture.execute(drop).await;
        assert!(found(&fixture.config).await.contains(index), "{index}");
        fixture.store.join(&worker("main")).await.unwrap();
    }
}

/// B024: a table that was made by hand without autoincrement, or with lanes of its own, is found.
#[tokio::test]
async fn the_key_and_the_lane_are_compared_as_written() {
    let folder = tempfile::tempdir().unwrap();
    let config = SqliteConfig::new(folder.path().join("test.db"));
    let schema = Schema::new(&config).unwrap();
    schema.migrate().await.unwrap();
    let by_hand = schema
        .sql()
        .replacen("primary key autoincrement", "primary key", 1)
        .replacen("* 263", "* 269", 1);
    run(&config, &format!("drop table outbox; {by_hand}")).await;
    let message = found(&config).await;
    assert!(message.contains("not autoincrement"), "{message}");
    assert!(message.contains("column \"lane\""), "{message}");
}

#[tokio::test]
async fn settings_that_differ_from_the_file_are_named() {
    let fixture = fixture().await;
    let config = fixture.config.clone();
    let message = found(&config.clone().with_lanes(8)).await;
    assert!(message.contains("lanes is 8, expected 16"), "{message}");
    let message = found(&rollback_journal(config)).await;
    assert!(message.contains("journal is \"wal\""), "{message}");
    fixture.execute("update outbox_meta set value = '2' where key = 'version'").await;
    let message = refused(Schema::new(&fixture.config).unwrap().migrate().await);
    assert!(message.contains("version of the tables is 2"), "{message}");
}

#[tokio::test]
async fn a_file_in_utf_16_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let config = SqliteConfig::new(folder.path().join("test.db"));
    run(&config, "pragma encoding = 'UTF-16'; create table other (a text)").await;
    assert!(refused(Schema::new(&config).unwrap().migrate().await).contains("UTF-16"));
}

#[tokio::test]
async fn a_missing_file_is_not_created_by_a_relay() {
    let folder = tempfile::tempdir().unwrap();
    let config = SqliteConfig::new(folder.path().join("missing.db"));
    let error = SqliteStore::new(&config).unwrap().join(&worker("main")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured);
    assert!(
        error.to_string().contains("missing.db") && error.to_string().contains("migrate"),
        "{error}"
    );
    assert!(!config.file.exists());
}

/// The lane is arithmetic on the key's last characters: ordinary keys spread well over any number of lanes.
#[tokio::test]
async fn ordinary_keys_spread_over_the_lanes() {
    for lanes in [3, 7, 16, 31] {
        let fixture = fixture_with(|config| config.with_lanes(lanes)).await;
        for key in [
            "'order-' || value",
            "value",
            "printf('%08d', value)",
            "value || '-A'",
            "lower(hex(randomblob(16)))",
            "null",
        ] {
            let sql = format!(
                "delete from outbox;
                 with recursive n (value) as (select 1 union all select value + 1 from n where value < 5000)
                 insert into outbox (aggregatetype, aggregateid, type) select 'order', {key}, 'Changed' from n"
            );
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&fixture.pool).await.unwrap();
            let smallest = fixture
                .number("select min(n) from (select count(*) as n from outbox group by lane)")
                .await;
            let used = fixture.number("select count(distinct lane) from outbox").await;
            assert_eq!(used, i64::from(lanes), "{key}");
            assert!(
                smallest > 5000 / i64::from(lanes) * 2 / 3,
                "{key}: {smallest} of 5000 in one of {lanes} lanes"
            );
        }
    }
}
