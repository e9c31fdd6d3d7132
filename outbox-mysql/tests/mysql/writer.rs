//! What the writer sends.

use outbox_core::{NewEvent, Store as _, StoreErrorKind};
use outbox_mysql::PayloadType;

use super::{commit, everything};
use crate::common::{Harness, hostile_mariadb};

fn of_bytes(bytes: usize) -> NewEvent {
    let payload = format!("\"{}\"", "x".repeat(bytes));
    NewEvent::builder("order", "7", "Created").payload(payload).build().unwrap()
}

/// B223: a slice larger than `max_allowed_packet` goes in parts; an event that is larger alone is refused before it breaks the
/// connection, and the transaction goes on.
#[tokio::test]
async fn what_is_larger_than_a_packet_is_split_or_refused() {
    let outbox = Harness::new(&hostile_mariadb(), PayloadType::LongText).await;
    let events: Vec<NewEvent> = (0..10).map(|_| of_bytes(700_000)).collect();
    commit(&outbox, &events).await;
    let claimed = outbox.store.claim(&everything(100)).await.unwrap().events;
    let ids: Vec<_> = claimed.iter().map(|event| event.id().clone()).collect();
    assert_eq!(ids, events.iter().map(|event| event.id().clone()).collect::<Vec<_>>());

    let mut transaction = outbox.transaction().await;
    let writer = outbox.writer();
    let error =
        writer.append(&mut transaction.transaction, &[of_bytes(3_000_000)]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Rejected);
    assert!(error.to_string().contains("max_allowed_packet"), "{error}");
    writer.append(&mut transaction.transaction, &[of_bytes(1)]).await.unwrap();
    transaction.transaction.commit().await.unwrap();
}

/// B223: a row that the server could not send any more comes with a fault, and the others come as always.
#[tokio::test]
async fn a_row_that_the_server_cannot_send_comes_with_a_fault() {
    let outbox = Harness::new(&hostile_mariadb(), PayloadType::LongText).await;
    commit(&outbox, &[of_bytes(1), of_bytes(1)]).await;
    outbox.execute("update outbox set payload = repeat('x', 1500000), headers = repeat('y', 1500000) limit 1").await;
    let claimed = outbox.store.claim(&everything(100)).await.unwrap().events;
    let faults: Vec<_> = claimed.iter().map(outbox_core::Event::fault).collect();
    assert!(faults[0].is_some_and(|fault| fault.contains("max_allowed_packet")), "{faults:?}");
    assert_eq!(faults[1], None);
}

/// B226, H188: a plain insert of the five columns from a session with its own time zone and without strict mode is complete.
#[tokio::test]
async fn a_plain_insert_from_any_session_is_complete() {
    for outbox in super::both().await {
        for zone in ["+00:00", "+02:00", "-11:00"] {
            outbox
                .execute(&format!(
                    "set time_zone = '{zone}', sql_mode = '';
                     insert into outbox (id, aggregatetype, aggregateid, type, payload)
                     values (uuid(), 'order', '7', 'OrderPaid', '{{}}')"
                ))
                .await;
        }
        let claimed = outbox.store.claim(&everything(100)).await.unwrap();
        assert_eq!(claimed.events.len(), 3);
        for event in &claimed.events {
            let age = claimed.now_micros - event.created_at_micros();
            assert!((0..60_000_000).contains(&age), "{age} microseconds old");
            assert_eq!((event.fault(), event.id().as_uuid().is_some()), (None, true));
        }
    }
}
