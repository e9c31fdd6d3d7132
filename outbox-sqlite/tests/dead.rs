//! Dead letters in the hands of operators.

#![allow(clippy::unwrap_used, reason = "also in the helpers of these tests")]

mod common;

use common::{Fixture, event, fixture_with, one_lane, payloads, settlements};
use outbox_core::{Dead, Event, Retry, Store};
use outbox_sqlite::{
    Administration as _, DeadLetter, DeadLetterFilter, Page, SqliteAdministration,
};

/// Three events of one aggregate, the first of them dead.
async fn with_a_dead_head() -> (Fixture, SqliteAdministration) {
    let fixture = fixture_with(one_lane).await;
    let (worker, owned) = fixture.owner().await;
    fixture.append(&[event("a", "1"), event("a", "2"), event("a", "3")]).await;
    let events = fixture.claim_all().await.events;
    let mut verdicts = settlements(&worker, &owned, &events);
    let receipt = events[0].receipt();
    verdicts.dead = vec![Dead::new(receipt, 5, "its schema is unknown")];
    fixture.store.settle(&verdicts).await.unwrap();
    let letters = SqliteAdministration::new(&fixture.config).unwrap();
    (fixture, letters)
}

async fn listed(letters: &SqliteAdministration) -> Vec<DeadLetter> {
    letters.dead_letters(&DeadLetterFilter::default(), Page::default()).await.unwrap()
}

#[tokio::test]
async fn a_dead_letter_tells_what_it_was_and_its_aggregate_goes_on() {
    let (fixture, letters) = with_a_dead_head().await;
    assert_eq!(payloads(&fixture.claim_all().await.events), ["2", "3"]);
    let letters = listed(&letters).await;
    let letter = &letters[0];
    assert_eq!(letters.len(), 1);
    assert_eq!(
        (letter.aggregate_type.as_str(), letter.aggregate_id.as_deref()),
        ("order", Some("a"))
    );
    assert_eq!(
        (letter.event_type.as_str(), letter.payload.as_deref()),
        ("Changed", Some(&b"1"[..]))
    );
    assert_eq!((letter.attempts, letter.reason.as_str()), (5, "its schema is unknown"));
    assert!(letter.died_at >= letter.created_at);
}

/// A requeued event keeps its id, has all its tries before it, is due at once, and holds its aggregate.
#[tokio::test]
async fn a_requeued_event_goes_first_in_its_aggregate() {
    let (fixture, letters) = with_a_dead_head().await;
    let letter = &listed(&letters).await[0];
    assert!(letters.requeue(letter.entry).await.unwrap());
    let events = fixture.claim_all().await.events;
    assert_eq!(payloads(&events), ["1"]);
    assert_eq!(events[0].id(), &letter.id);
    assert_eq!((events[0].attempts(), events[0].holds_aggregate()), (1, true));
    assert!(listed(&letters).await.is_empty());
}

#[tokio::test]
async fn a_requeued_event_whose_place_is_taken_gets_a_new_one() {
    let (fixture, letters) = with_a_dead_head().await;
    fixture
        .execute("insert into outbox (position, aggregatetype, aggregateid, type, payload) values (1, 'order', 'b', 'C', 'b')")
        .await;
    let letter = &listed(&letters).await[0];
    assert!(letters.requeue(letter.entry).await.unwrap());
    let events = fixture.claim_all().await.events;
    let requeued = events.iter().find(|event| *event.id() == letter.id);
    assert_eq!(requeued.map(Event::position), Some(4));
}

#[tokio::test]
async fn a_discarded_event_is_gone() {
    let (fixture, letters) = with_a_dead_head().await;
    let entry = listed(&letters).await[0].entry;
    assert!(letters.discard(entry).await.unwrap());
    assert!(!letters.discard(entry).await.unwrap());
    assert!(!letters.requeue(entry).await.unwrap());
    assert_eq!(payloads(&fixture.claim_all().await.events), ["2", "3"]);
}

/// B018: under `hold` the head stays and blocks its aggregate until an operator decides.
#[tokio::test]
async fn a_blocked_head_is_sent_again_or_dropped() {
    let fixture = fixture_with(one_lane).await;
    let (worker, owned) = fixture.owner().await;
    fixture.append(&[event("a", "1"), event("a", "2")]).await;
    let events = fixture.claim_all().await.events;
    let mut verdicts = settlements(&worker, &owned, &events);
    let receipt = events[0].receipt();
    let reason = "its schema is unknown".to_owned();
    verdicts.retries = vec![Retry::new(receipt, 7, None, reason)];
    fixture.store.settle(&verdicts).await.unwrap();
    let letters = SqliteAdministration::new(&fixture.config).unwrap();

    let heads = letters.blocked_heads(Page::default()).await.unwrap();
    assert_eq!((heads.len(), heads[0].position, heads[0].attempts), (1, 1, 7));
    assert_eq!(heads[0].reason, "its schema is unknown");
    assert!(letters.blocked_heads(Page::default().with_after(1)).await.unwrap().is_empty());
    assert!(fixture.claim_all().await.events.is_empty());
    assert!(!letters.unblock(2).await.unwrap(), "only heads that are blocked");
    assert!(!letters.discard_blocked(2).await.unwrap(), "only heads that are blocked");

    assert!(letters.unblock(1).await.unwrap());
    assert!(!letters.discard_blocked(1).await.unwrap());
    let events = fixture.claim_all().await.events;
    assert_eq!((payloads(&events), events[0].attempts()), (vec!["1"], 1));

    fixture.store.settle(&verdicts).await.unwrap();
    assert!(letters.discard_blocked(1).await.unwrap());
    let events = fixture.claim_all().await.events;
    assert_eq!(payloads(&events), ["2"]);
    assert!(events[0].holds_aggregate(), "the hold passes to the event behind it");
}

/// B068: of operators who decide about one dead letter at once exactly one succeeds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_operators_one_wins() {
    let (fixture, first) = with_a_dead_head().await;
    let second = SqliteAdministration::new(&fixture.config).unwrap();
    for round in 0..50 {
        let entry = listed(&first).await[0].entry;
        let (one, two) = tokio::join!(first.requeue(entry), second.requeue(entry));
        assert!(one.unwrap() ^ two.unwrap(), "round {round}");
        assert_eq!(
            fixture.number("select count(*) from outbox where last_error is not null").await,
            1
        );
        fixture
            .execute(
                "begin immediate;
                 insert into outbox_dead (position, id, aggregatetype, aggregateid, type, created_at, lane, attempts, reason)
                   select position, id, aggregatetype, aggregateid, type, created_at, lane, attempts, 'again'
                     from outbox where last_error is not null;
                 delete from outbox where last_error is not null;
                 commit",
            )
            .await;
    }
    let entry = listed(&first).await[0].entry;
    let (requeued, discarded) = tokio::join!(first.requeue(entry), second.discard(entry));
    assert!(requeued.unwrap() ^ discarded.unwrap());
}
