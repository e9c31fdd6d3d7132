//! What the strict stub is asked, and what it refuses.

#![allow(clippy::unwrap_used)] // A test.

mod support;

use std::time::Duration;

use outbox_core::{Message, Publisher};
use outbox_sqs::{BodyEncoding, SqsConfig};
use support::stub::Stub;
use support::{Row, failure, numbered, publish, publisher, words};

const KEYS: [&str; 10] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];

async fn stub() -> Stub {
    let stub = Stub::start().await;
    stub.create("q.fifo");
    stub.create("q");
    stub
}

fn of_keys(keys: &[String]) -> Vec<Message> {
    numbered("q.fifo", keys.iter().map(String::as_str))
}

#[tokio::test]
async fn requests_are_full_and_several_are_under_way() {
    let stub = stub().await;
    stub.slow(Duration::from_millis(200));
    let publisher = publisher(&stub.endpoint(), &SqsConfig::new().with_requests_in_flight(4));
    let keys: Vec<String> = (0..100).map(|n| format!("{}", n % 50)).collect();
    assert_eq!(words(&publish(&publisher, of_keys(&keys)).await), ["ok"; 100]);
    assert_eq!(stub.most_under_way(), 4);
    let sizes: Vec<usize> = stub.requests().iter().map(Vec::len).collect();
    assert_eq!(sizes, [10; 10]);
    assert!(publisher.stats().contains(&("sent_messages", 100.0)), "{:?}", publisher.stats());
}

/// H154: the limit of a request counts all its messages, with their attributes.
#[tokio::test]
async fn a_request_stays_below_one_mebibyte() {
    let stub = stub().await;
    let payload = vec![b'x'; 340_000];
    let header = format!(r#"{{"h":"{}"}}"#, "y".repeat(9_500));
    let message = |key| {
        let (payload, headers) = (Some(&*payload), Some(&*header));
        Row { aggregate_id: Some(key), payload, headers, ..Row::default() }.to("q.fifo")
    };
    let publisher = publisher(&stub.endpoint(), &SqsConfig::new());
    let verdicts = publish(&publisher, KEYS[..6].iter().map(|key| message(key)).collect()).await;
    // Three bodies alone would fit.
    assert_eq!(words(&verdicts), ["ok"; 6]);
    let sizes: Vec<usize> = stub.requests().iter().map(Vec::len).collect();
    assert_eq!(sizes, [2; 3]);
}

/// B206, H154: the queue's own limit counts.
#[tokio::test]
async fn a_queue_with_a_small_limit_refuses_what_is_larger_alone() {
    let stub = stub().await;
    stub.create_with("small.fifo", 2_048);
    let payload = vec![b'x'; 2_048];
    let large = Row { payload: Some(&payload), ..Row::default() }.to("small.fifo");
    let mut messages = numbered("small.fifo", ["a", "b", "a"]);
    messages.insert(1, large);
    let publisher = publisher(&stub.endpoint(), &SqsConfig::new());
    let verdicts = publish(&publisher, messages).await;
    assert_eq!(words(&verdicts), ["ok", "permanent", "ok", "ok"]);
    assert!(failure(&verdicts[1]).reason.contains("MaximumMessageSize"), "{verdicts:?}");
}

/// B202, H157
#[tokio::test]
async fn a_standard_queue_is_refused_where_order_is_required() {
    let stub = stub().await;
    let config = SqsConfig::new().with_require_fifo(true);
    let publisher = publisher(&stub.endpoint(), &config);
    let mut messages = numbered("q", ["a"]);
    messages.extend(numbered("q.fifo", ["a"]));
    messages.extend(numbered("arn:aws:sqs:eu-north-1:1:q.fifo", ["b"]));
    messages.extend(numbered("arn:aws:sqs:us-east-1:1:q.fifo", ["c"]));
    messages.extend(numbered("http://stub/1/q.fifo", ["d"]));
    let verdicts = publish(&publisher, messages).await;
    assert_eq!(words(&verdicts), ["refused", "unsent", "refused", "ok", "ok"]);
    assert!(failure(&verdicts[0]).reason.contains("require_fifo"));
    assert!(failure(&verdicts[2]).reason.contains("region"));
}

/// B199: bytes and characters that SQS refuses. Those around them arrive, and encoded they arrive too, as they were.
#[tokio::test]
async fn a_payload_that_sqs_refuses_hurts_no_other() {
    let payloads: [&[u8]; 5] =
        [b"a\0", b"\x0b", "\u{fffe}".as_bytes(), b"\xed\xa0\x80", b"\xff\xfe"];
    let messages = || {
        let bad = payloads.map(|payload| {
            let payload = Some(payload);
            Row { aggregate_id: Some("bad"), payload, ..Row::default() }.to("q.fifo")
        });
        let mut good = numbered("q.fifo", ["good"; 5]);
        good.splice(2..2, bad);
        good
    };
    let stub = stub().await;
    let text = publisher(&stub.endpoint(), &SqsConfig::new());
    let verdicts = publish(&text, messages()).await;
    let found = words(&verdicts);
    assert_eq!(
        (&found[..2], &found[2..7], &found[7..]),
        (&["ok"; 2][..], &["permanent"; 5][..], &["ok"; 3][..])
    );
    assert_eq!(stub.stored("q.fifo").len(), 5);

    let stub = self::stub().await;
    let config = SqsConfig::new().with_body(BodyEncoding::Base64IfRefused);
    let verdicts = publish(&publisher(&stub.endpoint(), &config), messages()).await;
    assert_eq!(words(&verdicts), ["ok"; 10]);
    let stored = stub.stored("q.fifo");
    let bad = stored.iter().filter(|stored| stored.group.as_deref() == Some("bad"));
    let received: Vec<Vec<u8>> = bad.map(|stored| stored.received().payload.unwrap()).collect();
    assert_eq!(received, payloads);
}

/// The template spares the question, and with it the right `sqs:GetQueueUrl`.
#[tokio::test]
async fn a_queue_is_found_by_its_name_or_by_the_template() {
    let stub = stub().await;
    let by_template = SqsConfig::new().with_queue_url("http://stub/1/{name}");
    for (config, questions) in [(by_template, 0), (SqsConfig::new(), 1)] {
        let publisher = publisher(&stub.endpoint(), &config);
        assert_eq!(words(&publish(&publisher, numbered("q.fifo", ["a", "b"])).await), ["ok"; 2]);
        let asked = stub.actions().iter().filter(|action| *action == "GetQueueUrl").count();
        assert_eq!(asked, questions);
    }
}
