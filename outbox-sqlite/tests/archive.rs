//! The upkeep of the archive.

#![allow(clippy::unwrap_used, reason = "also in the helpers of these tests")]

mod common;

use std::time::Duration;

use common::fixture;
use outbox_core::Retention;
use outbox_sqlite::Archive;

const DAY: Duration = Duration::from_secs(86_400);

/// More than go in one transaction.
#[tokio::test]
async fn what_was_delivered_longer_ago_than_it_is_kept_is_deleted() {
    let fixture = fixture().await;
    fixture
        .execute(
            "insert into outbox_archive (position, id, aggregatetype, type, created_at, lane, attempts, destination, settled_at)
             with recursive n as (select 1 as n union all select n + 1 from n where n < 4000)
             select n, n, 't', 'e', 0, 0, 0, 'd',
                    (unixepoch('now') - case when n <= 2500 then 4 else 2 end * 86400) * 1000000
               from n",
        )
        .await;
    let archive = Archive::new(fixture.pool.clone(), &fixture.config).unwrap();
    assert_eq!(archive.maintain(&Retention::new(DAY * 5)).await.unwrap().deleted, 0);
    assert_eq!(archive.maintain(&Retention::new(DAY * 3)).await.unwrap().deleted, 2500);
    assert_eq!(
        fixture.number("select count(*) from outbox_archive where position > 2500").await,
        1500
    );
    assert_eq!(fixture.number("select count(*) from outbox_archive").await, 1500);
}
