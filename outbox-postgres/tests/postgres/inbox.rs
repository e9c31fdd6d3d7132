//! The consumer's side.

use outbox_postgres::PostgresInbox;

use crate::common::Outbox;

#[tokio::test]
async fn mark_and_effect_commit_together_or_not_at_all() {
    let outbox = Outbox::new().await;
    let inbox = PostgresInbox::new(&outbox.config).unwrap();
    let mut tx = outbox.pool.begin().await.unwrap();
    assert!(inbox.first_seen(&mut tx, "billing", "1").await.unwrap());
    assert!(!inbox.first_seen(&mut tx, "billing", "1").await.unwrap());
    tx.rollback().await.unwrap();
    let mut tx = outbox.pool.begin().await.unwrap();
    assert!(inbox.first_seen(&mut tx, "billing", "1").await.unwrap());
    assert!(inbox.first_seen(&mut tx, "mailing", "1").await.unwrap());
    tx.commit().await.unwrap();
    let mut tx = outbox.pool.begin().await.unwrap();
    assert!(!inbox.first_seen(&mut tx, "billing", "1").await.unwrap());
}

/// H010: near-equal ids are different ids.
#[tokio::test]
async fn ids_are_compared_byte_for_byte() {
    let outbox = Outbox::new().await;
    let inbox = PostgresInbox::new(&outbox.config).unwrap();
    let mut tx = outbox.pool.begin().await.unwrap();
    for id in ["a", "A", "a ", "ä", "a\u{308}", "1", "01"] {
        assert!(inbox.first_seen(&mut tx, "billing", id).await.unwrap(), "{id:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_consumers_at_one_event_one_sees_it_first() {
    let outbox = Outbox::new().await;
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let (pool, inbox) = (outbox.pool.clone(), PostgresInbox::new(&outbox.config).unwrap());
        tasks.push(tokio::spawn(async move {
            let mut tx = pool.begin().await.unwrap();
            let first = inbox.first_seen(&mut tx, "billing", "1").await.unwrap();
            tx.commit().await.unwrap();
            first
        }));
    }
    let mut first = 0;
    for task in tasks {
        first += i32::from(task.await.unwrap());
    }
    assert_eq!(first, 1);
}
