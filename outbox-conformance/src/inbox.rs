//! The rules of an inbox.

use outbox_core::{StoreError, async_trait};

use crate::support::falls_away;

/// One fresh, empty inbox.
///
/// The function that makes it panics when the backend is missing: a suite that skips itself shows nothing.
#[async_trait]
pub trait InboxHarness: Send + Sync {
    /// Opens a consumer's transaction.
    async fn begin(&self) -> Box<dyn InboxTransaction>;

    /// Whether two transactions can mark at the same time. Without it the second one may wait for the first as soon as it begins.
    fn concurrent(&self) -> bool {
        true
    }
}

/// A consumer's transaction. Dropping it rolls back.
#[async_trait]
pub trait InboxTransaction: Send {
    /// Marks through the inbox under test.
    async fn first_seen(&mut self, consumer: &str, event_id: &str) -> Result<bool, StoreError>;

    /// Marks through the inbox under test, told that its events come from `source`. `None`: it knows no sources.
    async fn first_seen_from(
        &mut self,
        _source: &str,
        _consumer: &str,
        _event_id: &str,
    ) -> Option<Result<bool, StoreError>> {
        None
    }

    /// Commits.
    async fn commit(self: Box<Self>);

    /// Rolls back.
    async fn rollback(self: Box<Self>);
}

/// Every rule of the contract of [`Inbox`](outbox_core::Inbox) as a test.
///
/// Takes the name of an async function that returns an [`InboxHarness`] with an empty inbox. Two invocations need a module each.
#[macro_export]
macro_rules! inbox_conformance {
    ($harness:expr) => {
        $crate::conformance_tests! {
            $harness, inbox,
            an_event_is_new_once,
            a_rolled_back_mark_is_forgotten,
            a_mark_counts_from_its_commit_on,
            consumers_and_ids_are_compared_bytewise,
            many_tasks_make_one_effect_per_event,
            producers_with_equal_ids_do_not_hide_each_others_events,
        }
    };
}

/// An event is new the first time a consumer sees it, in one transaction or in several. B274, H203
pub async fn an_event_is_new_once(harness: &dyn InboxHarness) {
    let mut first = harness.begin().await;
    assert!(seen(&mut *first, "billing", "1").await);
    assert!(!seen(&mut *first, "billing", "1").await, "twice in one transaction");
    assert!(seen(&mut *first, "shipping", "1").await, "another consumer");
    assert!(seen(&mut *first, "billing", "2").await, "another event");
    first.commit().await;
    let mut second = harness.begin().await;
    for (consumer, id) in [("billing", "1"), ("shipping", "1"), ("billing", "2")] {
        assert!(!seen(&mut *second, consumer, id).await, "{consumer} has handled {id}");
    }
    second.commit().await;
}

/// Effect and mark go together: what is rolled back, or dropped, can be handled again. B276, H201
pub async fn a_rolled_back_mark_is_forgotten(harness: &dyn InboxHarness) {
    for drops in [false, true] {
        let mut transaction = harness.begin().await;
        assert!(seen(&mut *transaction, "billing", "1").await);
        if drops {
            drop(transaction);
        } else {
            transaction.rollback().await;
        }
    }
    let mut again = harness.begin().await;
    assert!(seen(&mut *again, "billing", "1").await);
    again.commit().await;
}

/// Who comes while another transaction holds the mark waits for its end: new after a rollback, not new after a commit.
pub async fn a_mark_counts_from_its_commit_on(harness: &dyn InboxHarness) {
    if !harness.concurrent() {
        return falls_away("a_mark_counts_from_its_commit_on", "transactions run one at a time");
    }
    for (id, commits) in [("1", true), ("2", false)] {
        let mut first = harness.begin().await;
        assert!(seen(&mut *first, "billing", id).await);
        let mut second = harness.begin().await;
        let waiting = tokio::spawn(async move {
            let new = seen(&mut *second, "billing", id).await;
            second.commit().await;
            new
        });
        // Either order is right; with this one the wait is seen.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        if commits {
            first.commit().await;
        } else {
            first.rollback().await;
        }
        let new = waiting.await.expect("the second transaction works");
        assert_eq!(new, !commits, "the first one was committed: {commits}");
    }
}

/// Consumers and ids that differ in one byte are different. H010, H203
pub async fn consumers_and_ids_are_compared_bytewise(harness: &dyn InboxHarness) {
    let near = ["a", "A", "a ", " a", "\u{e4}", "a\u{308}", "'", "\"", "%", "_", "\\", "1", "01"];
    let long = "x".repeat(255);
    let mut transaction = harness.begin().await;
    for text in near.into_iter().chain([long.as_str()]) {
        assert!(seen(&mut *transaction, "billing", text).await, "id {text:?}");
        assert!(!seen(&mut *transaction, "billing", text).await, "id {text:?} again");
        if text.len() <= 63 {
            assert!(seen(&mut *transaction, text, "of this consumer").await, "consumer {text:?}");
        }
    }
    transaction.commit().await;
}

/// Of 16 tasks that handle the same 1,000 events, exactly one has the effect of each. B272, H062, H200
pub async fn many_tasks_make_one_effect_per_event(harness: &dyn InboxHarness) {
    const EVENTS: usize = 1_000;
    const TASKS: usize = 16;
    let effects: Vec<Vec<usize>> = futures_util::future::join_all((0..TASKS).map(|_| async move {
        let mut mine = Vec::new();
        for event in 0..EVENTS {
            let mut transaction = harness.begin().await;
            if seen(&mut *transaction, "billing", &event.to_string()).await {
                mine.push(event);
            }
            transaction.commit().await;
        }
        mine
    }))
    .await;
    let mut effects: Vec<usize> = effects.concat();
    effects.sort_unstable();
    assert_eq!(effects, (0..EVENTS).collect::<Vec<_>>());
}

/// The same id from two producers is two events; with its source it is none of those without. H203
pub async fn producers_with_equal_ids_do_not_hide_each_others_events(harness: &dyn InboxHarness) {
    let mut transaction = harness.begin().await;
    for source in ["orders", "Orders", "returns"] {
        let Some(first) = transaction.first_seen_from(source, "billing", "1").await else {
            return falls_away(
                "producers_with_equal_ids_do_not_hide_each_others_events",
                "the inbox knows no sources",
            );
        };
        assert!(first.expect("first_seen works"), "1 of {source}");
        let again = transaction.first_seen_from(source, "billing", "1").await;
        assert!(!again.expect("sources").expect("first_seen works"), "1 of {source} again");
    }
    assert!(seen(&mut *transaction, "billing", "1").await, "1 of nobody");
    transaction.commit().await;
}

async fn seen(transaction: &mut dyn InboxTransaction, consumer: &str, id: &str) -> bool {
    transaction.first_seen(consumer, id).await.expect("first_seen works")
}
