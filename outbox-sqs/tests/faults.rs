//! Faults that the strict stub causes on purpose.

#![allow(clippy::unwrap_used)] // A test.

mod support;

use std::time::{Duration, Instant};

use outbox_core::{Batch, Publisher};
use outbox_sqs::SqsConfig;
use support::stub::{Step, Stub};
use support::{
    Row, deliver_all, failure, in_order, numbered, publish, publisher, sdk, verdicts, words,
};

const KEYS: [&str; 10] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];

async fn stub() -> Stub {
    let stub = Stub::start().await;
    stub.create("q.fifo");
    stub.create("q");
    stub
}

fn one_request_at_a_time() -> SqsConfig {
    SqsConfig::new().with_requests_in_flight(1)
}

/// Twenty-five keys: three requests.
fn keys() -> Vec<String> {
    (0..25).map(|n| format!("key-{n}")).collect()
}

fn of_keys(keys: &[String]) -> Vec<outbox_core::Message> {
    numbered("q.fifo", keys.iter().map(String::as_str))
}

/// B194, B094, H151: each entry is judged by its own id; one in neither list is open, and nothing follows it.
#[tokio::test]
async fn each_entry_has_its_own_verdict() {
    let stub = stub().await;
    let messages = numbered("q.fifo", KEYS.into_iter().chain(["i", "j"]));
    for (at, code, sender_fault) in [
        (1, "InvalidMessageContents", true),
        (3, "InternalError", false),
        (5, "SomethingNew", true),
    ] {
        stub.fail(&messages[at].id().to_string(), code, sender_fault);
    }
    stub.next([Step::Forget(vec![8])]);
    let verdicts = publish(&publisher(&stub.endpoint(), &SqsConfig::new()), messages).await;
    assert_eq!(
        words(&verdicts),
        [
            "ok",
            "permanent",
            "ok",
            "transient",
            "ok",
            "transient",
            "ok",
            "ok",
            "open",
            "ok",
            "unsent",
            "ok"
        ]
    );
    assert_eq!(stub.stored("q.fifo").len(), 8);
}

/// The service's fault in all entries of a request is an outage, and counts against no event.
#[tokio::test]
async fn a_service_that_fails_with_everything_is_an_outage() {
    let stub = stub().await;
    stub.next([Step::Fail((0..10).collect(), "InternalError", false)]);
    let publisher = publisher(&stub.endpoint(), &SqsConfig::new());
    let verdicts = publish(&publisher, numbered("q.fifo", KEYS)).await;
    assert_eq!(words(&verdicts), ["unavailable"; 10]);
}

/// B207, H155: throttling is an outage, of a request and of an entry; the rest of the call is not sent.
#[tokio::test]
async fn throttling_ends_the_call_and_counts_against_nobody() {
    for (status, code) in [(403, "RequestThrottled"), (400, "KMS.ThrottlingException")] {
        let stub = stub().await;
        stub.next([Step::Refuse(status, code)]);
        let publisher = publisher(&stub.endpoint(), &one_request_at_a_time());
        let verdicts = publish(&publisher, of_keys(&keys())).await;
        assert_eq!(words(&verdicts), ["unavailable"; 25], "{code}");
        assert_eq!(stub.requests().len(), 1, "{code}");
        let again = publish(&publisher, of_keys(&keys())).await;
        assert_eq!(words(&again), ["ok"; 25], "{code}");
    }
    let stub = stub().await;
    stub.next([Step::Fail(vec![0], "RequestThrottled", true)]);
    let publisher = publisher(&stub.endpoint(), &one_request_at_a_time());
    let verdicts = publish(&publisher, of_keys(&keys())).await;
    let words = words(&verdicts);
    assert_eq!((words[0], &words[1..10]), ("unavailable", &["ok"; 9][..]));
    assert_eq!(words[10..], ["unavailable"; 15]);
}

/// B207, H155: what becomes of a message whose request was answered so. Nothing is repeated behind the publisher's back.
#[tokio::test]
async fn answers_say_whose_fault_it_is() {
    let stub = stub().await;
    let publisher = publisher(&stub.endpoint(), &SqsConfig::new());
    for (step, word) in [
        (Step::Refuse(400, "QueueDoesNotExist"), "refused"),
        (Step::Refuse(400, "AWS.SimpleQueueService.NonExistentQueue"), "refused"),
        (Step::Refuse(403, "AccessDeniedException"), "refused"),
        (Step::Refuse(400, "KMS.DisabledException"), "refused"),
        (Step::Refuse(403, "ExpiredTokenException"), "unavailable"),
        (Step::Refuse(403, "InvalidSignatureException"), "unavailable"),
        (Step::Refuse(503, "ServiceUnavailable"), "unavailable"),
        (Step::Refuse(400, "InvalidMessageContents"), "permanent"),
        (Step::Refuse(400, "SomethingNew"), "transient"),
        (Step::Refuse(500, "InternalFailure"), "open"),
        (Step::Nonsense(200), "open"),
        (Step::Nonsense(502), "open"),
        (Step::Nonsense(403), "unavailable"),
        (Step::CutBefore, "open"),
        (Step::CutAfter, "open"),
    ] {
        let before = stub.requests().len();
        stub.next([step.clone()]);
        let verdicts = publish(&publisher, numbered("q", ["a", "a"])).await;
        let behind = match word {
            "permanent" => "ok",
            "refused" | "unavailable" | "transient" | "open" => "unsent",
            _ => unreachable!(),
        };
        assert_eq!(words(&verdicts), [word, behind], "{step:?} {verdicts:?}");
        let sent = if behind == "ok" { 2 } else { 1 };
        assert_eq!(stub.requests().len() - before, sent, "{step:?}");
    }
}

/// H050: a request that is refused as a whole is sent again message by message.
#[tokio::test]
async fn a_request_that_fails_as_a_whole_is_narrowed_to_the_one_at_fault() {
    let stub = stub().await;
    let refusal = || Step::Refuse(400, "InvalidMessageContents");
    stub.next([refusal(), Step::Usual, Step::Usual, refusal()]);
    let publisher = publisher(&stub.endpoint(), &one_request_at_a_time());
    let messages = numbered("q.fifo", ["a", "b", "c", "d", "e", "c"]);
    let verdicts = publish(&publisher, messages).await;
    assert_eq!(words(&verdicts), ["ok", "ok", "permanent", "ok", "ok", "ok"]);
    let sizes: Vec<usize> = stub.requests().iter().map(Vec::len).collect();
    assert_eq!(sizes, [5, 1, 1, 1, 1, 1, 1]);
}

/// H017, H152, B194: whatever happens to requests, a FIFO queue gets each key's messages once and in their order.
#[tokio::test]
async fn a_fifo_queue_keeps_the_order_through_all_faults() {
    for seed in 0..8 {
        let stub = stub().await;
        let mut random = fastrand::Rng::with_seed(seed);
        let steps = (0..60).map(|_| match random.u8(0..12) {
            0 => Step::Fail(vec![random.usize(0..5)], "InternalError", false),
            1 => Step::Fail(vec![0, 2, 4], "SomethingNew", true),
            2 => Step::Forget(vec![random.usize(0..5)]),
            3 => Step::CutBefore,
            4 => Step::CutAfter,
            5 => Step::Refuse(400, "SomethingNew"),
            6 => Step::Refuse(403, "RequestThrottled"),
            7 => Step::Refuse(500, "InternalFailure"),
            _ => Step::Usual,
        });
        stub.next(steps);
        let keys = KEYS[..7].iter().copied().cycle().take(140);
        let publisher = publisher(&stub.endpoint(), &SqsConfig::new().with_requests_in_flight(3));
        deliver_all(&publisher, numbered("q.fifo", keys)).await;
        let stored = stub.stored("q.fifo");
        assert_eq!(stored.len(), 140, "seed {seed}: each once");
        assert!(in_order(&stored), "seed {seed}");
    }
}

/// B195, H055, H153: a copy is swallowed by the queue, a replay is not.
#[tokio::test]
async fn a_copy_is_delivered_once_and_a_replay_again() {
    let stub = stub().await;
    let publisher = publisher(&stub.endpoint(), &SqsConfig::new());
    let row = Row::default();
    let replay = |n| format!(r#"{{"outbox-replay":"{n}"}}"#);
    let (first, second) = (replay(1), replay(2));
    for headers in [None, None, Some(&*first), Some(&*first), Some(&*second)] {
        let message = Row { headers, ..row.clone() }.to("q.fifo");
        assert_eq!(words(&publish(&publisher, vec![message]).await), ["ok"]);
    }
    let ids: Vec<_> = stub.stored("q.fifo").iter().map(|it| it.deduplication_id.clone()).collect();
    let id = row.id.to_string();
    assert_eq!(ids, [id.clone(), format!("{id}#1"), format!("{id}#2")].map(Some));
}

/// B200, H155: a server that never answers costs one time limit, and leaves its messages open.
#[tokio::test]
async fn a_request_without_an_answer_is_given_up() {
    let stub = stub().await;
    let config = one_request_at_a_time().with_request_timeout(Duration::from_millis(500));
    let publisher = publisher(&stub.endpoint(), &config);
    publish(&publisher, numbered("q.fifo", ["a"])).await;
    stub.silence(true);
    let started = Instant::now();
    let verdicts = publish(&publisher, of_keys(&keys())).await;
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    let words = words(&verdicts);
    assert_eq!((&words[..10], &words[10..]), (&["open"; 10][..], &["unavailable"; 15][..]));
}

/// A call that is dropped sends nothing new, and still takes in what comes back.
#[tokio::test]
async fn a_dropped_call_sends_nothing_new() {
    let stub = stub().await;
    let publisher = publisher(&stub.endpoint(), &one_request_at_a_time());
    publish(&publisher, numbered("q.fifo", ["a"])).await;
    stub.slow(Duration::from_millis(700));
    let batch = Batch::new(of_keys(&keys()));
    let call = tokio::time::timeout(Duration::from_millis(350), publisher.publish(batch.clone()));
    assert!(call.await.is_err());
    tokio::time::timeout(support::LIMIT, batch.all_settled()).await.unwrap();
    let words = words(&verdicts(&batch));
    assert_eq!((&words[..10], &words[10..]), (&["ok"; 10][..], &["unavailable"; 15][..]));
    assert_eq!(stub.requests().len(), 2);
}

/// H045: a queue that goes is refused by name, others go on, and it is used once it is there again.
#[tokio::test]
async fn a_queue_that_is_deleted_refuses_until_it_is_there_again() {
    let stub = stub().await;
    let publisher = publisher(&stub.endpoint(), &SqsConfig::new());
    let both = || {
        let mut messages = numbered("q.fifo", KEYS);
        messages.extend(numbered("q", ["x", "y"]));
        messages
    };
    assert_eq!(words(&publish(&publisher, both()).await), ["ok"; 12]);
    stub.delete("q.fifo");
    for _ in 0..2 {
        let verdicts = publish(&publisher, both()).await;
        let words = words(&verdicts);
        assert_eq!((&words[..10], &words[10..]), (&["refused"; 10][..], &["ok"; 2][..]));
        let reason = &failure(&verdicts[0]).reason;
        assert!(reason.contains("queue q.fifo") && reason.contains("create it"), "{reason}");
    }
    stub.create("q.fifo");
    assert_eq!(words(&publish(&publisher, both()).await), ["ok"; 12]);
}

/// H155, B207: an outage that the SDK sees before anything is sent leaves nothing open.
#[tokio::test]
async fn without_a_server_or_a_login_nothing_is_open() {
    let nobody = publisher("http://127.0.0.1:9", &SqsConfig::new());
    let verdicts = publish(&nobody, numbered("q.fifo", ["a", "b"])).await;
    assert_eq!(words(&verdicts), ["unavailable"; 2]);
    assert!(failure(&verdicts[0]).reason.contains("no connection"), "{verdicts:?}");
    assert!(nobody.check().await.unwrap_err().to_string().contains("endpoint"));

    let stub = stub().await;
    let mut anonymous = sdk(&stub.endpoint()).into_builder();
    anonymous.set_credentials_provider(None);
    let anonymous = outbox_sqs::SqsPublisher::new(&anonymous.build(), &SqsConfig::new()).unwrap();
    let verdicts = publish(&anonymous, numbered("q.fifo", ["a", "b"])).await;
    assert_eq!(words(&verdicts), ["unavailable"; 2], "{verdicts:?}");
    assert_eq!(stub.requests().len(), 0);
}
