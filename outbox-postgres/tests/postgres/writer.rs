//! Appending, in the application's own transaction.

use std::time::{Duration, SystemTime};

use outbox_core::{Due, Event, EventId, NewEvent, Store as _, StoreErrorKind};
use outbox_postgres::{PayloadType, PostgresOutbox};
use sqlx::Acquire as _;
use uuid::Uuid;

use crate::common::{Outbox, event, everything, sorted};

/// H008: one statement, whose rows get their positions in the order of the slice.
#[tokio::test]
async fn positions_rise_in_the_order_of_the_slice() {
    let outbox = Outbox::new().await;
    let events: Vec<_> = (0..3000).map(|n| event(&format!("k{}", n * 7 % 31), "{}")).collect();
    outbox.append(&events).await;
    let claimed = sorted(&outbox.store().claim(&everything(16)).await.unwrap());
    assert!(claimed.iter().map(Event::id).eq(events.iter().map(NewEvent::id)));
}

/// H011: what is rolled back to a savepoint was never there.
#[tokio::test]
async fn a_savepoint_takes_its_events_with_it() {
    let outbox = Outbox::new().await;
    let writer = outbox.writer();
    let mut tx = outbox.pool.begin().await.unwrap();
    writer.append(&mut tx, &[event("a", "1")]).await.unwrap();
    let mut savepoint = tx.begin().await.unwrap();
    writer.append(&mut savepoint, &[event("a", "2")]).await.unwrap();
    savepoint.rollback().await.unwrap();
    let mut savepoint = tx.begin().await.unwrap();
    writer.append(&mut savepoint, &[event("a", "3")]).await.unwrap();
    savepoint.commit().await.unwrap();
    writer.append(&mut tx, &[]).await.unwrap();
    writer.commit(tx).await.unwrap();
    let mut tx = outbox.pool.begin().await.unwrap();
    writer.append(&mut tx, &[event("a", "4")]).await.unwrap();
    tx.rollback().await.unwrap();

    let claimed = sorted(&outbox.store().claim(&everything(16)).await.unwrap());
    let payloads: Vec<_> = claimed.iter().map(|event| event.payload().unwrap()).collect();
    assert_eq!(payloads, [b"1", b"3"]);
}

/// Five columns from any client are a correct append.
#[tokio::test]
async fn an_insert_of_five_columns_is_complete() {
    let outbox = Outbox::new().await;
    let id = Uuid::new_v4();
    outbox
        .execute(&format!(
            "insert into outbox (id, aggregatetype, aggregateid, type, payload)
             values ('{id}', 'order', '7', 'Paid', '{{\"a\" : 1}}')"
        ))
        .await;
    let claimed = sorted(&outbox.store().claim(&everything(16)).await.unwrap());
    let event = &claimed[0];
    assert_eq!(*event.id(), EventId::from(id));
    assert_eq!((event.aggregate_type(), event.aggregate_id()), ("order", Some("7")));
    assert_eq!((event.event_type(), event.payload()), ("Paid", Some(&b"{\"a\" : 1}"[..])));
    assert_eq!((event.headers(), event.attempts(), event.is_waiting()), (None, 0, false));
    let age = SystemTime::now().duration_since(event.created_at()).unwrap();
    assert!(age < Duration::from_secs(60), "{age:?}");
}

#[tokio::test]
async fn due_times_go_by_the_databases_clock() {
    let outbox = Outbox::new().await;
    let with = |due| NewEvent::builder("order", "a", "Later").due(due).build().unwrap();
    let hour = Duration::from_secs(3600);
    let events = [
        with(Due::After(hour)),
        with(Due::After(Duration::ZERO)),
        with(Due::At(SystemTime::now() - hour)),
        with(Due::At(SystemTime::now() + 2 * hour)),
        with(Due::After(Duration::MAX)),
        event("a", "1"),
    ];
    outbox.append(&events).await;
    let claimed = sorted(&outbox.store().claim(&everything(16)).await.unwrap());
    let positions: Vec<_> = claimed.iter().map(Event::position).collect();
    assert_eq!(positions, [2, 3, 6]);
    assert!(claimed[0].is_waiting() && !claimed[0].holds_aggregate());
    let near =
        "outbox where due_at - clock_timestamp() between interval '59 min' and interval '1 h'";
    assert_eq!(outbox.count(near).await, 1);
    let far =
        "outbox where due_at - clock_timestamp() between interval '119 min' and interval '2 h'";
    assert_eq!(outbox.count(far).await, 1);
}

#[tokio::test]
async fn with_unique_ids_the_second_append_changes_nothing() {
    let outbox = Outbox::with(|config| config.with_unique_id(true)).await;
    assert_eq!(outbox.schema().check().await.unwrap(), []);
    let first = event("a", "1");
    outbox.append(std::slice::from_ref(&first)).await;
    outbox.append(&[first.clone(), event("a", "2"), first]).await;
    assert_eq!(outbox.count("outbox").await, 2);
}

#[tokio::test]
async fn what_the_columns_cannot_hold_is_refused_with_the_reason() {
    let outbox = Outbox::new().await;
    let builder = || NewEvent::builder("order", "a", "Created");
    for (bad, why) in [
        (builder().id(EventId::from_text("42").unwrap()).build().unwrap(), "UUID"),
        (builder().payload(vec![0xff]).build().unwrap(), "bytea"),
        (builder().payload("{").build().unwrap(), "data"),
    ] {
        let mut tx = outbox.pool.begin().await.unwrap();
        let error = outbox.writer().append(&mut tx, &[event("a", "1"), bad]).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Rejected);
        assert!(error.to_string().contains(why), "{error}");
        tx.rollback().await.unwrap();
    }
    assert_eq!(outbox.count("outbox").await, 0);
}

/// What went in comes out, byte for byte; of jsonb, PostgreSQL's text of the value. B232
#[tokio::test]
async fn payloads_of_all_column_types_come_back() {
    let json = " {\"b\": 1.10, \"a\":[ ],\n\"é\": \"\\u0041\"} ";
    for (payload, text, expected) in [
        (PayloadType::Json, json, json),
        (PayloadType::Jsonb, json, r#"{"a": [], "b": 1.10, "é": "A"}"#),
        (PayloadType::Text, "{not json", "{not json"),
        (PayloadType::Text, "", ""),
        (PayloadType::Bytea, "any \0 bytes", "any \0 bytes"),
        (PayloadType::Bytea, "", ""),
    ] {
        let outbox = Outbox::with(|config| config.with_payload(payload)).await;
        assert_eq!(outbox.schema().check().await.unwrap(), []);
        let tombstone = NewEvent::builder("order", "a", "Gone").build().unwrap();
        outbox.append(&[event("a", text), tombstone]).await;
        for config in [outbox.config.clone(), outbox.config.clone().with_pooled(true)] {
            let store = outbox_postgres::PostgresStore::new(&config).unwrap();
            let claimed = sorted(&store.claim(&everything(16)).await.unwrap());
            assert_eq!(claimed[0].payload(), Some(expected.as_bytes()), "{payload:?}");
            assert_eq!(claimed[1].payload(), None, "{payload:?}");
        }
    }
    let outbox = Outbox::with(|config| config.with_payload(PayloadType::Bytea)).await;
    let all: Vec<u8> = (0..=255).collect();
    let event = NewEvent::builder("order", "a", "Bytes").payload(all.clone()).build().unwrap();
    outbox.append(&[event]).await;
    let claimed = sorted(&outbox.store().claim(&everything(16)).await.unwrap());
    assert_eq!(claimed[0].payload(), Some(&all[..]));
}

/// Headers, an empty key, no key: as they were given.
#[tokio::test]
async fn headers_and_keys_come_back_byte_for_byte() {
    let outbox = Outbox::new().await;
    let odd = NewEvent::builder("Order ä'\"\\", " \u{301}é ", "x")
        .header("trace", "\u{1F600}\"\\")
        .header("a", "")
        .build()
        .unwrap();
    let empty = NewEvent::builder("order", "", "x").build().unwrap();
    let none = NewEvent::builder("order", "", "x").unordered().build().unwrap();
    outbox.append(&[odd.clone(), empty, none]).await;
    let claimed = sorted(&outbox.store().claim(&everything(16)).await.unwrap());
    assert_eq!(claimed[0].headers(), odd.headers());
    assert_eq!(claimed[0].aggregate_type(), odd.aggregate_type());
    assert_eq!(claimed[0].aggregate_id(), odd.aggregate_id());
    assert_eq!((claimed[1].aggregate_id(), claimed[2].aggregate_id()), (Some(""), None));
}

/// The text for other drivers: the documented parameters, and nothing else.
#[tokio::test]
async fn the_statement_for_other_drivers_works_as_documented() {
    let outbox = Outbox::new().await;
    let writer: PostgresOutbox = outbox.writer();
    sqlx::query(sqlx::AssertSqlSafe(writer.insert_sql()))
        .bind(vec![Uuid::nil(), Uuid::max()])
        .bind(vec!["order"; 2])
        .bind(vec![Some("a"), None])
        .bind(vec!["Created"; 2])
        .bind(vec![Some("{}"), None])
        .bind(vec![None, Some("{\"a\":\"b\"}")])
        .bind(vec![None::<i64>; 2])
        .bind(vec![None::<i64>; 2])
        .execute(&outbox.pool)
        .await
        .unwrap();
    let claimed = sorted(&outbox.store().claim(&everything(16)).await.unwrap());
    assert_eq!(claimed.len(), 2);
    assert_eq!(claimed[1].headers(), Some("{\"a\":\"b\"}"));
}
