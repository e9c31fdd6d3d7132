//! The relay before the publisher.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use outbox_core::memory::MemoryStore;
use outbox_core::{NewEvent, Relay, Router, Writer as _};
use tokio::task::block_in_place;

use crate::Turn;
use crate::common::{Broker, LIMIT, id, publisher, random, to_queues};

const EVENTS: usize = 12_000;
/// As many events are under way at once.
const AGGREGATES: usize = 1_000;

/// Through a restart and a kill of the broker: every event arrives, the first deliveries of each aggregate in order, and no
/// attempt is counted. H044, H143, H146
async fn events_arrive_in_order_through_a_restart_of_the_broker(broker: Turn) {
    let queue = random("relay");
    Broker::connect(&broker.url()).await.queue(&queue, &[]).await;
    let store = MemoryStore::new();
    let mut transaction = store.begin();
    let event = |n: usize| {
        NewEvent::json("order", format!("order-{}", n % AGGREGATES), "Created.v1", &n).unwrap()
    };
    store.append(&mut transaction, &(0..EVENTS).map(event).collect::<Vec<_>>()).await.unwrap();
    transaction.commit();

    let publisher = Arc::new(publisher(&to_queues(&broker.url())));
    let relay = Relay::new(Arc::new(store.clone()), publisher)
        .with_router(Router::new(&queue).unwrap())
        .run(store.wait_until_nothing_pending(4 * LIMIT));
    let down = async {
        for (left, kill) in [(9_000, false), (6_000, true)] {
            while store.pending().len() > left {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            block_in_place(|| {
                if kill {
                    broker.kill9();
                } else {
                    broker.stop();
                }
                assert!(!store.pending().is_empty(), "it goes while there is something to send");
                broker.start_again();
            });
        }
    };
    tokio::join!(async { relay.await.unwrap() }, down);
    assert!(store.dead().is_empty(), "{:?}", store.dead());

    let mut seen = HashSet::new();
    let mut last: HashMap<String, usize> = HashMap::new();
    for message in Broker::connect(&broker.url()).await.take(&queue).await {
        if !seen.insert(id(&message)) {
            continue;
        }
        let headers = message.properties.headers().as_ref().unwrap().inner();
        let key = headers["aggregateId"].as_long_string().unwrap().to_string();
        let number = std::str::from_utf8(&message.delivery.data).unwrap().parse().unwrap();
        let before = last.insert(key.clone(), number);
        assert!(before.is_none_or(|before| before < number), "{key}: {before:?} {number}");
    }
    assert_eq!(seen.len(), EVENTS, "each of them");
}

crate::on_both! {
    events_arrive_in_order_through_a_restart_of_the_broker,
}
