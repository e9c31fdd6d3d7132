//! That every byte survives the table.

use outbox_core::{Event, NewEvent};
use serde_json::Value;

use super::owner::{Owner, commit};
use super::{PayloadKind, StoreHarness};

/// Payloads come out as they went in; NULL and empty are kept apart. B074
pub async fn every_byte_of_a_payload_survives(harness: &dyn StoreHarness) {
    let kind = harness.payload_kind();
    let payloads = payloads(kind);
    let events: Vec<NewEvent> =
        payloads.iter().map(|payload| with_payload(payload.as_deref())).collect();
    for (event, expected) in through(harness, &events).await.iter().zip(&payloads) {
        let (found, expected) = (event.payload(), expected.as_deref());
        match (kind, found, expected) {
            (PayloadKind::JsonValue, Some(found), Some(expected)) => {
                let (found, expected) = (json(found), json(expected));
                assert!(is_same(&found, &expected), "{found} is not {expected}");
            }
            _ => assert_eq!(
                found,
                expected,
                "{}",
                String::from_utf8_lossy(expected.unwrap_or(b"NULL"))
            ),
        }
    }
}

/// Aggregate ids come out as they went in; none and empty are kept apart, and nothing is trimmed or folded. H010
pub async fn every_byte_of_a_key_survives(harness: &dyn StoreHarness) {
    let keys: Vec<Option<String>> =
        texts().into_iter().map(Some).chain([None, Some(String::new())]).collect();
    let events: Vec<NewEvent> = keys.iter().map(|key| with_key(key.as_deref())).collect();
    for (event, expected) in through(harness, &events).await.iter().zip(&keys) {
        assert_eq!(event.aggregate_id(), expected.as_deref());
    }
}

/// Headers come out as the JSON text that went in: order, repeated names, escapes.
pub async fn every_byte_of_the_headers_survives(harness: &dyn StoreHarness) {
    let mut lists: Vec<Vec<(String, String)>> = vec![Vec::new()];
    lists.extend(texts().into_iter().map(|text| vec![(text.clone(), text)]));
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    lists.push(vec![pair("b", "1"), pair("a", "2"), pair("b", "3"), pair("B", "")]);
    lists.push(vec![pair("control", "\u{1}\t\r\n\u{7f}"), pair("json", "{\"a\":[1]}")]);
    lists.push((0..60).map(|n| (format!("header-{n}"), "x".repeat(1000))).collect());
    let events: Vec<NewEvent> = lists.iter().map(|list| with_headers(list)).collect();
    for (event, expected) in through(harness, &events).await.iter().zip(&events) {
        assert_eq!(event.headers(), expected.headers());
    }
}

/// Aggregate types and event types of the longest kind come out as they went in. B249
pub async fn names_of_the_longest_kind_survive(harness: &dyn StoreHarness) {
    let build = |aggregate_type: &str, event_type: &str| {
        let builder = NewEvent::builder(aggregate_type, "a", event_type).payload("{}");
        builder.build().expect("within the limits")
    };
    let mut events = Vec::new();
    for text in texts() {
        events.extend([build(&text, "Created"), build("order", &text)]);
    }
    for (event, expected) in through(harness, &events).await.iter().zip(&events) {
        assert_eq!(event.aggregate_type(), expected.aggregate_type());
        assert_eq!(event.event_type(), expected.event_type());
    }
}

/// The events as a claim gives them back, in the order given.
async fn through(harness: &dyn StoreHarness, events: &[NewEvent]) -> Vec<Event> {
    let owner = Owner::new(harness).await;
    commit(harness, events).await;
    let claimed = owner.events().await;
    assert_eq!(super::owner::ids(&claimed), super::owner::ids_of(events));
    for event in &claimed {
        assert_eq!(event.fault(), None, "{event:?} can be read");
        assert!(event.created_at_micros() > 0, "{event:?} has a time");
    }
    claimed
}

fn payloads(kind: PayloadKind) -> Vec<Option<Vec<u8>>> {
    let mut payloads = vec![None];
    let json = [
        "{\"b\":1, \"a\" : [1.10, 1e3, -0.0],\n\t\"text\":\"\u{e4}\u{1f980}\\u00e4\\\"\\\\'\"}",
        "\"\"",
        "null",
        "0.1",
        "12345678901234567890",
        r#"{"a":"\\u0000"}"#,
    ];
    payloads.extend(json.map(|text| Some(text.as_bytes().to_vec())));
    payloads.push(Some(format!("\"{}\"", "x".repeat(1_100_000)).into_bytes()));
    if kind != PayloadKind::JsonValue {
        payloads.push(Some(b"  {\"a\":1,\"a\":2}  ".to_vec()));
        payloads.push(Some(b"1.1234567890123456789012345678901234567890".to_vec()));
        payloads.push(Some(br#"{"a":"\u0000","b":"\ud800"}"#.to_vec()));
    }
    if matches!(kind, PayloadKind::Text | PayloadKind::Bytes) {
        payloads.push(Some(Vec::new()));
        payloads.extend(texts().into_iter().map(|text| Some(text.into_bytes())));
        payloads.push(Some("\u{feff}\r\n <xml/>".into()));
    }
    if kind == PayloadKind::Bytes {
        payloads.push(Some((0..=255).collect()));
        payloads.push(Some(vec![0]));
        payloads.extend((0..=255).map(|byte| Some(vec![byte])));
    }
    payloads
}

/// Texts that careless adapters trim, fold, cut, quote or normalise.
fn texts() -> Vec<String> {
    let texts = [
        " ",
        "a",
        "A",
        "a ",
        " a",
        "\u{e4}",
        "a\u{308}",
        "\u{df}",
        "1",
        "01",
        "\u{1f980}",
        "\u{200b}",
    ];
    let hostile = [
        "'; drop table outbox; --",
        "\"",
        "\\",
        "%s%n_",
        "$1 ?1 :a @b",
        "..",
        "a\tb\nc\rd",
        "{}",
        "NULL",
    ];
    let longest = ["x".repeat(255), format!("{}x", "\u{20ac}".repeat(84)) + "yz"];
    let short = texts.into_iter().chain(hostile).map(str::to_owned);
    short.chain(longest).collect()
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).expect("a json column holds JSON")
}

/// Whether two JSON values are the same; numbers by their value, however they are written.
fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            one == other || !(one.is_u64() && other.is_u64()) && one.as_f64() == other.as_f64()
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len()
                && one.iter().zip(other).all(|(one, other)| is_same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one
                    .iter()
                    .all(|(key, one)| other.get(key).is_some_and(|other| is_same(one, other)))
        }
        _ => one == other,
    }
}

fn with_payload(payload: Option<&[u8]>) -> NewEvent {
    let builder = NewEvent::builder("order", "a", "Created");
    let builder = match payload {
        Some(payload) => builder.payload(payload.to_vec()),
        None => builder,
    };
    builder.build().expect("within the limits")
}

fn with_key(key: Option<&str>) -> NewEvent {
    let builder = NewEvent::builder("order", key.unwrap_or_default(), "Created").payload("{}");
    let builder = if key.is_none() { builder.unordered() } else { builder };
    builder.build().expect("within the limits")
}

fn with_headers(list: &[(String, String)]) -> NewEvent {
    let builder = NewEvent::builder("order", "a", "Created").payload("{}");
    let builder = list.iter().fold(builder, |builder, (name, value)| builder.header(name, value));
    builder.build().expect("within the limits")
}
