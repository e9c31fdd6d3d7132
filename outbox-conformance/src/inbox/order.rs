//! Order and gaps: where an event stands among those of its aggregate.

use outbox_core::Arrival;

use super::{InboxHarness, InboxTransaction};
use crate::support::falls_away;

const NO_NUMBERS: &str = "the inbox knows no numbers";

/// The one behind the last is next, one at or before it a duplicate, one further on a gap with both numbers. H204
pub async fn next_duplicate_and_gap_are_told_apart(harness: &dyn InboxHarness) {
    let Some(mut inbox) = Ordered::begin(harness, "next_duplicate_and_gap_are_told_apart").await
    else {
        return;
    };
    assert_eq!(inbox.told(2).await, gap(1, 2), "nothing came before");
    for number in 1..=3 {
        assert_eq!(inbox.told(number).await, Arrival::Next);
    }
    inbox.commit().await;
    let mut inbox = Ordered(harness.begin().await);
    for number in [3, 1] {
        assert_eq!(inbox.told(number).await, Arrival::Duplicate, "{number}, redelivered");
    }
    assert_eq!(inbox.told(6).await, gap(4, 6));
    assert_eq!(inbox.told(2).await, Arrival::Duplicate, "an older one is no gap");
    assert_eq!(inbox.told(4).await, Arrival::Next);
    inbox.commit().await;
}

/// A gap is no progress: it is told again, also in a later transaction, until the missing event came. H204
pub async fn a_gap_stays_until_it_is_accepted(harness: &dyn InboxHarness) {
    let Some(mut inbox) = Ordered::begin(harness, "a_gap_stays_until_it_is_accepted").await else {
        return;
    };
    assert_eq!(inbox.told(1).await, Arrival::Next);
    assert_eq!(inbox.told(4).await, gap(2, 4));
    inbox.commit().await;
    let mut inbox = Ordered(harness.begin().await);
    assert_eq!(inbox.told(4).await, gap(2, 4), "again");
    assert_eq!(inbox.told(5).await, gap(2, 5), "another one behind it");
    for number in 2..=5 {
        assert_eq!(inbox.told(number).await, Arrival::Next, "{number} came");
    }
    inbox.commit().await;
}

/// After `accept`, counting goes on behind it: what was missing is a duplicate if it comes, and nothing goes back. H204
pub async fn what_was_given_up_is_a_duplicate(harness: &dyn InboxHarness) {
    let Some(mut inbox) = Ordered::begin(harness, "what_was_given_up_is_a_duplicate").await else {
        return;
    };
    inbox.accept(3).await;
    assert_eq!(inbox.told(4).await, Arrival::Next, "an aggregate that was never seen");
    assert_eq!(inbox.told(7).await, gap(5, 7));
    inbox.accept(7).await;
    inbox.accept(6).await;
    inbox.commit().await;
    let mut inbox = Ordered(harness.begin().await);
    for number in [5, 6, 7] {
        assert_eq!(inbox.told(number).await, Arrival::Duplicate, "{number} comes late");
    }
    assert_eq!(inbox.told(8).await, Arrival::Next);
    inbox.commit().await;
}

/// A plain insert carries no number: that is told, and counts for nothing. H204
pub async fn an_event_without_a_number_is_told_so(harness: &dyn InboxHarness) {
    let Some(mut inbox) = Ordered::begin(harness, "an_event_without_a_number_is_told_so").await
    else {
        return;
    };
    assert_eq!(inbox.of("billing", "a", None).await, Arrival::Unnumbered, "the first");
    assert_eq!(inbox.told(1).await, Arrival::Next);
    assert_eq!(inbox.of("billing", "a", None).await, Arrival::Unnumbered, "in between");
    assert_eq!(inbox.told(2).await, Arrival::Next);
    inbox.commit().await;
}

/// What was accepted goes with its transaction: rolled back, or dropped, it is next again. H201, H204
pub async fn a_rolled_back_arrival_comes_next_again(harness: &dyn InboxHarness) {
    for drops in [false, true] {
        let Some(mut inbox) =
            Ordered::begin(harness, "a_rolled_back_arrival_comes_next_again").await
        else {
            return;
        };
        assert_eq!(inbox.told(1).await, Arrival::Next, "drops: {drops}");
        inbox.accept(5).await;
        if drops {
            drop(inbox);
        } else {
            inbox.0.rollback().await;
        }
    }
    let mut inbox = Ordered(harness.begin().await);
    assert_eq!(inbox.told(1).await, Arrival::Next);
    inbox.commit().await;
}

/// Consumers and aggregates that differ in one byte count for themselves. H010, H203, H204
pub async fn consumers_and_keys_are_counted_bytewise(harness: &dyn InboxHarness) {
    let near = ["a", "A", "a ", " a", "\u{e4}", "a\u{308}", "\u{df}", "ss", "'", "\\", "1", "01"];
    let long = "x".repeat(255);
    let Some(mut inbox) = Ordered::begin(harness, "consumers_and_keys_are_counted_bytewise").await
    else {
        return;
    };
    for text in near.into_iter().chain([long.as_str()]) {
        for (consumer, key) in [("billing", text), (text, "of this consumer")] {
            let told = inbox.of(consumer, key, Some(1)).await;
            assert_eq!(told, Arrival::Next, "{consumer:?} {key:?}");
            let again = inbox.of(consumer, key, Some(1)).await;
            assert_eq!(again, Arrival::Duplicate, "{consumer:?} {key:?} again");
        }
    }
    inbox.commit().await;
}

/// Of copies that arrive at the same time one is the next, and none is a gap. H200, H204
pub async fn of_copies_at_the_same_time_one_is_the_next(harness: &dyn InboxHarness) {
    const EVENTS: u64 = 25;
    const TASKS: usize = 8;
    let Some(inbox) = Ordered::begin(harness, "of_copies_at_the_same_time_one_is_the_next").await
    else {
        return;
    };
    inbox.commit().await;
    let handled = futures_util::future::join_all((0..TASKS).map(|_| async move {
        let mut mine = Vec::new();
        for number in 1..=EVENTS {
            let mut inbox = Ordered(harness.begin().await);
            match inbox.told(number).await {
                Arrival::Next => mine.push(number),
                told => assert_eq!(told, Arrival::Duplicate, "{number}"),
            }
            inbox.commit().await;
        }
        mine
    }))
    .await;
    let mut handled: Vec<u64> = handled.concat();
    handled.sort_unstable();
    assert_eq!(handled, (1..=EVENTS).collect::<Vec<_>>());
}

fn gap(expected: u64, got: u64) -> Arrival {
    Arrival::Gap { expected, got }
}

/// A transaction of an inbox that knows numbers.
struct Ordered(Box<dyn InboxTransaction>);

impl Ordered {
    /// `None` where the rule falls away.
    async fn begin(harness: &dyn InboxHarness, rule: &str) -> Option<Self> {
        let mut transaction = harness.begin().await;
        if transaction.arrival("nobody", "nothing", None).await.is_none() {
            falls_away(rule, NO_NUMBERS);
            return None;
        }
        Some(Self(transaction))
    }

    async fn of(&mut self, consumer: &str, key: &str, number: Option<u64>) -> Arrival {
        let told = self.0.arrival(consumer, key, number).await;
        told.expect("it knows numbers").expect("arrival works")
    }

    /// Of one aggregate, to one consumer.
    async fn told(&mut self, number: u64) -> Arrival {
        self.of("billing", "a", Some(number)).await
    }

    async fn accept(&mut self, number: u64) {
        self.0.accept("billing", "a", number).await.expect("accept works");
    }

    async fn commit(self) {
        self.0.commit().await;
    }
}
