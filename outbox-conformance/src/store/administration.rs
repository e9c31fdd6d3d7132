//! Dead letters and blocked heads in the hands of an operator, and the tables themselves.

use std::sync::Arc;

use outbox_core::{
    Administration, Dead, DeadLetter, DeadLetterFilter, Drift, Event, EventId, NewEvent, Page,
};

use super::StoreHarness;
use super::owner::{HOUR, Owner, commit, dead, event, event_of, ids_of};

/// A [`StoreHarness`] whose table an operator can look after.
pub trait AdministrationHarness: StoreHarness {
    /// The administration of the table.
    fn administration(&self) -> Arc<dyn Administration>;

    /// Whether the store under test keeps delivered events in an archive.
    fn archives(&self) -> bool {
        false
    }
}

/// A migration of tables that are there changes nothing, and a check finds nothing on which a promise depends.
pub async fn a_second_migration_changes_nothing(harness: &dyn AdministrationHarness) {
    let (owner, admin) = (Owner::new(harness).await, harness.administration());
    let events = [event("a"), event("b")];
    commit(harness, &events).await;
    owner.bury(&owner.events().await[0]).await;
    let before = all(&*admin).await;
    let schema = admin.schema();
    admin.migrate().await.expect("migrate works");
    assert_eq!(owner.ids().await, ids_of(&events[1..]));
    assert_eq!(all(&*admin).await, before);
    assert_eq!(admin.schema(), schema);
    let drift = admin.check().await.expect("check works");
    assert_eq!(Drift::hazards(&drift), None);
}

/// A dead letter tells all that the event was, why it died and when; the list is in the order of deaths. H053
pub async fn a_dead_letter_tells_what_it_was(harness: &dyn AdministrationHarness) {
    let (owner, admin) = (Owner::new(harness).await, harness.administration());
    let full = NewEvent::builder("order", "it's \u{e4}", "Created.v1")
        .payload("{\"a\": 1}")
        .header("tenant", "a\"b")
        .build()
        .expect("within the limits");
    let bare =
        NewEvent::builder("order", "", "Gone").unordered().build().expect("within the limits");
    commit(harness, &[full, bare]).await;
    let events = owner.events().await;
    // The later one dies first.
    bury(&owner, &events[1], "first").await;
    bury(&owner, &events[0], "second").await;
    let letters = all(&*admin).await;
    assert_eq!(letters.len(), 2);
    assert!(letters[0].entry < letters[1].entry, "entries rise in the order of deaths");
    for (letter, (event, reason)) in
        letters.iter().zip([(&events[1], "first"), (&events[0], "second")])
    {
        let mut expected = DeadLetter::new(letter.entry, event.id().clone());
        event.aggregate_type().clone_into(&mut expected.aggregate_type);
        expected.aggregate_id = event.aggregate_id().map(str::to_owned);
        event.event_type().clone_into(&mut expected.event_type);
        expected.payload = event.payload().map(|bytes| bytes.to_vec().into());
        expected.headers = event.headers().map(str::to_owned);
        (expected.attempts, expected.reason) = (3, reason.to_owned());
        expected.created_at = event.created_at();
        expected.died_at = letter.died_at;
        assert_eq!(*letter, expected);
        assert!(letter.died_at >= letter.created_at, "{letter:?}");
        let found = admin.dead_letter(letter.entry).await.expect("it can be read");
        assert_eq!(found.as_ref(), Some(letter));
    }
}

/// A filter means the dead letters that meet all of its conditions, and counts the same ones.
pub async fn a_filter_means_what_meets_every_condition(harness: &dyn AdministrationHarness) {
    let (owner, admin) = (Owner::new(harness).await, harness.administration());
    let typed = |key: &str, event_type: &str| {
        let builder = NewEvent::builder("order", key, event_type).payload("{}");
        builder.build().expect("within the limits")
    };
    let events =
        [typed("a", "Created"), typed("A", "Paid"), event_of("invoice", "a"), typed("b", "Paid")];
    commit(harness, &events).await;
    let reasons = ["Broker refused 100 %", "schema unknown", "broker Refused it", "given up"];
    for (event, reason) in owner.events().await.iter().zip(reasons) {
        bury(&owner, event, reason).await;
    }
    let letters = all(&*admin).await;
    let any = DeadLetterFilter::default;
    let cases: [(DeadLetterFilter, &[usize]); 12] = [
        (any(), &[0, 1, 2, 3]),
        (any().with_id(events[1].id().clone()), &[1]),
        (any().with_aggregate_type("order"), &[0, 1, 3]),
        (any().with_aggregate_type("other"), &[]),
        (any().with_aggregate_id("a"), &[0, 2]),
        (any().with_aggregate_id("A"), &[1]),
        (any().with_event_type("Paid"), &[1, 3]),
        (any().with_text("BROKER refused"), &[0, 2]),
        (any().with_text("0 %"), &[0]),
        (any().with_text("%"), &[0]),
        (any().with_text("s_h"), &[]),
        (any().with_aggregate_type("order").with_aggregate_id("a").with_text("broker"), &[0]),
    ];
    for (filter, expected) in cases {
        let expected: Vec<&DeadLetter> = expected.iter().map(|n| &letters[*n]).collect();
        means(&*admin, &filter, &expected).await;
    }
    let times = letters.iter().map(|letter| letter.died_at);
    let (first, last) = (times.clone().min().expect("four"), times.clone().max().expect("four"));
    for time in times.chain([first - HOUR, last + HOUR]) {
        let since = |letter: &&DeadLetter| letter.died_at >= time;
        let (after, before): (Vec<_>, Vec<_>) = letters.iter().partition(since);
        means(&*admin, &any().with_since(time), &after).await;
        means(&*admin, &any().with_until(time), &before).await;
    }
}

/// Going through the pages of a filter shows each dead letter that it means once, also when some go meanwhile.
pub async fn pages_show_each_dead_letter_once(harness: &dyn AdministrationHarness) {
    let (owner, admin) = (Owner::new(harness).await, harness.administration());
    commit(harness, &super::owner::spread(7)).await;
    for event in owner.events().await {
        owner.bury(&event).await;
    }
    let letters = all(&*admin).await;
    let (mut page, mut seen) = (Page::default().with_limit(3), Vec::new());
    loop {
        let next = admin.dead_letters(&DeadLetterFilter::default(), page).await;
        let next = next.expect("the list can be read");
        assert!(next.len() <= 3, "a page has its limit");
        let Some(last) = next.last() else { break };
        page = page.with_after(last.entry);
        assert!(admin.discard(next[0].entry).await.expect("discard works"));
        seen.extend(next);
    }
    assert_eq!(seen, letters);
}

/// A dead letter that is requeued comes with its id, before all that is behind it in its aggregate, and is no dead letter any
/// more. H055, B068
pub async fn a_requeued_dead_letter_keeps_its_id_and_holds_its_aggregate(
    harness: &dyn AdministrationHarness,
) {
    let (owner, admin) = (Owner::new(harness).await, harness.administration());
    let events = [event("a"), event("a"), event("b")];
    commit(harness, &events).await;
    let head = owner.events().await.remove(0);
    owner.bury(&head).await;
    let entry = all(&*admin).await[0].entry;
    assert!(admin.requeue(entry).await.expect("requeue works"), "it is there");
    assert!(!admin.requeue(entry).await.expect("requeue works"), "it is there no more");
    assert_eq!(all(&*admin).await, []);
    let claimed = owner.events().await;
    assert_eq!(super::owner::ids(&claimed), ids_of(&[events[0].clone(), events[2].clone()]));
    assert_eq!((claimed[0].attempts(), claimed[0].holds_aggregate()), (1, true));
    assert_eq!(claimed[0].position(), head.position());
    owner.deliver(&claimed[0]).await;
    assert_eq!(owner.ids().await, ids_of(&events[1..]));
}

/// Whatever the order in which the events of an aggregate died, requeued together they come in the order of the aggregate, and
/// before what was written meanwhile. H055
pub async fn dead_letters_of_an_aggregate_are_requeued_in_order(
    harness: &dyn AdministrationHarness,
) {
    let (owner, admin) = (Owner::new(harness).await, harness.administration());
    let events = [event("a"), event("a"), event("a"), event("b"), event("a")];
    commit(harness, &events[..4]).await;
    let claimed = owner.events().await;
    for n in [2, 0, 3, 1] {
        owner.bury(&claimed[n]).await;
    }
    commit(harness, &events[4..]).await;
    let filter = DeadLetterFilter::default().with_aggregate_id("a");
    assert_eq!(admin.requeue_all(&filter, Page::default()).await.expect("requeue works"), 3);
    for expected in [&events[0], &events[1], &events[2], &events[4]] {
        let claimed = owner.events().await;
        assert_eq!(super::owner::ids(&claimed), [expected.id().clone()], "one at a time");
        owner.deliver(&claimed[0]).await;
    }
    assert_eq!(ids(&all(&*admin).await), [events[3].id().clone()], "the other one stays dead");
}

/// Of what a filter means, no more than a page is requeued at a time, the first dead first; repeated, all of it.
pub async fn requeue_all_takes_the_first_page_of_what_is_meant(
    harness: &dyn AdministrationHarness,
) {
    let (owner, admin) = (Owner::new(harness).await, harness.administration());
    let events = ["a", "b", "c", "d", "e", "f"]
        .map(|key| event_of(if key == "c" { "invoice" } else { "order" }, key));
    commit(harness, &events).await;
    for event in owner.events().await {
        owner.bury(&event).await;
    }
    let filter = DeadLetterFilter::default().with_aggregate_type("order");
    let page = Page::default().with_limit(2);
    let again = || async { admin.requeue_all(&filter, page).await.expect("requeue works") };
    assert_eq!(again().await, 2);
    assert_eq!(owner.ids().await, ids_of(&events[..2]));
    assert_eq!([again().await, again().await, again().await], [2, 1, 0]);
    assert_eq!(ids(&all(&*admin).await), [events[2].id().clone()]);
}

/// A dead letter that is discarded is gone for good, and no other one.
pub async fn a_discarded_dead_letter_is_gone_and_no_other(harness: &dyn AdministrationHarness) {
    let (owner, admin) = (Owner::new(harness).await, harness.administration());
    let events = [event("a"), event("a"), event("a"), event("b")];
    commit(harness, &events).await;
    let claimed = owner.events().await;
    for event in &claimed[..2] {
        owner.bury(event).await;
    }
    let letters = all(&*admin).await;
    assert!(admin.discard(letters[0].entry).await.expect("discard works"), "it is there");
    assert!(!admin.discard(letters[0].entry).await.expect("discard works"), "it is gone");
    assert!(!admin.requeue(letters[0].entry).await.expect("requeue works"), "it is gone");
    assert_eq!(all(&*admin).await, letters[1..]);
    assert_eq!(owner.ids().await, ids_of(&events[2..]), "what is pending is untouched");
}

/// Of what a filter means, no more than a page is discarded at a time.
pub async fn discard_all_takes_a_page_of_what_is_meant(harness: &dyn AdministrationHarness) {
    let (owner, admin) = (Owner::new(harness).await, harness.administration());
    let events = [event("a"), event_of("invoice", "b"), event("c"), event("d")];
    commit(harness, &events).await;
    for event in owner.events().await {
        owner.bury(&event).await;
    }
    let filter = DeadLetterFilter::default().with_aggregate_type("order");
    let page = Page::default().with_limit(2);
    assert_eq!(admin.discard_all(&filter, page).await.expect("discard works"), 2);
    assert_eq!(ids(&all(&*admin).await), ids_of(&[events[1].clone(), events[3].clone()]));
    assert_eq!(owner.ids().await, []);
}

/// Who dies again is another dead letter: an entry that somebody has noted down never means another one.
pub async fn an_entry_is_never_used_again(harness: &dyn AdministrationHarness) {
    let (owner, admin) = (Owner::new(harness).await, harness.administration());
    commit(harness, &[event("a")]).await;
    let mut entries = Vec::new();
    for _ in 0..3 {
        owner.bury(&owner.events().await[0]).await;
        let entry = all(&*admin).await[0].entry;
        entries.push(entry);
        assert!(admin.requeue(entry).await.expect("requeue works"));
        assert_eq!(admin.dead_letter(entry).await.expect("it can be read"), None);
    }
    assert!(entries.is_sorted_by(|a, b| a < b), "{entries:?}");
}

/// Names of nothing are answered, not refused: somebody may have been faster. Names of something else change nothing.
pub async fn what_is_not_there_is_an_answer(harness: &dyn AdministrationHarness) {
    let (owner, admin) = (Owner::new(harness).await, harness.administration());
    let events = [event("a"), event("b")];
    commit(harness, &events).await;
    let claimed = owner.events().await;
    owner.retry(&claimed[1], Some(HOUR)).await;
    let positions = claimed.iter().map(Event::position);
    for name in positions.chain([0, -1, 987_654_321, i64::MAX, i64::MIN]) {
        assert!(!admin.requeue(name).await.expect("an answer"), "{name}");
        assert!(!admin.discard(name).await.expect("an answer"), "{name}");
        assert!(!admin.unblock(name).await.expect("an answer"), "{name}");
        assert!(!admin.discard_blocked(name).await.expect("an answer"), "{name}");
        assert_eq!(admin.dead_letter(name).await.expect("an answer"), None, "{name}");
    }
    let long = "x".repeat(EventId::MAX_BYTES);
    for id in ["no uuid", &long, "it's", "00000000-0000-4000-8000-000000000000"] {
        let id = EventId::from_text(id).expect("within the limits");
        assert_eq!(admin.find(&id).await.expect("an answer"), [], "{id}");
        let filter = DeadLetterFilter::default().with_id(id);
        means(&*admin, &filter, &[]).await;
        assert_eq!(admin.requeue_all(&filter, Page::default()).await.expect("an answer"), 0);
    }
    assert_eq!(owner.ids().await, ids_of(&events[..1]));
}

/// The list of blocked heads has those that wait until an operator decides, by their positions, and no others.
pub async fn blocked_heads_are_those_that_wait_for_an_operator(
    harness: &dyn AdministrationHarness,
) {
    let (owner, admin) = (Owner::new(harness).await, harness.administration());
    commit(harness, &super::owner::spread(6)).await;
    let events = owner.events().await;
    for n in [4, 0, 2] {
        owner.retry(&events[n], None).await;
    }
    owner.retry(&events[1], Some(HOUR)).await;
    owner.settle(|it| it.dead.push(dead(&events[3]))).await;
    let heads = |page| async move { admin_heads(harness, page).await };
    let found = heads(Page::default()).await;
    let positions: Vec<_> = found.iter().map(|head| head.position).collect();
    assert_eq!(positions, [0, 2, 4].map(|n| events[n].position()));
    let (head, event) = (&found[1], &events[2]);
    assert_eq!((&head.id, head.aggregate_type.as_str()), (event.id(), event.aggregate_type()));
    assert_eq!(head.aggregate_id.as_deref(), event.aggregate_id());
    assert_eq!((head.event_type.as_str(), head.attempts), (event.event_type(), 1));
    assert_eq!((head.reason.as_str(), head.created_at), ("not now", event.created_at()));
    assert_eq!(heads(Page::default().with_limit(2)).await, found[..2]);
    assert_eq!(heads(Page::default().with_after(found[1].position)).await, found[2..]);
    assert!(admin.unblock(found[0].position).await.expect("unblock works"));
    assert_eq!(heads(Page::default()).await, found[1..]);
}

/// A head that is unblocked comes again with its id, and its aggregate waits for it; no other head is unblocked. B018
pub async fn an_unblocked_head_comes_before_its_aggregate(harness: &dyn AdministrationHarness) {
    let (owner, admin) = (Owner::new(harness).await, harness.administration());
    let events = [event("a"), event("b"), event("a")];
    commit(harness, &events).await;
    let claimed = owner.events().await;
    owner.retry(&claimed[0], None).await;
    owner.retry(&claimed[1], None).await;
    assert!(admin.unblock(claimed[0].position()).await.expect("unblock works"));
    assert!(!admin.unblock(claimed[0].position()).await.expect("unblock works"), "only once");
    let again = owner.events().await;
    assert_eq!(super::owner::ids(&again), ids_of(&events[..1]));
    assert!(again[0].holds_aggregate());
    owner.deliver(&again[0]).await;
    assert_eq!(owner.ids().await, ids_of(&events[2..]));
}

/// When a blocked head is discarded, the event behind it comes next and holds the rest until it is delivered: relays have read
/// past it. B018
pub async fn the_hold_of_a_discarded_head_passes_on(harness: &dyn AdministrationHarness) {
    let (owner, admin) = (Owner::new(harness).await, harness.administration());
    let events = [event("a"), event("b"), event("a"), event("a")];
    commit(harness, &events).await;
    let head = owner.events().await.remove(0);
    owner.retry(&head, None).await;
    assert!(admin.discard_blocked(head.position()).await.expect("discard works"));
    assert!(!admin.discard_blocked(head.position()).await.expect("discard works"), "it is gone");
    let left = owner.events().await;
    assert_eq!(super::owner::ids(&left), ids_of(&events[1..3]));
    assert_eq!((left[0].holds_aggregate(), left[1].holds_aggregate()), (false, true));
    owner.deliver(&left[1]).await;
    assert_eq!(owner.ids().await, ids_of(&[events[1].clone(), events[3].clone()]));
}

async fn admin_heads(
    harness: &dyn AdministrationHarness,
    page: Page,
) -> Vec<outbox_core::BlockedHead> {
    harness.administration().blocked_heads(page).await.expect("the list can be read")
}

async fn bury(owner: &Owner, event: &Event, reason: &str) {
    let settled = owner.settle(|it| it.dead.push(Dead::new(event.receipt(), 3, reason))).await;
    assert_eq!(settled.missing, 0, "{event:?} was there");
}

async fn all(admin: &dyn Administration) -> Vec<DeadLetter> {
    let all = DeadLetterFilter::default();
    admin.dead_letters(&all, Page::default()).await.expect("the list can be read")
}

async fn means(admin: &dyn Administration, filter: &DeadLetterFilter, expected: &[&DeadLetter]) {
    let found = admin.dead_letters(filter, Page::default()).await.expect("the list can be read");
    assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{filter:?}");
    let count = admin.count_dead_letters(filter).await.expect("they can be counted");
    assert_eq!(count, expected.len() as u64, "{filter:?}");
}

fn ids(letters: &[DeadLetter]) -> Vec<EventId> {
    letters.iter().map(|letter| letter.id.clone()).collect()
}
