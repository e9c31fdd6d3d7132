//! The upkeep of the archive: partitions are made ahead of time, and go when all their rows are old.

use std::time::Duration;

use outbox_core::{Period, Retention, Store as _, StoreErrorKind, Upkeep};
use outbox_mysql::{Archive, Keep, MySqlStore};

use super::{both, commit, delivered, event, everything, owner};
use crate::common::Harness;

const DAY: Duration = Duration::from_secs(86_400);

/// Up to three days are kept, in partitions of a day, two ahead.
fn days() -> Retention {
    Retention::new(DAY * 3).with_ahead(2)
}

async fn maintain(outbox: &Harness, retention: Retention) -> Upkeep {
    Archive::new(&outbox.config).unwrap().maintain(&retention).await.unwrap()
}

/// Archived rows that were delivered so many days ago.
async fn archived(outbox: &Harness, days: &[u32]) {
    for days in days {
        outbox
            .execute(&format!(
                "insert into outbox_archive (position, id, aggregatetype, type, created_at, lane, attempts, settled_at)
                 values (1, uuid(), 't', 'e{days}', now(), 0, 0, now() - interval {days} day)"
            ))
            .await;
    }
}

/// Partitions by hand, each up to so many days ago.
async fn partitions(outbox: &Harness, parts: &[(&str, u32)]) {
    let mut all = String::new();
    for (name, days) in parts {
        let end = "select cast(unix_timestamp(date(utc_timestamp())) as signed)";
        let end = outbox.number(end).await - i64::from(*days) * 86_400;
        all.push_str(&format!("partition {name} values less than ({end}), "));
    }
    outbox
        .execute(&format!(
            "alter table outbox_archive reorganize partition rest into ({all}partition rest values less than maxvalue)"
        ))
        .await;
}

#[tokio::test]
async fn a_delivered_event_goes_to_the_partition_of_its_day() {
    for outbox in both().await {
        let upkeep = maintain(&outbox, days()).await;
        assert_eq!((upkeep.made.len(), upkeep.dropped.len(), upkeep.busy), (3, 0, false));
        let store = MySqlStore::new(&outbox.config.clone().with_keep(Keep::Archive)).unwrap();
        commit(&outbox, &[event("a")]).await;
        let (worker, lanes) = owner(&outbox).await;
        let claimed = store.claim(&everything(10)).await.unwrap();
        store.settle(&delivered(&worker, &lanes, &claimed.events)).await.unwrap();
        let (today, tomorrow) = (&upkeep.made[0], &upkeep.made[1]);
        let found = format!("select count(*) from outbox_archive partition ({today}, {tomorrow})");
        assert_eq!(outbox.number(&found).await, 1);
        assert_eq!(maintain(&outbox, days()).await.dropped, [""; 0]);
    }
}

#[tokio::test]
async fn a_partition_goes_when_all_its_rows_are_older_than_they_are_kept() {
    for outbox in both().await {
        partitions(&outbox, &[("old", 4), ("young", 2)]).await;
        archived(&outbox, &[30, 5, 3]).await;
        let upkeep = maintain(&outbox, days()).await;
        assert_eq!(upkeep.dropped, ["old"]);
        assert_eq!(outbox.number("select count(*) from outbox_archive").await, 1);
        assert_eq!(outbox.number("select count(*) from outbox_archive where type = 'e3'").await, 1);
        assert_eq!(maintain(&outbox, days()).await, Upkeep::default(), "all was done");
    }
}

/// What was delivered before there were partitions, or after they had run out.
#[tokio::test]
async fn rows_in_no_partition_move_to_the_first_that_is_made() {
    for outbox in both().await {
        archived(&outbox, &[2, 1, 0]).await;
        let upkeep = maintain(&outbox, days()).await;
        let (today, tomorrow) = (&upkeep.made[0], &upkeep.made[1]);
        let found = format!("select count(*) from outbox_archive partition ({today}, {tomorrow})");
        assert_eq!(outbox.number(&found).await, 3);
    }
}

/// Settlements would wait while they are moved.
#[tokio::test]
async fn more_rows_than_can_be_moved_at_once_are_left_to_an_operator() {
    for outbox in both().await {
        outbox
            .execute(
                "insert into outbox_archive (position, id, aggregatetype, type, created_at, lane, attempts)
                 with recursive n as (select 1 as n union all select n + 1 from n where n < 500)
                 select a.n, uuid(), 't', 'e', now(), 0, 0 from n a, n b where b.n <= 201",
            )
            .await;
        let archive = Archive::new(&outbox.config).unwrap();
        let error = archive.maintain(&days()).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Misconfigured);
        // The way out that the error tells.
        let text = error.to_string();
        let (_, way) = text.split_once("run: ").unwrap();
        outbox.execute(way).await;
        assert_eq!(archive.maintain(&days()).await.unwrap(), Upkeep::default());
    }
}

/// Settlements wait behind a change that waits, so it does not wait long.
#[tokio::test]
async fn a_partition_that_a_transaction_reads_is_left_for_the_next_time() {
    for outbox in both().await {
        maintain(&outbox, days()).await;
        let config = outbox.config.clone().with_lock_timeout(Duration::from_secs(600));
        let archive = Archive::new(&config).unwrap();
        let week = days().with_ahead(7);
        let mut reader = outbox.transaction().await;
        sqlx::query("select 1 from outbox_archive")
            .fetch_all(&mut *reader.transaction)
            .await
            .unwrap();
        let upkeep =
            tokio::time::timeout(DAY / 1440, archive.maintain(&week)).await.unwrap().unwrap();
        assert_eq!((upkeep.made.len(), upkeep.busy), (0, true));
        reader.transaction.rollback().await.unwrap();
        let upkeep = archive.maintain(&week).await.unwrap();
        assert_eq!((upkeep.made.len(), upkeep.busy), (5, false));
    }
}

#[tokio::test]
async fn of_many_upkeeps_at_once_each_partition_is_made_once_and_none_fails() {
    for outbox in both().await {
        let many = (0..8).map(|_| maintain(&outbox, days()));
        let upkeeps = futures_util::future::join_all(many).await;
        let mut made: Vec<String> = upkeeps.into_iter().flat_map(|upkeep| upkeep.made).collect();
        made.extend(maintain(&outbox, days()).await.made);
        assert_eq!(made.len(), 3, "{made:?}");
    }
}

#[tokio::test]
async fn weeks_begin_on_monday_and_months_on_their_first() {
    for outbox in both().await {
        for (period, first) in [(Period::Week, "weekday"), (Period::Month, "dayofmonth")] {
            outbox.execute("drop table outbox_archive").await;
            outbox_mysql::Schema::new(&outbox.config).unwrap().migrate().await.unwrap();
            let upkeep = maintain(&outbox, days().with_period(period)).await;
            assert_eq!(upkeep.made.len(), 3);
            for name in upkeep.made {
                let day = format!("str_to_date(right('{name}', 6), '%y%m%d')");
                let expected = if period == Period::Week { 0 } else { 1 };
                assert_eq!(
                    outbox.number(&format!("select {first}({day})")).await,
                    expected,
                    "{name}"
                );
                let end = format!(
                    "select count(*) from information_schema.partitions
                      where table_schema = database() and partition_name = '{name}'
                        and partition_description = timestampdiff(second, '1970-01-01', {day})"
                );
                assert_eq!(outbox.number(&end).await, 1, "{name} ends at midnight UTC");
            }
        }
    }
}

/// An operator has taken the partition without an end away.
#[tokio::test]
async fn without_a_partition_for_the_rest_those_to_come_are_added() {
    for outbox in both().await {
        partitions(&outbox, &[("young", 1)]).await;
        outbox.execute("alter table outbox_archive drop partition rest").await;
        assert_eq!(maintain(&outbox, days()).await.made.len(), 3);
        archived(&outbox, &[0]).await;
        outbox.execute("alter table outbox_archive remove partitioning").await;
        let error = Archive::new(&outbox.config).unwrap().maintain(&days()).await.unwrap_err();
        assert!(error.to_string().contains("run the schema check"), "{error}");
    }
}
