//! Pipelines that begin to work at the same time.

use std::sync::Arc;

use outbox_core::{Pipeline, Store as _, StoreErrorKind, Worker};
use outbox_mysql::MySqlStore;
use sqlx::Connection as _;
use sqlx::mysql::MySqlConnection;

use super::{LEASE, both};

/// Of two overlapping pipelines that join at once, one is refused.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_overlapping_pipelines_that_join_at_once_one_is_refused() {
    for outbox in both().await {
        let join = |name: &str| {
            let store = MySqlStore::new(&outbox.config).unwrap();
            let worker = Worker::new(Pipeline::new(name).unwrap(), name);
            tokio::spawn(async move { store.join(&worker).await.is_ok() })
        };
        let (a, b) = (join("a"), join("b"));
        let joined = [a.await.unwrap(), b.await.unwrap()];
        assert_eq!(joined.iter().filter(|joined| **joined).count(), 1, "{joined:?}");
    }
}

/// Two pipelines that overlap and were both frozen until their leases had run out: of their heartbeats after the thaw,
/// which here both wait for the same lock, one is refused. H024
#[tokio::test(flavor = "multi_thread")]
async fn of_two_overlapping_pipelines_that_thaw_at_once_one_is_refused() {
    for outbox in both().await {
        let workers = ["a", "b"].map(|name| Worker::new(Pipeline::new(name).unwrap(), name));
        let expire = "update outbox_workers set lease_until = utc_timestamp(6) - interval 1 minute";
        for worker in &workers {
            outbox.store.join(worker).await.unwrap();
            outbox.execute(expire).await;
        }
        let mut joins = MySqlConnection::connect(&outbox.admin_url).await.unwrap();
        let lock =
            "start transaction; select value from outbox_meta where name = 'lanes' for update";
        sqlx::raw_sql(lock).execute(&mut joins).await.unwrap();
        let beats = workers.map(|worker| {
            let store = Arc::new(MySqlStore::new(&outbox.config).unwrap());
            tokio::spawn(async move { store.heartbeat(&worker, LEASE).await })
        });
        // The tables of InnoDB's waits are read from a cache that is not renewed while somebody keeps asking.
        let waiting = format!(
            "select count(*) from information_schema.processlist
              where user = '{}' and info like 'select value from%for update'",
            outbox.user
        );
        while outbox.number(&waiting).await < 2 {
            assert!(
                beats.iter().all(|beat| !beat.is_finished()),
                "a heartbeat did not wait for the lock"
            );
            tokio::task::yield_now().await;
        }
        sqlx::raw_sql("rollback").execute(&mut joins).await.unwrap();
        let mut refused = 0;
        for beat in beats {
            if let Err(error) = beat.await.unwrap() {
                assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{error} {error:?}");
                refused += 1;
            }
        }
        assert_eq!(refused, 1);
    }
}
