//! Byte for byte what Debezium's EventRouter wrote for the same rows.
//!
//! `golden/messages.jsonl`: one line per row of an outbox table, with the record that Debezium 3.6.1 wrote for it (recorded
//! from Kafka Connect 4.4 with StringConverter, or ByteArrayConverter for `bytea`; the four `__debezium.context.*` headers left
//! out, as `extended.headers.enabled=false` does). Bytes are in hex, null is Kafka's null. `case` is the recording:
//! c02 json, c03 text, c04b and c10c bytea, c07a with the type placed as header `eventType`, c14b ids that are no UUID, c20 and c23 other
//! shapes of the table, c26 `extended.headers.enabled=false`. For the jsonb cases (c07a, c14b, c20, c23, c26) the payload is
//! PostgreSQL's text of the value.
//!
//! `golden/partitions.jsonl`: keys of all recordings and the partition of six that the Java client chose.

#![allow(clippy::unwrap_used)] // A test.

mod common;

use std::collections::HashMap;

use common::{
    LIMIT, Row, Stored, bootstrap, class, create_topic, mock, publish, publisher, random, stored,
};
use outbox_core::{EventId, Router};
use outbox_kafka::received;
use rdkafka::message::{Header, OwnedHeaders, OwnedMessage, Timestamp};
use serde_json::Value;

struct Golden {
    line: Value,
    payload: Option<Vec<u8>>,
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn bytes(value: &Value) -> Option<Vec<u8>> {
    let hex = value.as_str()?;
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    Some((0..hex.len()).step_by(2).map(byte).collect())
}

impl Golden {
    fn text(&self, name: &str) -> Option<&str> {
        self.line[name].as_str()
    }

    /// The recorded record. The type's header was placed in c07a only; where it was placed, it follows the id.
    fn expected(&self) -> Stored {
        let header = |pair: &Value| (pair[0].as_str().unwrap().to_owned(), bytes(&pair[1]));
        let mut headers: Vec<_> =
            self.line["headers"].as_array().unwrap().iter().map(header).collect();
        if headers.len() == 1 {
            let kind = self.text("type").unwrap().as_bytes().to_vec();
            headers.push(("eventType".to_owned(), Some(kind)));
        }
        Stored {
            partition: self.line["partition"].as_i64().unwrap() as i32,
            key: bytes(&self.line["key"]),
            payload: bytes(&self.line["value"]),
            headers,
            timestamp_ms: Some(1_700_000_000_123),
        }
    }
}

/// H135
#[tokio::test]
async fn messages_are_those_of_debezium_byte_for_byte() {
    let bootstrap = bootstrap();
    let publisher = publisher(&bootstrap);
    let router = Router::default();
    let mut by_topic: HashMap<String, Vec<Golden>> = HashMap::new();
    for line in lines(include_str!("golden/messages.jsonl")) {
        // An id of zero bytes is none of ours.
        if line["id"] == "" {
            continue;
        }
        let topic = line["topic"].as_str().unwrap().to_owned();
        let routed = router
            .destination(line["aggregatetype"].as_str().unwrap(), line["type"].as_str().unwrap());
        assert_eq!(routed, topic);
        let payload = bytes(&line["payload"]);
        by_topic.entry(topic).or_default().push(Golden { line, payload });
    }
    let mut compared = 0;
    for (topic, rows) in by_topic {
        let topic = random(&topic);
        create_topic(&bootstrap, &topic, 6, &[]).await;
        let message = |golden: &Golden| {
            let row = Row {
                id: EventId::from_text(golden.text("id").unwrap()).unwrap(),
                aggregate_type: golden.text("aggregatetype").unwrap(),
                aggregate_id: golden.text("aggregateid"),
                event_type: golden.text("type").unwrap(),
                payload: golden.payload.as_deref(),
                ..Row::default()
            };
            row.to(&topic)
        };
        let verdicts = publish(&publisher, rows.iter().map(message).collect()).await;
        assert!(verdicts.iter().all(|verdict| class(verdict).is_none()), "{verdicts:?}");
        let mut found = stored(&bootstrap, &topic).await;
        for golden in rows {
            let mut expected = golden.expected();
            let at = found.iter().position(|stored| stored.headers[0] == expected.headers[0]);
            let stored = found.swap_remove(at.expect("the broker has it"));
            if expected.key.is_none() {
                // Any partition will do.
                expected.partition = stored.partition;
            }
            assert_eq!(stored, expected, "{}", golden.line);
            compared += 1;
        }
        assert_eq!(found, []);
    }
    assert!(compared >= 70, "only {compared} rows were compared");
}

/// What Debezium wrote, a consumer reads as the row that it was written for. The type is there where Debezium was told to place it.
#[test]
fn the_records_of_debezium_are_received_as_their_rows() {
    let mut with_type = 0;
    for line in lines(include_str!("golden/messages.jsonl")) {
        let text = |name: &str| line[name].as_str().map(ToOwned::to_owned);
        let pairs = line["headers"].as_array().unwrap();
        let mut headers = OwnedHeaders::new();
        for pair in pairs {
            let value = bytes(&pair[1]);
            let header = Header { key: pair[0].as_str().unwrap(), value: value.as_ref() };
            headers = headers.insert(header);
        }
        let record = OwnedMessage::new(
            bytes(&line["value"]),
            bytes(&line["key"]),
            text("topic").unwrap(),
            Timestamp::NotAvailable,
            0,
            0,
            Some(headers),
        );
        let event = received(&record);
        if line["id"] == "" {
            assert!(event.unwrap_err().to_string().contains("its header id"), "{line}");
            continue;
        }
        let event = event.unwrap();
        assert_eq!(event.id.to_string(), text("id").unwrap(), "{line}");
        assert_eq!(event.key, text("aggregateid"), "{line}");
        assert_eq!(event.payload.as_deref(), bytes(&line["payload"]).as_deref(), "{line}");
        let placed = pairs.iter().any(|pair| pair[0] == "eventType");
        assert_eq!(event.event_type, text("type").filter(|_| placed), "{line}");
        assert_eq!(event.headers, [], "{line}");
        with_type += usize::from(placed);
    }
    assert!(with_type > 0);
}

/// B165: the Java client's murmur2 for every key, the empty one included; a missing key goes anywhere.
#[tokio::test]
async fn a_key_goes_to_the_partition_that_the_java_client_chooses() {
    let mock = mock(1, 6);
    let bootstrap = mock.bootstrap_servers();
    let publisher = publisher(&bootstrap);
    let keys: Vec<(String, i32)> = lines(include_str!("golden/partitions.jsonl"))
        .iter()
        .map(|line| (line[0].as_str().unwrap().to_owned(), line[1].as_i64().unwrap() as i32))
        .collect();
    assert!(
        keys.iter().any(|(key, _)| key.is_empty()) && keys.iter().any(|(key, _)| !key.is_ascii())
    );
    let message = |(key, _): &(String, i32)| {
        Row { aggregate_id: Some(key), payload: Some(key.as_bytes()), ..Row::default() }.to("t")
    };
    let mut messages: Vec<_> = keys.iter().map(message).collect();
    messages.push(Row { aggregate_id: None, payload: None, ..Row::default() }.to("t"));
    let verdicts = tokio::time::timeout(LIMIT, publish(&publisher, messages)).await.unwrap();
    assert!(verdicts.iter().all(|verdict| class(verdict).is_none()));
    let mut found: Vec<(String, i32)> = Vec::new();
    let mut without_key = 0;
    for stored in stored(&bootstrap, "t").await {
        match &stored.key {
            Some(key) => found.push((String::from_utf8(key.clone()).unwrap(), stored.partition)),
            None => without_key += 1,
        }
    }
    found.sort();
    let mut expected = keys;
    expected.sort();
    assert_eq!(found, expected);
    assert_eq!(without_key, 1);
}
