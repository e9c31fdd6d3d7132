//! Time limits: what is slow ends before the relay gives it up, and costs nobody a lease or a connection.

use std::time::{Duration, Instant};

use outbox_core::{Store as _, StoreErrorKind, Timing};

use crate::common::{LEASE, Outbox, delivered, event, everything, run, sole_owner, sorted, worker};

/// Longer than any test waits: locks do not end by themselves.
const FOR_EVER: Duration = Duration::from_secs(600);
/// A statement that nothing holds up.
const SOON: Duration = Duration::from_secs(2);

/// By the defaults the server ends a statement before the relay gives it up, so that none runs on unseen. H157
#[tokio::test]
async fn a_slow_statement_ends_before_the_relay_gives_it_up() {
    let outbox = Outbox::with(|config| config.with_lock_timeout(FOR_EVER)).await;
    let mut operator = outbox.session().await;
    run(&mut operator, "begin; lock table outbox").await;
    let began = Instant::now();
    let error = outbox.store().claim(&everything(16)).await.unwrap_err();
    assert!(began.elapsed() < Timing::default().statement_deadline, "{:?}", began.elapsed());
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(error.to_string().contains("time limit"), "{error}");
    let waiting = "select count(*) from pg_stat_activity
                    where datname = current_database() and wait_event_type = 'Lock'";
    assert_eq!(outbox.number(waiting).await, 0, "the statement runs on");
}

/// Claims that hang in every connection they can get leave the lease its own. H029, H157
#[tokio::test(flavor = "multi_thread")]
async fn slow_claims_do_not_cost_the_lease() {
    let outbox = Outbox::with(|config| {
        config.with_pool_size(3).with_lock_timeout(FOR_EVER).with_statement_timeout(FOR_EVER)
    })
    .await;
    let store = std::sync::Arc::new(outbox.store());
    let (owner, _) = sole_owner(&store).await;
    let mut operator = outbox.session().await;
    run(&mut operator, "begin; lock table outbox").await;
    let hang = |_| {
        let store = store.clone();
        tokio::spawn(async move { store.claim(&everything(16)).await })
    };
    let hanging: Vec<_> = (0..10).map(hang).collect();
    outbox.wait_for_lock_waiter().await;
    for _ in 0..3 {
        let beat = tokio::time::timeout(SOON, store.heartbeat(&owner, LEASE));
        assert_eq!(beat.await.unwrap().unwrap().lanes.len(), 16);
    }
    tokio::time::timeout(SOON, store.acquire(&owner, 1)).await.unwrap().unwrap();
    tokio::time::timeout(SOON, store.release(&owner, &[0])).await.unwrap().unwrap();
    run(&mut operator, "rollback").await;
    for claim in hanging {
        claim.await.unwrap().unwrap();
    }
}

/// A statement whose caller gave up does not keep its connection from others. H157, H158
#[tokio::test]
async fn a_statement_that_was_given_up_frees_its_connection() {
    let outbox = Outbox::with(|config| {
        config.with_pool_size(2).with_lock_timeout(FOR_EVER).with_statement_timeout(FOR_EVER)
    })
    .await;
    let store = outbox.store();
    let (owner, epoch) = sole_owner(&store).await;
    outbox.append(&[event("a", "1")]).await;
    let events = sorted(&store.claim(&everything(16)).await.unwrap());
    let mut operator = outbox.session().await;
    run(&mut operator, "begin; select from outbox_lanes for update").await;
    for _ in 0..5 {
        let verdicts = delivered(&owner, epoch, &events);
        let settle = tokio::time::timeout(Duration::from_millis(50), store.settle(&verdicts)).await;
        assert!(settle.is_err(), "the lanes are locked");
    }
    let claim = tokio::time::timeout(SOON, store.claim(&everything(16))).await;
    assert_eq!(claim.expect("a connection is free").unwrap().events.len(), 1);
}

/// Building an index, or waiting for a migration that does, takes longer than a relay's statement may.
#[tokio::test]
async fn a_migration_has_a_time_limit_of_its_own() {
    let slow = |config: outbox_postgres::PostgresConfig| {
        config
            .with_statement_timeout(Duration::from_millis(50))
            .with_lock_timeout(Duration::from_millis(50))
    };
    let outbox = Outbox::bare("OUTBOX_TEST_POSTGRES_URL", slow).await;
    outbox
        .execute(
            "create function slow() returns event_trigger language plpgsql as
             'begin perform pg_sleep(0.1); end';
             create event trigger slow on ddl_command_start execute function slow()",
        )
        .await;
    let (one, other) = (outbox.schema(), outbox.schema());
    let (one, other) = tokio::join!(one.migrate(), other.migrate());
    one.unwrap();
    other.unwrap();
    let patient = outbox.reconfigured(|config| config.with_statement_timeout(LEASE));
    patient.store().join(&worker("w")).await.unwrap();
}
