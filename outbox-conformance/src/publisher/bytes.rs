//! That every byte arrives, or the message is refused for good: nothing is changed on the way.

use outbox_core::{Batch, FailureClass};

use super::message::{Draft, batch, class, confirmed, ids, is_confirmed, publish};
use super::{PublisherHarness, Received};
use crate::support::falls_away;

/// A tombstone and an empty payload, no key and an empty one: each as it is, or refused for good.
pub async fn null_and_empty_are_kept_apart(harness: &dyn PublisherHarness) {
    let mut drafts = Vec::new();
    for key in [None, Some(String::new()), Some("key".to_owned())] {
        for payload in [None, Some(Vec::new()), Some(b"{}".to_vec())] {
            drafts.push(Draft { key: key.clone(), payload, ..Draft::default() });
        }
    }
    arrive(harness, &drafts).await;
}

/// Payloads and keys arrive byte for byte, or are refused for good.
pub async fn every_byte_arrives(harness: &dyn PublisherHarness) {
    let mut drafts: Vec<Draft> =
        ["a", "A", " a ", "\u{e4}", "a\u{308}", "\u{1f980}", "'\"\\%", "a\tb\nc", "x"]
            .into_iter()
            .map(Draft::of_key)
            .collect();
    drafts.push(Draft::of_key("x".repeat(255)));
    let payloads: [Vec<u8>; 5] = [
        (0..=255).collect(),
        vec![0],
        b"  {\"a\":1 ,\"a\":2}\r\n".to_vec(),
        vec![b'x'; 200_000],
        vec![0xff],
    ];
    drafts.extend(
        payloads.map(|payload| Draft { payload: Some(payload), ..Draft::of_key("payload") }),
    );
    arrive(harness, &drafts).await;
}

/// An event's own headers arrive in their order, beside its id and its type. B255
pub async fn headers_arrive_in_their_order(harness: &dyn PublisherHarness) {
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let mut lists = vec![
        Vec::new(),
        vec![pair("b", "1"), pair("a", "2"), pair("C", "\u{e4}\u{1f980}")],
        vec![pair("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")],
        vec![pair("correlationId", "'\"\\"), pair("content-type", "application/json")],
        (0..60).map(|n| (format!("header-{n:02}"), "x".repeat(100))).collect(),
    ];
    if harness.faults().repeated_headers {
        lists.push(vec![pair("a", "1"), pair("b", "2"), pair("a", "3"), pair("A", "")]);
    } else {
        falls_away("headers_arrive_in_their_order", "in part: a header name comes once at most");
    }
    let ordered = harness.faults().header_order;
    if !ordered {
        falls_away("headers_arrive_in_their_order", "in part: they arrive in any order");
    }
    let draft = |headers| Draft { headers, ..Draft::of_key("key") };
    let batch = one_by_one(harness, &lists.iter().cloned().map(draft).collect::<Vec<_>>()).await;
    let received = harness.received().await;
    for ((batch, mut headers), index) in batch.iter().zip(lists).zip(0..) {
        if class(batch, 0) == Some(FailureClass::Permanent) {
            continue;
        }
        let found = find(&received, batch);
        assert_eq!(found.header("eventType").as_deref(), Some("Created.v1"));
        let mut own: Vec<(String, String)> = found
            .headers
            .iter()
            .filter(|(name, _)| headers.iter().any(|(own, _)| own == name))
            .map(|(name, value)| (name.clone(), String::from_utf8_lossy(value).into_owned()))
            .collect();
        if !ordered {
            own.sort();
            headers.sort();
        }
        assert_eq!(own, headers, "headers of list {index}");
    }
}

/// Sends each draft, and compares what arrived with it.
async fn arrive(harness: &dyn PublisherHarness, drafts: &[Draft]) {
    let batches = one_by_one(harness, drafts).await;
    let received = harness.received().await;
    for (batch, draft) in batches.iter().zip(drafts) {
        if class(batch, 0) == Some(FailureClass::Permanent) {
            println!("refused for good: {batch:?} {:?}", batch.verdict(0));
            assert!(!received.iter().any(|it| it.header("id") == Some(ids(batch)[0].clone())));
            continue;
        }
        assert!(is_confirmed(batch, 0), "{draft:?}: {:?}", batch.verdict(0));
        let found = find(&received, batch);
        assert_eq!(found.key.as_deref(), draft.key.as_deref().map(str::as_bytes));
        assert_eq!(found.payload, draft.payload, "payload of key {:?}", draft.key);
    }
    // Whatever was refused, the publisher works on.
    confirmed(&*harness.publisher().await, &batch(harness, &[Draft::of_key("last")])).await;
}

/// A call for each draft: one that is refused has no neighbours here.
async fn one_by_one(harness: &dyn PublisherHarness, drafts: &[Draft]) -> Vec<Batch> {
    let publisher = harness.publisher().await;
    let mut batches = Vec::new();
    for draft in drafts {
        let batch = batch(harness, std::slice::from_ref(draft));
        publish(&*publisher, &batch).await;
        batches.push(batch);
    }
    batches
}

fn find<'a>(received: &'a [Received], batch: &Batch) -> &'a Received {
    let id = ids(batch).remove(0);
    let found = received.iter().find(|message| message.header("id").as_ref() == Some(&id));
    found.unwrap_or_else(|| panic!("{id} was confirmed but did not arrive"))
}
