//! The tables: created once, compared, refused, adopted.

use outbox_core::{Store as _, StoreErrorKind, Worker};
use outbox_mysql::{Keep, MySqlConfig, MySqlStore, PayloadType, Schema};

use super::{both, commit, delivered, event, everything, owner, pipeline, spread};
use crate::common::Harness;

fn schema(outbox: &Harness, change: impl FnOnce(MySqlConfig) -> MySqlConfig) -> Schema {
    Schema::new(&change(outbox.config.clone())).unwrap()
}

/// H082: any number of processes may start at once, and again beside a writer whose transaction is open.
#[tokio::test(flavor = "multi_thread")]
async fn eight_migrations_at_once_make_one_schema() {
    for outbox in both().await {
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let schema = schema(&outbox, |config| config.with_table("orders"));
                tokio::spawn(async move { schema.migrate().await })
            })
            .collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        let mut writer = outbox.transaction().await;
        writer.outbox.append(&mut writer.transaction, &[event("open")]).await.unwrap();
        schema(&outbox, |config| config).migrate().await.unwrap();
        writer.transaction.commit().await.unwrap();
        for config in [outbox.config.clone(), outbox.config.clone().with_table("orders")] {
            assert_eq!(Schema::new(&config).unwrap().check().await.unwrap(), []);
        }
    }
}

#[tokio::test]
async fn the_printed_sql_makes_the_same_tables() {
    for outbox in both().await {
        for payload in [PayloadType::LongText, PayloadType::LongBlob] {
            let table = format!("my `{}`", payload.as_sql());
            let config = outbox.config.clone().with_table(&table).with_payload(payload);
            let config = config.with_lanes(7);
            let schema = Schema::new(&config).unwrap();
            outbox.execute(&schema.sql()).await;
            outbox.execute(&schema.sql()).await;
            assert_eq!(schema.check().await.unwrap(), []);
            let lanes = MySqlStore::new(&config)
                .unwrap()
                .join(&Worker::new(pipeline(), "w"))
                .await
                .unwrap();
            assert_eq!(lanes, 7);
        }
    }
}

/// H084, B102, B108, B227, L13: each change is named.
#[tokio::test]
async fn each_drift_is_named() {
    for outbox in both().await {
        for (change, back, named) in [
            (
                "alter table outbox modify due_at datetime",
                "alter table outbox modify due_at datetime(6)",
                "outbox.due_at",
            ),
            (
                "alter table outbox add sent_at datetime",
                "alter table outbox drop sent_at",
                "outbox.sent_at",
            ),
            (
                "alter table outbox add tenant int not null",
                "alter table outbox drop tenant",
                "outbox.tenant",
            ),
            (
                "alter table outbox drop index outbox_lane",
                "alter table outbox add index outbox_lane (lane, holds, due_at, position)",
                "outbox_lane",
            ),
            (
                "alter table outbox alter attempts drop default",
                "alter table outbox alter attempts set default 0",
                "outbox.attempts",
            ),
            (
                "alter table outbox_meta engine = MyISAM",
                "alter table outbox_meta engine = InnoDB",
                "outbox_meta",
            ),
            ("drop table outbox_dead", "", "outbox_dead"),
        ] {
            outbox.execute(change).await;
            let drift = schema(&outbox, |config| config).check().await.unwrap();
            assert!(
                drift.iter().any(|drift| drift.to_string().contains(named)),
                "{change}: {drift:?}"
            );
            let error = outbox.store.join(&Worker::new(pipeline(), "w")).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Misconfigured);
            if !back.is_empty() {
                outbox.execute(back).await;
                assert_eq!(schema(&outbox, |config| config).check().await.unwrap(), [], "{back}");
            }
        }
    }
}

/// L13: with `not null` on the lane every insert would fail.
#[tokio::test]
async fn a_trigger_before_insert_does_no_harm() {
    for outbox in both().await {
        outbox
            .execute(
                "create trigger stamp before insert on outbox for each row set new.attempts = 0",
            )
            .await;
        commit(&outbox, &spread(20)).await;
        assert_eq!(outbox.store.claim(&everything(50)).await.unwrap().events.len(), 20);
        assert_eq!(schema(&outbox, |config| config).check().await.unwrap(), []);
    }
}

/// History is never published by accident. H067, H068
#[tokio::test]
async fn tables_and_copies_of_others_are_refused_until_adopted() {
    for outbox in both().await {
        outbox.execute("create table legacy (id int primary key, processed_at datetime)").await;
        let error =
            schema(&outbox, |config| config.with_table("legacy")).migrate().await.unwrap_err();
        assert!(error.to_string().contains("processed_at"), "{error}");

        commit(&outbox, &[event("a")]).await;
        outbox.execute("update outbox_meta set value = 'elsewhere' where name = 'database'").await;
        let error = outbox.store.join(&Worker::new(pipeline(), "w")).await.unwrap_err();
        assert!(error.to_string().contains("adopt"), "{error}");
        schema(&outbox, |config| config).adopt().await.unwrap();
        outbox.store.join(&Worker::new(pipeline(), "w")).await.unwrap();

        outbox.execute("drop table outbox_meta").await;
        let error = schema(&outbox, |config| config).migrate().await.unwrap_err();
        assert!(error.to_string().contains("rows from before"), "{error}");
        schema(&outbox, |config| config).adopt().await.unwrap();
        assert_eq!(outbox.store.claim(&everything(10)).await.unwrap().events.len(), 1);
    }
}

/// H065: delivered events stand in the archive, whole, with where they went.
#[tokio::test]
async fn delivered_events_can_be_kept() {
    for outbox in both().await {
        let keeping = MySqlStore::new(&outbox.config.clone().with_keep(Keep::Archive)).unwrap();
        let (worker, lanes) = owner(&outbox).await;
        commit(&outbox, &spread(5)).await;
        let events = outbox.store.claim(&everything(10)).await.unwrap().events;
        assert_eq!(keeping.settle(&delivered(&worker, &lanes, &events)).await.unwrap().missing, 0);
        let kept = "select count(*) from outbox_archive where destination = 'topic' and payload = '{}' and attempts = 0";
        assert_eq!(outbox.number(kept).await, 5);
        assert_eq!(outbox.number("select count(*) from outbox").await, 0);
    }
}
