//! Dead letters: listed, sent again, dropped.

use std::time::{Duration, SystemTime};

use outbox_core::{Dead, Retry, Store as _};
use outbox_mysql::{Administration as _, DeadLetterFilter, Page};

use super::{both, commit, delivered, event, everything, owner};

#[tokio::test]
async fn a_list_meets_every_condition_and_pages() {
    for outbox in both().await {
        let (worker, lanes) = owner(&outbox).await;
        commit(&outbox, &[event("a"), event("b"), event("c")]).await;
        let events = outbox.store.claim(&everything(10)).await.unwrap().events;
        let mut verdicts = delivered(&worker, &lanes, &[]);
        let dead = |event: &outbox_core::Event| {
            Dead::new(
                event.receipt(),
                3,
                format!("Broker refused {}", event.aggregate_id().unwrap()),
            )
        };
        verdicts.dead = events.iter().map(dead).collect();
        outbox.store.settle(&verdicts).await.unwrap();
        let paged = async |filter: DeadLetterFilter, page: Page| {
            let keys = outbox.admin.dead_letters(&filter, page).await.unwrap().into_iter();
            keys.map(|letter| letter.aggregate_id.unwrap()).collect::<String>()
        };
        let list = async |filter: DeadLetterFilter| paged(filter, Page::default()).await;
        let (all, hour) = (DeadLetterFilter::default, Duration::from_secs(3600));
        assert_eq!(list(all()).await, "abc");
        assert_eq!(list(all().with_aggregate_id("b")).await, "b");
        assert_eq!(list(all().with_aggregate_id("B")).await, "");
        assert_eq!(list(all().with_aggregate_type("other")).await, "");
        assert_eq!(list(all().with_event_type("Created")).await, "abc");
        assert_eq!(list(all().with_text("REFUSED C")).await, "c");
        assert_eq!(list(all().with_since(SystemTime::now() + hour)).await, "");
        assert_eq!(list(all().with_until(SystemTime::now() + hour)).await, "abc");
        assert_eq!(paged(all(), Page::default().with_limit(2)).await, "ab");
        let second = outbox.admin.dead_letters(&all(), Page::default()).await.unwrap()[1].clone();
        assert_eq!(paged(all(), Page::default().with_after(second.entry)).await, "c");
        assert_eq!((second.payload.as_deref(), second.attempts), (Some(&b"{}"[..]), 3));
        assert!(second.created_at.elapsed().unwrap() < hour && second.died_at >= second.created_at);
        assert!(outbox.admin.discard(second.entry).await.unwrap());
        assert!(!outbox.admin.discard(second.entry).await.unwrap(), "it is gone");
    }
}

/// B018: when a blocked head is dropped, the event behind it holds the rest until it is delivered.
#[tokio::test]
async fn the_hold_of_a_discarded_head_passes_on() {
    for outbox in both().await {
        let (worker, lanes) = owner(&outbox).await;
        commit(&outbox, &[event("a"), event("b"), event("a"), event("a")]).await;
        let events = outbox.store.claim(&everything(10)).await.unwrap().events;
        let mut verdicts = delivered(&worker, &lanes, &[]);
        let never = Retry::new(events[0].receipt(), 2, None, "no");
        verdicts.retries.push(never);
        outbox.store.settle(&verdicts).await.unwrap();
        let blocked = outbox.admin.blocked_heads(Page::default()).await.unwrap();
        assert_eq!((blocked.len(), blocked[0].position), (1, events[0].position()));
        assert!(outbox.admin.discard_blocked(blocked[0].position).await.unwrap());
        assert!(!outbox.admin.discard_blocked(blocked[0].position).await.unwrap());
        let left = outbox.store.claim(&everything(10)).await.unwrap().events;
        let left: Vec<_> =
            left.iter().map(|event| (event.position(), event.holds_aggregate())).collect();
        assert_eq!(left, [(events[1].position(), false), (events[2].position(), true)]);
    }
}
