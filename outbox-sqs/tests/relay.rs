//! The relay before the publisher: faults of the queue reach events as the relay's rules have it.

#![allow(clippy::unwrap_used)] // A test.

mod support;

use std::sync::Arc;
use std::time::Duration;

use outbox_core::memory::MemoryStore;
use outbox_core::{NewEvent, Publisher, Relay, Router, Writer as _};
use outbox_sqs::SqsConfig;
use support::stub::{Step, Stub};
use support::{LIMIT, Reader, Stored, endpoint, in_order, publisher, random};
use xtask::proxy::Proxy;

const EVENTS: usize = 500;

/// Five hundred events over twenty aggregates, with the payloads `0`, `1`, …
async fn store() -> MemoryStore {
    let store = MemoryStore::new();
    let mut transaction = store.begin();
    let events: Vec<NewEvent> = (0..EVENTS)
        .map(|n| NewEvent::json("order", format!("order-{}", n % 20), "Created.v1", &n).unwrap())
        .collect();
    store.append(&mut transaction, &events).await.unwrap();
    transaction.commit();
    store
}

async fn deliver(store: &MemoryStore, publisher: Arc<dyn Publisher>, queue: &str) {
    let relay = Relay::new(Arc::new(store.clone()), publisher)
        .with_router(Router::new(queue).unwrap())
        .run(store.wait_until_nothing_pending(LIMIT));
    relay.await.unwrap();
    assert!(store.dead().is_empty(), "{:?}", store.dead());
}

fn check(stored: &[Stored]) {
    assert_eq!(stored.len(), EVENTS, "each once");
    assert!(in_order(stored));
}

/// Order and number hold through lines that are cut; a FIFO queue swallows what is sent again. H017, H152
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_arrive_once_and_in_order_over_a_line_that_is_cut() {
    let reader = Reader::new(&endpoint());
    let queue = random("relay") + ".fifo";
    reader.create(&queue).await;
    let proxy = Proxy::before_url(&endpoint());
    let publisher = publisher(&proxy.through(&endpoint()), &SqsConfig::new());
    let cutting = async {
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_millis(60)).await;
            proxy.cut(true);
            proxy.cut(false);
        }
    };
    let store = store().await;
    tokio::join!(deliver(&store, Arc::new(publisher), &queue), cutting);
    check(&reader.drain(&queue).await);
}

/// Throttling and a service that fails count against no event; a queue that is missing keeps its events waiting. B207, H044, H045
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn throttling_costs_no_attempt_and_a_missing_queue_no_event() {
    let stub = Stub::start().await;
    let publisher = Arc::new(publisher(&stub.endpoint(), &SqsConfig::new()));
    let store = store().await;
    let making = async {
        let some_event_waits = || store.pending().iter().any(outbox_core::Event::holds_aggregate);
        while !some_event_waits() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stub.create("q.fifo");
        stub.next([Step::Refuse(403, "RequestThrottled"), Step::Refuse(503, "ServiceUnavailable")]);
    };
    tokio::join!(deliver(&store, publisher, "q.fifo"), making);
    check(&stub.stored("q.fifo"));
}
