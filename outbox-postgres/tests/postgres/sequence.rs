//! Numbered events, and a consumer that notices what is missing.

use std::time::Duration;

use outbox_core::{Arrival, Due, NewEvent, Store as _};
use outbox_postgres::PostgresInbox;

use crate::common::{Outbox, event, everything, sorted};

async fn numbered() -> Outbox {
    Outbox::with(|config| config.with_sequence(true)).await
}

/// The headers of what is pending, in order.
async fn headers(outbox: &Outbox) -> Vec<Option<String>> {
    let claimed = sorted(&outbox.store().claim(&everything(16)).await.unwrap());
    claimed.iter().map(|event| event.headers().map(str::to_owned)).collect()
}

fn number(n: u64) -> Option<String> {
    Some(format!("{{\"outbox-sequence\":\"{n}\"}}"))
}

#[tokio::test]
async fn numbers_rise_by_one_in_each_aggregate_and_a_rollback_takes_its_own_back() {
    let outbox = numbered().await;
    assert_eq!(outbox.schema().check().await.unwrap(), []);
    outbox.append(&[event("b", "1"), event("a", "1"), event("b", "1")]).await;
    let mut tx = outbox.pool.begin().await.unwrap();
    outbox.writer().append(&mut tx, &[event("a", "1"), event("b", "1")]).await.unwrap();
    tx.rollback().await.unwrap();
    let other = |id| NewEvent::builder("invoice", id, "Sent").header("x", "y").build().unwrap();
    outbox.append(&[event("a", "1"), other("a")]).await;
    let expected = [number(1), number(1), number(2), number(2)];
    let last = Some(r#"{"outbox-sequence":"1","x":"y"}"#.to_owned());
    assert_eq!(headers(&outbox).await, [&expected[..], &[last]].concat());
}

/// Events that have no place in the order have no number, and neither has any where numbers are off.
#[tokio::test]
async fn unordered_and_scheduled_events_have_no_number() {
    let outbox = numbered().await;
    let unordered = NewEvent::builder("order", "", "x").unordered().build().unwrap();
    let due = Due::After(Duration::ZERO);
    let scheduled = NewEvent::builder("order", "a", "x").due(due).build().unwrap();
    outbox.append(&[unordered, scheduled]).await;
    assert_eq!(outbox.count("outbox_sequences").await, 0);
    assert_eq!(headers(&outbox).await, [None, None]);
    let plain = outbox.reconfigured(|config| config.with_sequence(false));
    plain.append(&[event("b", "1")]).await;
    assert_eq!(outbox.count("outbox where headers is not null").await, 0);
}

/// Two writers about the same aggregates in opposite orders: each waits for the other, neither in a circle.
#[tokio::test(flavor = "multi_thread")]
async fn writers_of_the_same_aggregates_do_not_lock_each_other_out() {
    let outbox = numbered().await;
    let write = |keys: [&'static str; 2]| {
        let (pool, writer) = (outbox.pool.clone(), outbox.writer());
        tokio::spawn(async move {
            for _ in 0..50 {
                let mut tx = pool.begin().await.unwrap();
                writer.append(&mut tx, &keys.map(|key| event(key, "1"))).await.unwrap();
                tx.commit().await.unwrap();
            }
        })
    };
    for task in [write(["a", "b"]), write(["b", "a"]), write(["a", "b"])] {
        task.await.unwrap();
    }
    let dense = "select count(*) from (
        select (headers::jsonb ->> 'outbox-sequence')::int8 as n,
               row_number() over (partition by aggregateid order by position) as place from outbox) e where n = place";
    assert_eq!(outbox.number(dense).await, 300);
}

/// H204: next, duplicate and gap are told apart; a gap is no progress until the consumer accepts it.
#[tokio::test]
async fn a_gap_is_told_and_stays_until_it_is_accepted() {
    let outbox = numbered().await;
    let inbox = PostgresInbox::new(&outbox.config).unwrap();
    let mut tx = outbox.pool.begin().await.unwrap();
    let gap = Arrival::Gap { expected: 2, got: 4 };
    for (sequence, expected) in
        [(1, Arrival::Next), (1, Arrival::Duplicate), (4, gap), (4, gap), (2, Arrival::Next)]
    {
        let arrival = inbox.arrival(&mut tx, "billing", "a", Some(sequence)).await.unwrap();
        assert_eq!(arrival, expected, "number {sequence}");
    }
    // Other consumers, keys and sources have places of their own.
    let orders = inbox.clone().with_source("orders").unwrap();
    assert_eq!(inbox.arrival(&mut tx, "mailing", "a", Some(1)).await.unwrap(), Arrival::Next);
    assert_eq!(inbox.arrival(&mut tx, "billing", "b", Some(1)).await.unwrap(), Arrival::Next);
    assert_eq!(orders.arrival(&mut tx, "billing", "a", Some(1)).await.unwrap(), Arrival::Next);
    tx.commit().await.unwrap();

    let mut tx = outbox.pool.begin().await.unwrap();
    inbox.accept(&mut tx, "billing", "a", 4).await.unwrap();
    assert_eq!(inbox.arrival(&mut tx, "billing", "a", Some(5)).await.unwrap(), Arrival::Next);
    tx.rollback().await.unwrap();
    let mut tx = outbox.pool.begin().await.unwrap();
    assert_eq!(inbox.arrival(&mut tx, "billing", "a", Some(3)).await.unwrap(), Arrival::Next);
    inbox.accept(&mut tx, "billing", "a", 5).await.unwrap();
    inbox.accept(&mut tx, "billing", "a", 4).await.unwrap();
    assert_eq!(inbox.arrival(&mut tx, "billing", "a", Some(4)).await.unwrap(), Arrival::Duplicate);
    assert_eq!(inbox.arrival(&mut tx, "billing", "a", Some(6)).await.unwrap(), Arrival::Next);
    tx.commit().await.unwrap();
}

/// Of copies that arrive at the same time one is the next.
#[tokio::test(flavor = "multi_thread")]
async fn of_copies_at_the_same_time_one_is_the_next() {
    let outbox = numbered().await;
    let tasks = (0..8).map(|_| {
        let (pool, inbox) = (outbox.pool.clone(), PostgresInbox::new(&outbox.config).unwrap());
        tokio::spawn(async move {
            let mut next = 0;
            for sequence in 1..=100 {
                let mut tx = pool.begin().await.unwrap();
                match inbox.arrival(&mut tx, "billing", "a", Some(sequence)).await.unwrap() {
                    Arrival::Next => next += 1,
                    Arrival::Duplicate => {}
                    gap => panic!("{gap:?} at {sequence}"),
                }
                tx.commit().await.unwrap();
            }
            next
        })
    });
    let mut next = 0;
    for task in tasks.collect::<Vec<_>>() {
        next += task.await.unwrap();
    }
    assert_eq!(next, 100);
}

/// With `sequence` the tables of numbers are looked after as the others are; without, nobody needs them.
#[tokio::test]
async fn the_tables_of_numbers_are_made_and_compared() {
    let plain = Outbox::new().await;
    let outbox = plain.reconfigured(|config| config.with_sequence(true));
    for (change, named) in [
        ("", "outbox_sequences"),
        ("drop table outbox_arrivals", "outbox_arrivals"),
        ("alter table outbox_sequences alter last type int", "outbox_sequences.last"),
        (
            "alter table outbox_arrivals alter key type text collate \"POSIX\"",
            "outbox_arrivals.key",
        ),
        ("alter table outbox_sequences drop constraint outbox_sequences_pkey", "outbox_sequences"),
    ] {
        outbox.execute(change).await;
        let drift = outbox.schema().check().await.unwrap();
        let is_named = |drift: &outbox_core::Drift| drift.to_string().contains(named);
        assert!(drift.iter().any(is_named), "{change}: {drift:?}");
        assert_eq!(plain.schema().check().await.unwrap(), [], "without `sequence`");
        outbox.execute("drop table if exists outbox_sequences, outbox_arrivals").await;
        outbox.schema().migrate().await.unwrap();
        assert_eq!(outbox.schema().check().await.unwrap(), [], "made anew");
    }
}

/// H086: what `docs/schema.md` grants is enough, for a writer and for a consumer.
#[tokio::test]
async fn the_documented_rights_are_enough() {
    let outbox = numbered().await;
    let (writer, inbox) = (outbox.writer(), PostgresInbox::new(&outbox.config).unwrap());
    let role = format!("role_{}", uuid::Uuid::new_v4().simple());
    let grants = format!(
        "create role {role};
         grant insert on outbox, outbox_inbox to {role};
         grant select, insert, update on outbox_sequences, outbox_arrivals to {role}"
    );
    outbox.execute(&grants).await;
    for n in 1..=2 {
        let mut tx = outbox.pool.begin().await.unwrap();
        let set = sqlx::AssertSqlSafe(format!("set local role {role}"));
        sqlx::raw_sql(set).execute(&mut *tx).await.unwrap();
        writer.append(&mut tx, &[event("a", "1")]).await.unwrap();
        assert!(inbox.first_seen(&mut tx, "billing", &n.to_string()).await.unwrap());
        let told = inbox.arrival(&mut tx, "billing", "a", Some(n)).await.unwrap();
        assert_eq!(told, Arrival::Next);
        inbox.accept(&mut tx, "billing", "b", n).await.unwrap();
        tx.commit().await.unwrap();
    }
    assert_eq!(headers(&outbox).await, [number(1), number(2)]);
    outbox.execute(&format!("drop owned by {role}; drop role {role}")).await;
}
