//! Appending: what commits is there, byte for byte.

#![allow(clippy::unwrap_used, reason = "also in the helpers of these tests")]

mod common;

use std::time::Duration;

use common::{event, fixture, fixture_with, one_lane, payloads};
use outbox_core::{EventId, NewEvent, StoreErrorKind, Writer};
use sqlx::Acquire;

#[tokio::test]
async fn what_is_rolled_back_was_never_there() {
    let fixture = fixture_with(one_lane).await;
    let mut tx = fixture.outbox.begin(&fixture.pool).await.unwrap();
    fixture.outbox.append(&mut tx, &[event("a", "gone")]).await.unwrap();
    assert!(fixture.claim_all().await.events.is_empty(), "an open transaction is not seen");
    tx.rollback().await.unwrap();

    let mut tx = fixture.outbox.begin(&fixture.pool).await.unwrap();
    fixture.outbox.append(&mut tx, &[event("a", "1")]).await.unwrap();
    let mut savepoint = tx.begin().await.unwrap();
    fixture.outbox.append(&mut savepoint, &[event("a", "gone")]).await.unwrap();
    savepoint.rollback().await.unwrap();
    let mut savepoint = tx.begin().await.unwrap();
    fixture.outbox.append(&mut savepoint, &[event("a", "2")]).await.unwrap();
    savepoint.commit().await.unwrap();
    fixture.outbox.append(&mut tx, &[]).await.unwrap();
    fixture.outbox.commit(tx).await.unwrap();
    assert_eq!(payloads(&fixture.claim_all().await.events), ["1", "2"]);
}

#[tokio::test]
async fn payloads_come_back_byte_for_byte() {
    let fixture = fixture_with(one_lane).await;
    let every_byte: Vec<u8> = (0..=255).collect();
    let payloads = [
        Some(every_byte),
        Some(vec![]),
        None,
        Some(b"{\"a\": 1.10,\n \"a\":2}".to_vec()),
        Some(b"a\0b".to_vec()),
        Some("é\u{10ffff}".as_bytes().to_vec()),
        Some(vec![0xff; 1024 * 1024]),
    ];
    let events: Vec<_> = payloads
        .iter()
        .map(|payload| {
            let builder = NewEvent::builder("order", "a", "Changed");
            match payload {
                Some(bytes) => builder.payload(bytes.clone()),
                None => builder,
            }
            .build()
            .unwrap()
        })
        .collect();
    fixture.append(&events).await;
    let claimed = fixture.claim_all().await.events;
    for ((expected, appended), event) in payloads.iter().zip(&events).zip(&claimed) {
        assert_eq!(event.payload(), expected.as_deref());
        assert_eq!(event.id(), appended.id());
    }
    assert_eq!(claimed.len(), payloads.len());
    let texts = "select count(*) from outbox where typeof(payload) = 'text'";
    assert_eq!(fixture.number(texts).await, 3, "empty, json, other text");
}

#[tokio::test]
async fn names_ids_and_headers_come_back_as_they_were() {
    let fixture = fixture_with(one_lane).await;
    let long = "x".repeat(255);
    let ids = ["42", "é", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "it's \"quoted\"", &long];
    let events: Vec<_> = ids
        .iter()
        .map(|id| {
            NewEvent::builder("tÿpe", "", "Crèated")
                .id(EventId::from_text(id).unwrap())
                .header("tenant", "a\"cme")
                .build()
                .unwrap()
        })
        .collect();
    fixture.append(&events).await;
    let claimed = fixture.claim_all().await.events;
    for (id, event) in ids.iter().zip(&claimed) {
        assert_eq!(event.id().to_string(), *id);
        assert_eq!(
            (event.aggregate_type(), event.aggregate_id(), event.event_type()),
            ("tÿpe", Some(""), "Crèated")
        );
        assert_eq!(event.headers(), Some(r#"{"tenant":"a\"cme"}"#));
        assert_eq!(event.fault(), None);
    }
    let (worker, owned) = fixture.owner().await;
    let mut verdicts = common::settlements(&worker, &owned, &claimed);
    verdicts.delivered =
        claimed.iter().map(|event| outbox_core::Delivered::new(event.receipt(), "x")).collect();
    use outbox_core::Store;
    assert_eq!(fixture.store.settle(&verdicts).await.unwrap().missing, 0);
}

#[tokio::test]
async fn a_plain_insert_of_the_five_columns_is_complete() {
    let fixture = fixture_with(one_lane).await;
    fixture.execute("insert into outbox (id, aggregatetype, aggregateid, type, payload) values ('1', 'order', 'a', 'Changed', '{}')").await;
    fixture.execute("insert into outbox (aggregatetype, type) values ('order', 'Changed')").await;
    let events = fixture.claim_all().await.events;
    assert_eq!(events[0].id().to_string(), "1");
    assert_eq!((events[0].payload(), events[1].payload()), (Some(&b"{}"[..]), None));
    assert_eq!(events[1].id().as_uuid().map(|id| id.get_version_num()), Some(4));
    assert_eq!(events[1].aggregate_id(), None);
    let age =
        std::time::SystemTime::now().duration_since(events[0].created_at()).unwrap_or_default();
    assert!(age < Duration::from_secs(60));
}

#[tokio::test]
async fn the_statement_for_other_drivers_appends() {
    let fixture = fixture_with(one_lane).await;
    sqlx::query(sqlx::AssertSqlSafe(fixture.outbox.insert_sql()))
        .bind("7")
        .bind("order")
        .bind(None::<String>)
        .bind("Changed")
        .bind(&b"\xff"[..])
        .bind(r#"{"a":"b"}"#)
        .execute(&fixture.pool)
        .await
        .unwrap();
    let event = &fixture.claim_all().await.events[0];
    assert_eq!((event.payload(), event.headers()), (Some(&b"\xff"[..]), Some(r#"{"a":"b"}"#)));
}

#[tokio::test]
async fn an_id_that_no_relay_could_name_is_refused_at_the_writer() {
    let fixture = fixture().await;
    for id in ["''", "cast(x'410042' as text)", "printf('%0256d', 1)", "x'0102'"] {
        let sql = format!(
            "insert into outbox (id, aggregatetype, type) values ({id}, 'order', 'Changed')"
        );
        assert!(
            sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&fixture.pool).await.is_err(),
            "{id}"
        );
    }
}

/// H015, B024: a position is drawn once, also when the highest row is gone.
#[tokio::test]
async fn a_position_never_returns() {
    let fixture = fixture_with(one_lane).await;
    fixture.append(&[event("a", "1"), event("a", "2"), event("a", "3")]).await;
    fixture.execute("delete from outbox where position = 3").await;
    fixture.append(&[event("a", "4")]).await;
    let positions: Vec<_> =
        fixture.claim_all().await.events.iter().map(outbox_core::Event::position).collect();
    assert_eq!(positions, [1, 2, 4]);
}

#[tokio::test]
async fn the_trait_appends_like_the_method() {
    async fn append<W: Writer>(writer: &W, tx: &mut W::Transaction, event: NewEvent) {
        writer.append(tx, &[event]).await.unwrap();
    }
    let fixture = fixture_with(one_lane).await;
    let mut tx = fixture.outbox.begin(&fixture.pool).await.unwrap();
    append(&fixture.outbox, &mut tx, event("a", "1")).await;
    fixture.outbox.commit(tx).await.unwrap();
    assert_eq!(fixture.claim_all().await.events.len(), 1);
}

#[tokio::test]
async fn writers_of_one_process_wait_for_each_other() {
    let fixture = fixture_with(|config| config.with_busy_timeout(Duration::from_millis(50))).await;
    let held = fixture.outbox.begin(&fixture.pool).await.unwrap();
    let error = fixture.outbox.begin(&fixture.pool).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    drop(held);
    fixture.append(&[event("a", "1")]).await;
}
