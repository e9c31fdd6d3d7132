//! The upkeep of the archive: partitions are made ahead of time, and go when all their rows are old.

use std::time::Duration;

use outbox_core::{Period, Retention, Store as _, StoreErrorKind, Upkeep};
use outbox_postgres::{Archive, Keep, PostgresConfig};

use crate::common::*;

const DAY: Duration = Duration::from_secs(86_400);
const MIDNIGHT: &str = "date_trunc('day', now() at time zone 'utc') at time zone 'utc'";

async fn outbox() -> Outbox {
    Outbox::with(|config| config.with_keep(Keep::Archive)).await
}

/// Up to three days are kept, in partitions of a day, two ahead.
fn days() -> Retention {
    Retention::new(DAY * 3).with_ahead(2)
}

impl Outbox {
    async fn maintain(&self, retention: Retention) -> Upkeep {
        Archive::new(&self.config).unwrap().maintain(&retention).await.unwrap()
    }

    /// Archived rows that were delivered so many days ago.
    async fn archived(&self, days: &[u32]) {
        for days in days {
            self.execute(&format!(
                "insert into outbox_archive (position, id, aggregatetype, type, created_at, lane, attempts, settled_at)
                 values (1, gen_random_uuid(), 't', 'e{days}', now(), 0, 0, now() - interval '{days} days')"
            ))
            .await;
        }
    }

    /// A partition from so many days ago to so many, made by hand.
    async fn partition(&self, name: &str, from: u32, to: u32) {
        let bound = |days: u32| format!("{MIDNIGHT} - interval '{days} days'");
        self.execute(&format!(
            "do $$ begin
               execute format('create table {name} partition of outbox_archive for values from (%L) to (%L)', {}, {});
             end $$",
            bound(from),
            bound(to)
        ))
        .await;
    }

    async fn partitions(&self) -> i64 {
        self.count("pg_inherits where inhparent = 'outbox_archive'::regclass").await
    }
}

#[tokio::test]
async fn a_delivered_event_goes_to_the_partition_of_its_day() {
    let outbox = outbox().await;
    let upkeep = outbox.maintain(days()).await;
    assert_eq!((upkeep.made.len(), upkeep.dropped.len(), upkeep.busy), (3, 0, false), "{upkeep:?}");
    let store = outbox.store();
    let (worker, epoch) = sole_owner(&store).await;
    outbox.append(&[event("a", "{}")]).await;
    let events = sorted(&store.claim(&everything(16)).await.unwrap());
    store.settle(&delivered(&worker, epoch, &events)).await.unwrap();
    assert_eq!(outbox.count(&upkeep.made[0]).await + outbox.count(&upkeep.made[1]).await, 1);
    assert_eq!(outbox.count("outbox_archive_default").await, 0);
    assert_eq!(outbox.maintain(days()).await.dropped, [""; 0]);
}

#[tokio::test]
async fn a_partition_goes_when_all_its_rows_are_older_than_they_are_kept() {
    let outbox = outbox().await;
    outbox.partition("old", 9, 4).await;
    outbox.partition("young", 4, 2).await;
    outbox.archived(&[8, 5, 3]).await;
    let upkeep = outbox.maintain(days()).await;
    assert_eq!(upkeep.dropped, ["old"]);
    assert_eq!(outbox.text("select string_agg(type, ' ') from outbox_archive").await, "e3");
    assert_eq!(outbox.maintain(days()).await, Upkeep::default(), "all was done the first time");
}

/// What was delivered before there were partitions, or after they had run out.
#[tokio::test]
async fn rows_in_no_partition_of_a_period_are_deleted_by_their_age() {
    let outbox = outbox().await;
    outbox.archived(&[30, 20, 4, 1, 0]).await;
    let upkeep = outbox.maintain(days()).await;
    assert_eq!((upkeep.deleted, upkeep.made.len()), (3, 2), "the day that has begun must wait");
    assert_eq!(outbox.count("outbox_archive_default").await, 2);
}

/// More pages than one statement looks through.
#[tokio::test]
async fn a_large_default_partition_is_emptied_in_parts() {
    let outbox = outbox().await;
    outbox.execute("alter table outbox_archive_default set (fillfactor = 10)").await;
    outbox
        .execute(
            "insert into outbox_archive (position, id, aggregatetype, type, created_at, lane, attempts, destination, settled_at)
             select n, gen_random_uuid(), 't', 'e', now(), 0, 0, repeat('x', 700), now() - interval '9 days'
               from generate_series(1, 5000) n",
        )
        .await;
    let pages = "select pg_relation_size('outbox_archive_default') / 8192";
    assert!(outbox.number(pages).await > 4000, "three statements");
    assert_eq!(outbox.maintain(days()).await.deleted, 5000);
}

/// Settlements wait behind a change that waits, so it does not wait long.
#[tokio::test]
async fn a_partition_that_a_transaction_reads_is_left_for_the_next_time() {
    let patience = Duration::from_secs(600);
    let outbox = Outbox::with(|config| {
        config.with_lock_timeout(patience).with_statement_timeout(patience * 2)
    })
    .await;
    outbox.maintain(days()).await;
    outbox.partition("old", 9, 4).await;
    outbox.partition("older", 20, 10).await;
    let mut reader = outbox.pool.begin().await.unwrap();
    sqlx::query("select from old").execute(&mut *reader).await.unwrap();
    let upkeep =
        tokio::time::timeout(Duration::from_secs(60), outbox.maintain(days())).await.unwrap();
    assert_eq!((upkeep.dropped, upkeep.busy), (vec!["older".to_owned()], true));
    reader.rollback().await.unwrap();
    let upkeep = outbox.maintain(days()).await;
    assert_eq!((upkeep.dropped, upkeep.busy), (vec!["old".to_owned()], false));
}

#[tokio::test]
async fn of_many_upkeeps_at_once_each_partition_is_made_once_and_none_fails() {
    let outbox = outbox().await;
    let many = (0..8).map(|_| outbox.maintain(days()));
    let upkeeps = futures_util::future::join_all(many).await;
    let mut made: Vec<String> = upkeeps.into_iter().flat_map(|upkeep| upkeep.made).collect();
    made.extend(outbox.maintain(days()).await.made);
    assert_eq!(made.len(), 3, "{made:?}");
    assert_eq!(outbox.partitions().await, 4, "three days and the default");
}

/// Made by hand, or while the period was another.
#[tokio::test]
async fn no_period_that_overlaps_a_partition_is_made() {
    let outbox = outbox().await;
    outbox
        .execute(&format!(
            "do $$ begin
               execute format('create table mine partition of outbox_archive for values from (%L) to (%L)',
                              {MIDNIGHT} + interval '12 hours', {MIDNIGHT} + interval '60 hours');
             end $$"
        ))
        .await;
    let upkeep = outbox.maintain(days().with_ahead(4)).await;
    assert_eq!(
        (upkeep.made.len(), upkeep.busy),
        (2, false),
        "the fourth and the fifth day: {upkeep:?}"
    );
}

#[tokio::test]
async fn weeks_begin_on_monday_and_months_on_their_first() {
    for (period, begins) in [(Period::Week, "isodow"), (Period::Month, "day")] {
        let outbox = outbox().await;
        let upkeep = outbox.maintain(days().with_period(period)).await;
        assert_eq!(upkeep.made.len(), 3);
        for name in &upkeep.made {
            let day = format!("to_date(right('{name}', 6), 'YYMMDD')");
            let day = format!("select extract({begins} from {day})::int8");
            assert_eq!(outbox.number(&day).await, 1, "{name}");
        }
    }
}

#[tokio::test]
async fn who_may_not_change_the_tables_is_told_so() {
    let outbox = outbox().await;
    let role = format!("r{}", uuid::Uuid::new_v4().simple());
    outbox.execute(&format!("create role {role} login password 'x'")).await;
    outbox.execute(&format!("grant select on all tables in schema public to {role}")).await;
    let url = outbox.url.replace("postgres:postgres", &format!("{role}:x"));
    let stranger = PostgresConfig::from_url(&url).unwrap();
    let error = Archive::new(&stranger).unwrap().maintain(&days()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured);
    assert!(error.to_string().contains("lacks a right"), "{error}");
}
