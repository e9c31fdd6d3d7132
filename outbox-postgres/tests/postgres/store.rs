//! Claims and settlements against PostgreSQL.

use std::time::Duration;

use crate::common::{Outbox, delivered, event, everything, settlements, sole_owner, sorted};
use outbox_core::{Dead, LaneRead, Retry, Store as _};

#[tokio::test]
async fn what_was_appended_is_claimed_in_order_and_settled() {
    let outbox = Outbox::new().await;
    let store = outbox.store();
    let (worker, epoch) = sole_owner(&store).await;
    let events: Vec<_> = (0..500).map(|n| event("a", &format!("{{\"n\":{n}}}"))).collect();
    outbox.append(&events).await;

    let claimed = store.claim(&everything(16)).await.unwrap();
    assert!(claimed.reads.iter().all(|read| *read == LaneRead::ToEnd));
    let claimed = sorted(&claimed);
    let payloads = claimed.iter().map(|event| event.payload().unwrap().to_vec());
    let expected = events.iter().map(|event| event.payload().unwrap().to_vec());
    assert!(payloads.eq(expected));
    assert!(claimed.iter().map(|event| event.id()).eq(events.iter().map(|event| event.id())));

    let settled = store.settle(&delivered(&worker, epoch, &claimed)).await.unwrap();
    assert_eq!((settled.held.len(), settled.missing), (1, 0));
    assert_eq!(outbox.count("outbox").await, 0);
    let again = store.settle(&delivered(&worker, epoch, &claimed)).await.unwrap();
    assert_eq!(again.missing, 500);
}

#[tokio::test]
async fn a_settlement_writes_all_kinds_of_verdicts_at_once() {
    let outbox = Outbox::new().await;
    let store = outbox.store();
    let (worker, epoch) = sole_owner(&store).await;
    outbox.append(&["a", "b", "c", "d"].map(|key| event(key, "{}"))).await;
    let events = sorted(&store.claim(&everything(16)).await.unwrap());

    let mut verdicts = settlements(&worker, epoch, &events);
    verdicts.delivered = delivered(&worker, epoch, &events[..1]).delivered;
    verdicts.retries = vec![
        Retry {
            receipt: events[1].receipt(),
            attempts: 1,
            delay: Some(Duration::ZERO),
            reason: "bro\0ken".to_owned(),
        },
        Retry { receipt: events[2].receipt(), attempts: 3, delay: None, reason: String::new() },
    ];
    verdicts.dead =
        vec![Dead { receipt: events[3].receipt(), attempts: 2, reason: "no such topic".into() }];
    let settled = store.settle(&verdicts).await.unwrap();
    assert_eq!(settled.missing, 0);

    assert_eq!(outbox.count("outbox").await, 2);
    assert_eq!(
        outbox.count("outbox_dead where reason = 'no such topic' and attempts = 2").await,
        1
    );
    assert_eq!(outbox.count("outbox where due_at = 'infinity' and attempts = 3").await, 1);
    let due = sorted(&store.claim(&everything(16)).await.unwrap());
    assert_eq!(due.len(), 1);
    assert_eq!((due[0].id(), due[0].attempts()), (events[1].id(), 1));
    assert!(due[0].holds_aggregate());
}

#[tokio::test]
async fn a_probe_names_the_top_and_the_open_writers() {
    let outbox = Outbox::new().await;
    let store = outbox.store();
    let idle = store.probe(0).await.unwrap();
    assert_eq!((idle.top, idle.writers.len()), (0, 0));
    assert!(!idle.server.is_empty());

    let mut tx = outbox.pool.begin().await.unwrap();
    outbox.writer().append(&mut tx, &[event("a", "1")]).await.unwrap();
    outbox.append(&[event("b", "2")]).await;
    let busy = store.probe(0).await.unwrap();
    assert_eq!((busy.top, busy.writers.len()), (2, 1));
    let xid = busy.writers[0].transaction.unwrap();
    let claimed = store.claim(&everything(16)).await.unwrap();
    assert!(claimed.snapshot.unwrap().misses(xid));
    assert_eq!(claimed.server, busy.server);

    tx.commit().await.unwrap();
    let claimed = store.claim(&everything(16)).await.unwrap();
    assert!(!claimed.snapshot.unwrap().misses(xid));
    assert_eq!(claimed.events.len(), 2);
    assert_eq!(store.probe(2).await.unwrap().top, 2);
}
