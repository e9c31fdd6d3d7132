//! ElasticMQ: what a consumer gets, and a server that goes while messages are sent. It has no `MaximumMessageSize` of a queue:
//! `faults.rs` looks at that on the stub.

#![allow(clippy::unwrap_used)] // A test.

mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use outbox_core::{Batch, Publisher};
use outbox_sqs::{BodyEncoding, SqsConfig};
use support::{
    LIMIT, Reader, Row, deliver_all, endpoint, failure, in_order, numbered, publish, publisher,
    random, verdicts, words,
};
use tokio::task::block_in_place;
use xtask::proxy::Proxy;
use xtask::services::ElasticMq;

async fn fifo_queue(reader: &Reader) -> String {
    let queue = random("server") + ".fifo";
    reader.create(&queue).await;
    queue
}

/// The message on the wire, as the crate's documentation has it.
#[tokio::test]
async fn a_consumer_finds_payload_key_and_headers() {
    let reader = Reader::new(&endpoint());
    let (fifo, standard) = (fifo_queue(&reader).await, random("server"));
    reader.create(&standard).await;
    let config = SqsConfig::new().with_body(BodyEncoding::Base64IfRefused);
    let publisher = publisher(&endpoint(), &config);
    let row = Row {
        aggregate_id: Some("order 7"),
        event_type: "Created.v1",
        payload: Some(b"a\0b"),
        headers: Some(r#"{"traceparent":"00-x","empty":"","n":1.50}"#),
        ..Row::default()
    };
    let verdicts = publish(&publisher, vec![row.to(&fifo)]).await;
    assert_eq!(words(&verdicts), ["ok"], "{verdicts:?}");
    let verdicts = publish(&publisher, vec![row.to(&standard)]).await;
    assert_eq!(words(&verdicts), ["ok"], "{verdicts:?}");
    for queue in [&fifo, &standard] {
        let stored = reader.drain(queue).await.remove(0);
        let attributes: Vec<(&str, &str)> = stored
            .attributes
            .iter()
            .map(|(name, (_, value))| (&**name, std::str::from_utf8(value).unwrap()))
            .collect();
        let id = row.id.to_string();
        assert_eq!(
            attributes,
            [
                ("aggregateId", "order 7"),
                ("eventType", "Created.v1"),
                ("id", &id),
                ("n", "1.50"),
                ("outbox-encoding", "base64"),
                ("outbox-headers", r#"{"empty":""}"#),
                ("traceparent", "00-x"),
            ]
        );
        assert_eq!(stored.body, "YQBi");
        let received = stored.received();
        assert_eq!(received.key.as_deref(), Some(&b"order 7"[..]));
        assert_eq!(received.payload.as_deref(), Some(&b"a\0b"[..]));
    }
}

/// B195, H055
#[tokio::test]
async fn the_queue_swallows_a_copy_and_delivers_a_replay() {
    let reader = Reader::new(&endpoint());
    let queue = fifo_queue(&reader).await;
    let publisher = publisher(&endpoint(), &SqsConfig::new());
    let row = Row::default();
    let replayed = Row { headers: Some(r#"{"outbox-replay":"1"}"#), ..row.clone() };
    for row in [&row, &row, &replayed] {
        assert_eq!(words(&publish(&publisher, vec![row.to(&queue)]).await), ["ok"]);
    }
    assert_eq!(reader.drain(&queue).await.len(), 2);
}

/// H045: the queue is deleted while messages are sent to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_is_deleted_under_load_refuses() {
    let reader = Reader::new(&endpoint());
    let queue = fifo_queue(&reader).await;
    let publisher = publisher(&endpoint(), &SqsConfig::new());
    let keys: Vec<String> = (0..400).map(|n| format!("{}", n % 40)).collect();
    let batch = Batch::new(numbered(&queue, keys.iter().map(String::as_str)));
    let deleting = async {
        while batch.open() > 300 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        reader.delete(&queue).await;
    };
    tokio::join!(publisher.publish(batch.clone()), deleting);
    // ElasticMQ does not answer requests in the moment of the deletion, or by a 500.
    let seen: BTreeSet<&str> = words(&verdicts(&batch)).into_iter().collect();
    let fair = BTreeSet::from(["ok", "refused", "open", "unsent", "unavailable"]);
    assert!(seen.is_subset(&fair), "{seen:?}");
    let verdicts = publish(&publisher, numbered(&queue, ["a"])).await;
    assert_eq!(words(&verdicts), ["refused"], "{verdicts:?}");
    assert!(failure(&verdicts[0]).reason.contains(&queue), "{verdicts:?}");
    reader.create(&queue).await;
    let verdicts = publish(&publisher, numbered(&queue, ["a"])).await;
    assert_eq!(words(&verdicts), ["ok"], "{verdicts:?}");
}

/// The line is cut again and again while requests are under way: each message is delivered once and in its key's order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_cut_in_the_middle_costs_neither_order_nor_messages() {
    let reader = Reader::new(&endpoint());
    let queue = fifo_queue(&reader).await;
    let proxy = Proxy::before_url(&endpoint());
    let publisher = publisher(&proxy.through(&endpoint()), &SqsConfig::new());
    let keys: Vec<String> = (0..600).map(|n| format!("{}", n % 30)).collect();
    let cutting = async {
        for pause in 0..8 {
            tokio::time::sleep(Duration::from_millis(20 + pause * 7)).await;
            proxy.cut(true);
            proxy.cut(false);
        }
    };
    let messages = numbered(&queue, keys.iter().map(String::as_str));
    tokio::join!(deliver_all(&publisher, messages), cutting);
    let stored = reader.drain(&queue).await;
    assert_eq!(stored.len(), 600);
    assert!(in_order(&stored));
}

/// The server is restarted and killed while messages are sent; its queues are gone each time. H044, H048
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_goes_under_load_is_an_outage() {
    let elasticmq = block_in_place(ElasticMq::start);
    let reader = Reader::new(&elasticmq.endpoint());
    // While it stops it takes requests and answers none.
    let config = SqsConfig::new().with_request_timeout(Duration::from_secs(3));
    let publisher = publisher(&elasticmq.endpoint(), &config);
    let keys: Vec<String> = (0..4_000).map(|n| format!("{}", n % 40)).collect();
    for kill in [false, true] {
        let queue = fifo_queue(&reader).await;
        let batch = Batch::new(numbered(&queue, keys.iter().map(String::as_str)));
        let going = async {
            while batch.open() > 3_500 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            block_in_place(|| if kill { elasticmq.kill9() } else { elasticmq.stop() });
        };
        let both = async { tokio::join!(publisher.publish(batch.clone()), going) };
        tokio::time::timeout(LIMIT, both).await.expect("the call ends");
        let seen: BTreeSet<&str> = words(&verdicts(&batch)).into_iter().collect();
        let fair = BTreeSet::from(["ok", "unavailable", "open", "unsent"]);
        assert!(seen.is_subset(&fair), "kill {kill}: {seen:?}");

        let verdicts = publish(&publisher, numbered(&queue, ["a", "b"])).await;
        assert_eq!(words(&verdicts), ["unavailable"; 2], "nothing is open: {verdicts:?}");

        publisher.abandon().await;
        block_in_place(|| elasticmq.start_again());
        reader.create(&queue).await;
        let messages = numbered(&queue, keys[..200].iter().map(String::as_str));
        deliver_all(&publisher, messages).await;
        let stored = reader.drain(&queue).await;
        assert_eq!(stored.len(), 200);
        assert!(in_order(&stored));
    }
}
