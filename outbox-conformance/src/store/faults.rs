//! Calls that are dropped, refused or cut off.

use std::future::Future;
use std::time::Duration;

use outbox_core::{Delivered, EventId, Receipt, StoreErrorKind, Worker};

use super::StoreHarness;
use super::owner::{Owner, commit, dead, delivered, event, ids, pipeline, retry, spread};
use crate::support::{eventually, falls_away};

/// How often a call is dropped before it is ready.
const DROPS: usize = 300;

/// Futures that are dropped at any point lose nothing, and leave no transaction open. H036, B208
pub async fn cancelled_calls_lose_nothing(harness: &dyn StoreHarness) {
    let mut owner = Owner::new(harness).await;
    let all = spread(100);
    commit(harness, &all).await;
    let mut random = fastrand::Rng::with_seed(7);
    let mut sent = Vec::new();
    for n in 0..DROPS {
        let events = owner.events().await;
        let Some(event) = random.choice(&events) else { break };
        let mut settlements = owner.settlements();
        match n % 5 {
            0 => settlements.retries.push(retry(event, Some(Duration::ZERO))),
            1 => settlements.dead.push(dead(event)),
            2 => {
                sent.push(event.id().clone());
                settlements.delivered.push(delivered(event));
            }
            _ => {}
        }
        // From before the first byte is sent to after the reply has come.
        let after = Duration::from_micros(random.u64(0..3_000));
        match n % 5 {
            0..=2 => dropped(after, owner.store.settle(&settlements)).await,
            3 => dropped(after, owner.store.claim(&owner.everything())).await,
            _ if random.bool() => dropped(after, owner.store.probe(0)).await,
            _ => dropped(after, owner.store.heartbeat(&owner.worker, super::owner::LEASE)).await,
        }
    }
    owner.acquire(u16::MAX).await;
    let left = ids(&owner.events().await);
    let died = harness.dead().await;
    for event in &all {
        let alive = left.contains(event.id());
        let gave_up = died.iter().filter(|letter| letter.id == *event.id()).count();
        let places = usize::from(alive) + gave_up;
        let fits = places == 1 || (places == 0 && sent.contains(event.id()));
        assert!(fits, "{event:?}: pending {alive}, {gave_up} dead letters");
    }
    for event in owner.events().await {
        owner.deliver(&event).await;
    }
    no_transaction_is_open(harness, "cancelled_calls_lose_nothing").await;
}

/// A settle that the database refuses writes nothing, and the store works on. H049
pub async fn the_store_works_after_an_error(harness: &dyn StoreHarness) {
    let owner = Owner::new(harness).await;
    commit(harness, &spread(3)).await;
    let events = owner.events().await;
    let odd = ["not-a-uuid", "", "' or true --", "x".repeat(255).as_str()].map(EventId::from_text);
    for id in odd.into_iter().flatten() {
        let mut settlements = owner.settlements();
        let receipt = Receipt::new(events[0].lane(), events[0].position(), id);
        settlements.delivered.push(Delivered::new(receipt, "x"));
        match owner.store.settle(&settlements).await {
            Ok(settled) => assert_eq!(settled.missing, 1),
            Err(error) => assert_eq!(error.kind(), StoreErrorKind::Rejected, "{error}"),
        }
        assert_eq!(owner.ids().await, ids(&events));
    }
    let stranger = Worker::new(pipeline(), "never signed on");
    if let Err(error) = owner.store.acquire(&stranger, 1).await {
        assert_eq!(error.kind(), StoreErrorKind::Stale, "{error}");
    }
    owner.deliver(&events[0]).await;
    assert_eq!(owner.ids().await, ids(&events[1..]));
    no_transaction_is_open(harness, "the_store_works_after_an_error").await;
}

/// After its connections broke, calls may fail as unavailable for a moment; then the store works on.
pub async fn the_store_works_after_its_connections_broke(harness: &dyn StoreHarness) {
    let rule = "the_store_works_after_its_connections_broke";
    let owner = Owner::new(harness).await;
    commit(harness, &[event("a")]).await;
    for _ in 0..3 {
        assert_eq!(owner.events().await.len(), 1);
        if harness.break_connections().await.is_none() {
            return falls_away(rule, "the store has no connections that could break");
        }
        eventually("claims work again", || async {
            match owner.store.claim(&owner.everything()).await {
                Ok(claimed) => {
                    assert_eq!(claimed.events.len(), 1);
                    Some(())
                }
                Err(error) => {
                    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
                    None
                }
            }
        })
        .await;
    }
    owner.deliver(&owner.events().await[0]).await;
    no_transaction_is_open(harness, rule).await;
}

/// Polls `call` for this long, then drops it.
async fn dropped<T>(after: Duration, call: impl Future<Output = T>) {
    tokio::select! {
        biased;
        () = tokio::time::sleep(after) => {}
        _ = call => {}
    }
}

async fn no_transaction_is_open(harness: &dyn StoreHarness, rule: &str) {
    if harness.open_transactions().await.is_none() {
        return falls_away(rule, "in part: it cannot be known whether a transaction is open");
    }
    eventually("no transaction of the store stays open", || async {
        (harness.open_transactions().await == Some(0)).then_some(())
    })
    .await;
}
