//! A link that dies without a word: no reset, no end of stream, packets just do not arrive any more.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_core::{Store as _, StoreErrorKind};
use outbox_postgres::{PostgresConfig, PostgresStore};
use xtask::proxy::Proxy;

use crate::common::{Outbox, event, everything};

const CALLERS: usize = 4;
/// The time-out of a statement and what the client waits beyond it, and that again for callers that waited for a place.
const ANSWERED_WITHIN: Duration = Duration::from_secs(20);
const HEALED_WITHIN: Duration = Duration::from_secs(30);

/// Every caller gets its answer although no packet comes any more, and once new connections get through, all of the
/// pool's places can be used again. Covers B211.
#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_swallows_everything_costs_no_connection_for_good() {
    let outbox = Outbox::new().await;
    outbox.append(&[event("a", "1")]).await;
    let link = Proxy::before_url(&outbox.url);
    let config = PostgresConfig::from_url(&link.through(&outbox.url)).unwrap();
    let config = config.with_pool_size(2).with_statement_timeout(Duration::from_secs(1));
    let store = Arc::new(PostgresStore::new(&config).unwrap());
    for result in claims(&store).await {
        assert_eq!(result, Ok(1), "the link is good");
    }

    link.swallow();
    let swallowed = Instant::now();
    let answers = tokio::time::timeout(ANSWERED_WITHIN, claims(&store));
    for result in answers.await.expect("every caller gets an answer") {
        assert_eq!(result, Err(StoreErrorKind::Unavailable));
    }
    link.heal();
    let healed = Instant::now();
    while claims(&store).await != [Ok(1); CALLERS] {
        assert!(healed.elapsed() < HEALED_WITHIN, "the pool does not recover");
    }
    println!("swallowed for {:?}, well {:?} later", healed - swallowed, healed.elapsed());
}

/// What some callers get that claim at the same time.
async fn claims(store: &Arc<PostgresStore>) -> Vec<Result<usize, StoreErrorKind>> {
    let claim = |store: Arc<PostgresStore>| async move {
        let claimed = store.claim(&everything(16)).await;
        claimed.map(|claimed| claimed.events.len()).map_err(|error| error.kind())
    };
    let tasks: Vec<_> = (0..CALLERS).map(|_| tokio::spawn(claim(store.clone()))).collect();
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.unwrap());
    }
    results
}
