//! The rules of an inbox.

mod order;

use std::time::Duration;

use outbox_core::{Arrival, PURGE_BATCH, Purged, StoreError, async_trait};

use crate::support::falls_away;

pub use order::*;

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

    /// Purges the inbox under test of marks older than this, in batches of a thousand marks. `None`: it cannot.
    async fn purge(&self, _older_than: Duration) -> Option<Result<Purged, StoreError>> {
        None
    }

    /// Makes every committed mark older by so much. Called only where [`purge`](Self::purge) can do its work.
    async fn age(&self, _by: Duration) {
        unreachable!("an inbox that purges by age has marks that can be made older")
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

    /// Tells through the inbox under test where an event of this number stands among those of `key`. `None`: it knows no
    /// numbers.
    async fn arrival(
        &mut self,
        _consumer: &str,
        _key: &str,
        _sequence: Option<u64>,
    ) -> Option<Result<Arrival, StoreError>> {
        None
    }

    /// Accepts everything of `key` up to this number. Called only where [`arrival`](Self::arrival) tells.
    async fn accept(
        &mut self,
        _consumer: &str,
        _key: &str,
        _sequence: u64,
    ) -> Result<(), StoreError> {
        unreachable!("an inbox that tells gaps can be told to pass them")
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
            a_purge_removes_what_is_older_and_nothing_else,
            an_event_that_comes_after_its_mark_was_purged_is_new,
            a_purge_lets_consumers_mark,
            purges_at_the_same_time_remove_each_mark_once,
            next_duplicate_and_gap_are_told_apart,
            a_gap_stays_until_it_is_accepted,
            what_was_given_up_is_a_duplicate,
            an_event_without_a_number_is_told_so,
            a_rolled_back_arrival_comes_next_again,
            consumers_and_keys_are_counted_bytewise,
            of_copies_at_the_same_time_one_is_the_next,
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

const HOUR: Duration = Duration::from_secs(3600);

/// Marks that are older go, however many batches that takes, and the others stay.
pub async fn a_purge_removes_what_is_older_and_nothing_else(harness: &dyn InboxHarness) {
    let Some(nothing) = harness.purge(HOUR).await else {
        return falls_away("a_purge_removes_what_is_older_and_nothing_else", "it has no purge");
    };
    assert_eq!(nothing.expect("purge works"), Purged::default());
    let old = u64::from(PURGE_BATCH) * 2 + 1;
    mark(harness, "old", old).await;
    harness.age(2 * HOUR).await;
    mark(harness, "fresh", 3).await;
    assert_eq!(purge(harness, 3 * HOUR).await.marks, 0, "nothing is that old");
    assert_eq!(purge(harness, HOUR).await, Purged::new(old, false));
    assert_eq!(purge(harness, HOUR).await.marks, 0, "twice");
    let mut transaction = harness.begin().await;
    for n in 0..3 {
        assert!(!seen(&mut *transaction, "fresh", &n.to_string()).await, "{n} stays");
    }
    transaction.commit().await;
}

/// What a mark cannot do: it knows nothing of what comes back when it is gone. So marks have to be kept for longer than the
/// longest time after which a message can come. B273, H202
pub async fn an_event_that_comes_after_its_mark_was_purged_is_new(harness: &dyn InboxHarness) {
    const RULE: &str = "an_event_that_comes_after_its_mark_was_purged_is_new";
    for (kept_for, again) in [(3 * HOUR, false), (HOUR, true)] {
        mark(harness, "billing", 1).await;
        if harness.purge(3 * HOUR).await.is_none() {
            return falls_away(RULE, "it has no purge");
        }
        harness.age(2 * HOUR).await;
        purge(harness, kept_for).await;
        let mut transaction = harness.begin().await;
        let new = seen(&mut *transaction, "billing", "0").await;
        assert_eq!(new, again, "kept for {kept_for:?}, back after two hours");
        transaction.rollback().await;
    }
}

/// A consumer in the middle of its effect and a purge do not wait for each other, and its mark stays.
pub async fn a_purge_lets_consumers_mark(harness: &dyn InboxHarness) {
    if !harness.concurrent() {
        return falls_away("a_purge_lets_consumers_mark", "transactions run one at a time");
    }
    mark(harness, "old", 3).await;
    if harness.purge(3 * HOUR).await.is_none() {
        return falls_away("a_purge_lets_consumers_mark", "it has no purge");
    }
    harness.age(2 * HOUR).await;
    let mut open = harness.begin().await;
    assert!(seen(&mut *open, "billing", "1").await);
    assert_eq!(purge(harness, HOUR).await, Purged::new(3, false));
    mark(harness, "old", 3).await;
    open.commit().await;
    let mut transaction = harness.begin().await;
    assert!(!seen(&mut *transaction, "billing", "1").await);
    transaction.commit().await;
}

/// However many purge, each mark is removed once: none is counted twice, none is left.
pub async fn purges_at_the_same_time_remove_each_mark_once(harness: &dyn InboxHarness) {
    let old = u64::from(PURGE_BATCH) * 3;
    mark(harness, "old", old).await;
    if harness.purge(3 * HOUR).await.is_none() {
        return falls_away("purges_at_the_same_time_remove_each_mark_once", "it has no purge");
    }
    harness.age(2 * HOUR).await;
    let purges = (0..4).map(|_| purge(harness, HOUR));
    let done = futures_util::future::join_all(purges).await;
    // One that made way for another which was just about to end leaves what is left to the next.
    let last = purge(harness, HOUR).await;
    assert!(!last.busy, "nobody else is at work any more");
    let removed: u64 = done.iter().chain([&last]).map(|purged| purged.marks).sum();
    assert_eq!(removed, old, "{done:?}, {last:?}");
}

/// Marks `0`, `1` and so on for this consumer.
async fn mark(harness: &dyn InboxHarness, consumer: &str, count: u64) {
    let mut transaction = harness.begin().await;
    for n in 0..count {
        seen(&mut *transaction, consumer, &n.to_string()).await;
    }
    transaction.commit().await;
}

async fn purge(harness: &dyn InboxHarness, older_than: Duration) -> Purged {
    harness.purge(older_than).await.expect("it has a purge").expect("purge works")
}

async fn seen(transaction: &mut dyn InboxTransaction, consumer: &str, id: &str) -> bool {
    transaction.first_seen(consumer, id).await.expect("first_seen works")
}
