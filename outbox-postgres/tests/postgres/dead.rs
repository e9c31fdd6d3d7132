//! Dead letters beside the rules of the kit: what is different where positions repeat, and of operators at once.

use outbox_core::{Dead, LaneCursor, Store as _, StoreErrorKind};
use outbox_postgres::{
    Administration as _, DeadLetter, DeadLetterFilter, Page, PostgresAdministration,
};

use crate::common::{Outbox, delivered, event, everything, settlements, sole_owner, sorted};

/// Appends one event for each key and gives all of them up.
async fn with_dead(outbox: &Outbox, keys: &[&str]) {
    let store = outbox.store();
    let (worker, epoch) = sole_owner(&store).await;
    let events: Vec<_> = keys.iter().map(|key| event(key, "{\"a\": 1}")).collect();
    outbox.append(&events).await;
    let events = sorted(&store.claim(&everything(16)).await.unwrap());
    let mut verdicts = settlements(&worker, epoch, &events);
    verdicts.dead = events
        .iter()
        .map(|event| {
            Dead::new(
                event.receipt(),
                3,
                format!("Broker refused {}", event.aggregate_id().unwrap()),
            )
        })
        .collect();
    store.settle(&verdicts).await.unwrap();
    store.leave(&worker).await.unwrap();
}

async fn listed(letters: &PostgresAdministration) -> Vec<DeadLetter> {
    letters.dead_letters(&DeadLetterFilter::default(), Page::default()).await.unwrap()
}

/// B018: a requeued event keeps its id, is due at once and holds what came after it.
#[tokio::test]
async fn a_requeued_event_is_due_and_holds_its_aggregate() {
    let outbox = Outbox::new().await;
    with_dead(&outbox, &["a"]).await;
    outbox.append(&[event("a", "2")]).await;
    let letters = PostgresAdministration::new(&outbox.config).unwrap();
    let letter = listed(&letters).await.remove(0);
    assert!(letters.requeue(letter.entry).await.unwrap());
    assert!(listed(&letters).await.is_empty());

    let store = outbox.store();
    let (worker, epoch) = sole_owner(&store).await;
    let claimed = sorted(&store.claim(&everything(16)).await.unwrap());
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].id(), &letter.id);
    assert_eq!(
        (claimed[0].position(), claimed[0].attempts()),
        (1, 1),
        "all its tries are before it"
    );
    assert!(claimed[0].holds_aggregate());
    store.settle(&delivered(&worker, epoch, &claimed)).await.unwrap();
    assert_eq!(store.claim(&everything(16)).await.unwrap().events.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_operators_at_one_letter_one_wins() {
    let outbox = Outbox::new().await;
    with_dead(&outbox, &["a"]).await;
    let entry = listed(&PostgresAdministration::new(&outbox.config).unwrap()).await[0].entry;
    let mut tasks = Vec::new();
    for n in 0..8 {
        let letters = PostgresAdministration::new(&outbox.config).unwrap();
        tasks.push(tokio::spawn(async move {
            if n % 2 == 0 {
                letters.requeue(entry).await.unwrap()
            } else {
                letters.discard(entry).await.unwrap()
            }
        }));
    }
    let mut won = 0;
    for task in tasks {
        won += i32::from(task.await.unwrap());
    }
    assert_eq!(won, 1);
    assert_eq!(outbox.count("outbox_dead").await, 0);
}

/// Positions start again after `truncate … restart identity`: the requeued row must not block the application's insert.
#[tokio::test]
async fn a_requeued_event_takes_nobodys_position() {
    let outbox = Outbox::new().await;
    with_dead(&outbox, &["a", "b", "c"]).await;
    outbox.execute("truncate outbox restart identity").await;
    outbox.append(&[event("x", "1")]).await;
    let letters = PostgresAdministration::new(&outbox.config).unwrap();
    for letter in listed(&letters).await {
        assert!(letters.requeue(letter.entry).await.unwrap());
    }
    outbox.append(&[event("x", "2"), event("x", "3")]).await;
    assert_eq!(outbox.count("outbox").await, 6);
}

/// Two dead letters may have had one position.
#[tokio::test]
async fn repeated_positions_do_not_hurt_the_dead_letters() {
    let outbox = Outbox::new().await;
    with_dead(&outbox, &["a"]).await;
    outbox.execute("truncate outbox restart identity").await;
    with_dead(&outbox, &["b"]).await;
    assert_eq!(outbox.count("outbox_dead where position = 1").await, 2);
    let store = outbox.store();
    let cursors = vec![LaneCursor::new(0, 0, 0, 1)];
    let request = outbox_core::ClaimRequest::new(crate::common::pipeline(), cursors, 1, 1);
    assert!(store.claim(&request).await.unwrap().events.is_empty());
}

/// B018: relays have read past the events behind a blocked head. What is written from now on must not pass them.
#[tokio::test]
async fn the_hold_of_a_discarded_head_passes_to_the_event_behind_it() {
    let outbox = Outbox::new().await;
    outbox.append(&[event("a", "1"), event("b", "2"), event("a", "3"), event("a", "4")]).await;
    outbox.execute("update outbox set due_at = 'infinity', attempts = 2 where position = 1").await;
    assert!(PostgresAdministration::new(&outbox.config).unwrap().discard_blocked(1).await.unwrap());
    outbox.append(&[event("a", "5")]).await;
    let claimed = sorted(&outbox.store().claim(&everything(16)).await.unwrap());
    let seen: Vec<_> = claimed.iter().map(|e| (e.position(), e.holds_aggregate())).collect();
    assert_eq!(seen, [(2, false), (3, true)]);
}

/// B018: a blocked head goes on, or goes away, when an operator says so.
#[tokio::test]
async fn a_blocked_head_is_unblocked_or_discarded_once() {
    let outbox = Outbox::new().await;
    outbox.append(&[event("a", "1"), event("b", "2"), event("c", "3")]).await;
    outbox
        .execute(
            "update outbox set due_at = 'infinity', attempts = 2, last_error = 'x' where position < 3;
             update outbox set due_at = 'infinity' where position = 3",
        )
        .await;
    let letters = PostgresAdministration::new(&outbox.config).unwrap();
    let blocked = letters.blocked_heads(Page::default()).await.unwrap();
    let found: Vec<_> = blocked.iter().map(|head| (head.position, head.attempts)).collect();
    assert_eq!(found, [(1, 2), (2, 2)]);
    assert!(letters.unblock(1).await.unwrap() && !letters.unblock(1).await.unwrap());
    assert!(
        letters.discard_blocked(2).await.unwrap() && !letters.discard_blocked(2).await.unwrap()
    );
    assert!(!letters.discard_blocked(3).await.unwrap());
    let claimed = sorted(&outbox.store().claim(&everything(16)).await.unwrap());
    assert_eq!((claimed.len(), claimed[0].position(), claimed[0].attempts()), (1, 1, 1));
}

/// H086: what `docs/schema.md` grants to operators is enough, and the less for those who only look.
#[tokio::test]
async fn rights_of_operators_are_enough() {
    let outbox = Outbox::new().await;
    with_dead(&outbox, &["a", "b"]).await;
    outbox.append(&[event("c", "1"), event("d", "1")]).await;
    outbox.execute("update outbox set due_at = 'infinity', attempts = 2").await;
    let role = format!("r{}", uuid::Uuid::new_v4().simple());
    let url = outbox.url.replace("postgres:postgres", &format!("{role}:x"));
    let config = outbox_postgres::PostgresConfig::from_url(&url).unwrap();
    let limited = PostgresAdministration::new(&config).unwrap();
    let grant = format!(
        "create role {role} login password 'x';
         grant select on all tables in schema public to {role}"
    );
    outbox.execute(&grant).await;
    let letters = listed(&limited).await;
    let heads = limited.blocked_heads(Page::default()).await.unwrap();
    assert_eq!((letters.len(), heads.len()), (2, 2));
    assert_eq!(limited.find(&heads[0].id).await.unwrap().len(), 1);
    assert_eq!(limited.count_dead_letters(&DeadLetterFilter::default()).await.unwrap(), 2);
    let refused = limited.requeue(letters[0].entry).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Misconfigured, "{refused}");

    let grant = format!(
        "grant insert, update, delete on outbox to {role};
         grant delete on outbox_dead to {role};
         grant usage on sequence outbox_position_seq to {role}"
    );
    outbox.execute(&grant).await;
    assert!(limited.requeue(letters[0].entry).await.unwrap());
    assert!(limited.discard(letters[1].entry).await.unwrap());
    assert!(limited.unblock(heads[0].position).await.unwrap());
    assert!(limited.discard_blocked(heads[1].position).await.unwrap());
}
