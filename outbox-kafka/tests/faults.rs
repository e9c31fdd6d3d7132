//! What becomes of messages when the broker refuses, stands still or goes away: on librdkafka's mock cluster.

#![allow(clippy::unwrap_used)] // A test.

mod common;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use common::{
    LIMIT, Mock, Row, class, failure, mock, numbered, publish, publish_until_queued, publisher,
    queued, settled, stored, verdicts,
};
use outbox_core::{Batch, FailureClass, Publisher, Verdict};
use outbox_kafka::{KafkaConfig, KafkaPublisher};
use rdkafka::types::{RDKafkaApiKey as Api, RDKafkaRespErr as Err};

const CONFIRMED: Option<FailureClass> = None;
const PERMANENT: Option<FailureClass> = Some(FailureClass::Permanent);
const REFUSED: Option<FailureClass> = Some(FailureClass::Refused);
const TRANSIENT: Option<FailureClass> = Some(FailureClass::Transient);
const UNSENT: Option<FailureClass> = Some(FailureClass::Unsent);
const UNAVAILABLE: Option<FailureClass> = Some(FailureClass::Unavailable);

/// A publisher whose batches hold at most 10 messages, so that a call is many requests. One at a time is in flight: the
/// mock cluster looks at no sequence numbers, so it would take a request behind one that it has refused. A broker
/// does not; see `server.rs`.
fn small_batches(mock: &Mock) -> KafkaPublisher {
    let config = KafkaConfig::new(mock.bootstrap_servers())
        .with_property("batch.num.messages", "10")
        .with_property("max.in.flight", "1");
    KafkaPublisher::new(&config).unwrap()
}

fn classes(verdicts: &[Option<Verdict>]) -> Vec<Option<FailureClass>> {
    verdicts.iter().map(class).collect()
}

/// The payloads of topic `t`, in the log's order.
async fn texts(mock: &Mock) -> Vec<String> {
    let stored = stored(&mock.bootstrap_servers(), "t").await;
    stored.iter().map(|stored| stored.text().to_owned()).collect()
}

/// B071, H050: what is too large for the producer is refused alone.
#[tokio::test]
async fn an_oversize_message_is_refused_alone() {
    let mock = mock(1, 1);
    let large = vec![b'x'; 2 << 20];
    let mut messages = numbered("t", "a", 100);
    messages[50] = Row { payload: Some(&large), ..Row::default() }.to("t");
    let verdicts = publish(&publisher(&mock.bootstrap_servers()), messages).await;
    for (index, class) in classes(&verdicts).into_iter().enumerate() {
        assert_eq!(class, if index == 50 { PERMANENT } else { CONFIRMED }, "{index}");
    }
    assert!(failure(&verdicts[50]).reason.contains("max_message_bytes"));
    assert_eq!(texts(&mock).await.len(), 99);
}

/// B168, B171, H134: what only the broker finds too large is refused for good, and the next one is delivered.
#[tokio::test]
async fn a_message_that_the_broker_finds_too_large_is_permanent() {
    let mock = mock(1, 1);
    let publisher = publisher(&mock.bootstrap_servers());
    mock.request_errors(Api::Produce, &[Err::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE]);
    let first = publish(&publisher, numbered("t", "a", 1)).await;
    assert_eq!(classes(&first), [PERMANENT]);
    assert!(failure(&first[0]).reason.contains("max.message.bytes"));
    let second = publish(&publisher, numbered("t", "a", 1)).await;
    assert_eq!(classes(&second), [CONFIRMED]);
}

/// Rule: a batch that fails as a whole is narrowed until the one bad message is known.
#[tokio::test]
async fn a_refused_batch_is_tried_again_message_by_message() {
    let mock = mock(1, 1);
    let publisher = small_batches(&mock);
    let too_large = Err::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
    let none = Err::RD_KAFKA_RESP_ERR_NO_ERROR;
    // Refused as a batch; then singly: two are taken, the third is the bad one.
    mock.request_errors(Api::Produce, &[too_large, none, none, too_large]);
    let keys = ["a", "b", "c", "d", "e"];
    let messages = || keys.iter().flat_map(|key| numbered("t", key, 1)).collect::<Vec<_>>();
    let first = publish(&publisher, messages()).await;
    assert_eq!(classes(&first), [UNAVAILABLE; 5]);
    let second = publish(&publisher, messages()).await;
    assert_eq!(classes(&second), [CONFIRMED, CONFIRMED, PERMANENT, CONFIRMED, CONFIRMED]);
}

/// Each kind of refusal stops the producer, so that nothing is sent behind it; the next call finds a new one. H045, H130,
/// B171. The first two batches were taken. (The order in the log is looked at in `server.rs`: the mock cluster would take a
/// request that was under way already.)
#[tokio::test]
async fn a_refusal_stops_the_producer_and_the_next_call_finds_a_new_one() {
    for (error, expected) in [
        (Err::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED, REFUSED),
        (Err::RD_KAFKA_RESP_ERR_POLICY_VIOLATION, REFUSED),
        (Err::RD_KAFKA_RESP_ERR_UNKNOWN, REFUSED),
        (Err::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED, UNAVAILABLE),
        (Err::RD_KAFKA_RESP_ERR_INVALID_REQUEST, TRANSIENT),
        (Err::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE, UNAVAILABLE),
        (Err::RD_KAFKA_RESP_ERR_INVALID_RECORD, UNAVAILABLE),
        (Err::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER, UNAVAILABLE),
    ] {
        let mock = mock(1, 1);
        let publisher = small_batches(&mock);
        let none = Err::RD_KAFKA_RESP_ERR_NO_ERROR;
        mock.request_errors(Api::Produce, &[none, none, error]);
        let classes = classes(&publish(&publisher, numbered("t", "a", 500)).await);
        assert_eq!(classes[..20], [CONFIRMED; 20], "{error:?}");
        assert_eq!(classes[20..30], [expected; 10], "{error:?}");
        assert!(classes[40..].iter().all(|class| *class == expected || *class == UNAVAILABLE));
        mock.create_topic("u", 1, 1).unwrap();
        let again = publish(&publisher, numbered("u", "b", 5)).await;
        assert_eq!(common::class(&again[4]), CONFIRMED, "{error:?}: {again:?}");
    }
}

/// What the broker may do better next time is repeated by the producer, in order and without doubles.
#[tokio::test]
async fn passing_errors_of_the_broker_are_not_seen() {
    for error in [
        Err::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
        Err::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
        Err::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
        Err::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART,
        Err::RD_KAFKA_RESP_ERR__TRANSPORT,
    ] {
        let mock = mock(1, 1);
        let none = Err::RD_KAFKA_RESP_ERR_NO_ERROR;
        mock.request_errors(Api::Produce, &[none, error, error, none, error]);
        let verdicts = publish(&small_batches(&mock), numbered("t", "a", 100)).await;
        assert_eq!(classes(&verdicts), [CONFIRMED; 100], "{error:?}");
        let expected: Vec<String> = (0..100).map(|at| at.to_string()).collect();
        assert_eq!(texts(&mock).await, expected, "{error:?}");
    }
}

/// B164, H133: a missing topic is named, others go on, and the topic is used once it is there.
#[tokio::test]
async fn a_missing_topic_refuses_and_is_found_when_it_is_made() {
    let mock = mock(1, 1);
    let publisher = publisher(&mock.bootstrap_servers());
    let missing = Row { aggregate_id: Some("b"), ..Row::default() };
    let mut messages = numbered("t", "a", 3);
    messages.insert(1, missing.to("late"));
    let started = Instant::now();
    let verdicts = publish(&publisher, messages).await;
    assert_eq!(classes(&verdicts), [CONFIRMED, REFUSED, CONFIRMED, CONFIRMED]);
    assert!(started.elapsed() < Duration::from_secs(12), "within a publish call's deadline");
    let reason = &failure(&verdicts[1]).reason;
    assert!(reason.contains("topic late") && reason.contains("create it"), "{reason}");

    mock.create_topic("late", 1, 1).unwrap();
    let deadline = Instant::now() + LIMIT;
    while class(&publish(&publisher, vec![missing.to("late")]).await[0]) != CONFIRMED {
        assert!(Instant::now() < deadline, "the topic is not found");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// B170, H140: names against the rules are refused for good, others are used as given.
#[tokio::test]
async fn topic_names_are_used_as_given_or_refused() {
    let mock = mock(1, 1);
    mock.create_topic("Orders.V1", 1, 1).unwrap();
    let to = |key: &'static str, topic: &str| {
        Row { aggregate_id: Some(key), ..Row::default() }.to(topic)
    };
    let long = "x".repeat(250);
    let messages = vec![
        to("a", "Orders.V1"),
        to("b", "a b"),
        to("c", ".."),
        to("d", &long),
        to("e", "ä"),
        to("f", "t"),
    ];
    let verdicts = publish(&publisher(&mock.bootstrap_servers()), messages).await;
    assert_eq!(
        classes(&verdicts),
        [CONFIRMED, PERMANENT, PERMANENT, PERMANENT, PERMANENT, CONFIRMED]
    );
    assert_eq!(stored(&mock.bootstrap_servers(), "Orders.V1").await.len(), 1);
}

/// H136
#[tokio::test]
async fn an_event_from_before_1970_is_refused_alone() {
    let mock = mock(1, 1);
    let mut messages = numbered("t", "a", 3);
    messages[1] = Row { created_at_micros: -1, ..Row::default() }.to("t");
    let verdicts = publish(&publisher(&mock.bootstrap_servers()), messages).await;
    assert_eq!(classes(&verdicts), [CONFIRMED, PERMANENT, CONFIRMED]);
}

/// B156, H129: at a full queue the call waits at its head; several calls run.
#[tokio::test]
async fn a_full_queue_keeps_the_order() {
    let mock = mock(1, 1);
    let config = common::config(&mock.bootstrap_servers()).with_window(5);
    let publisher = KafkaPublisher::new(&config).unwrap();
    let keys = ["a", "b", "c", "d"];
    let calls = keys.map(|key| publish(&publisher, numbered("t", key, 250)));
    let [a, b, c, d] = calls;
    let (a, b, c, d) = tokio::join!(a, b, c, d);
    for verdicts in [a, b, c, d] {
        assert_eq!(classes(&verdicts), [CONFIRMED; 250]);
    }
    let mut by_key: HashMap<Vec<u8>, Vec<String>> = HashMap::new();
    for stored in stored(&mock.bootstrap_servers(), "t").await {
        let text = stored.text().to_owned();
        by_key.entry(stored.key.unwrap()).or_default().push(text);
    }
    let expected: Vec<String> = (0..250).map(|at| at.to_string()).collect();
    for key in keys {
        assert_eq!(by_key[key.as_bytes()], expected);
    }
}

/// A call that is dropped while it waits at a full queue gives the rest a verdict; what was sent stays open.
#[tokio::test]
async fn a_call_dropped_at_a_full_queue_leaves_nothing_unsaid() {
    let mock = mock(1, 1);
    mock.broker_round_trip_time(1, Duration::from_secs(2)).unwrap();
    let config = common::config(&mock.bootstrap_servers()).with_window(5);
    let publisher = KafkaPublisher::new(&config).unwrap();
    let batch = Batch::new(numbered("t", "a", 15));
    publish_until_queued(&publisher, &batch, 10).await;
    assert_eq!(batch.open(), 10);
    assert_eq!(class(&batch.verdict(10)), UNAVAILABLE);
    settled(&batch).await;
    assert_eq!(class(&batch.verdict(9)), CONFIRMED);
    assert_eq!(texts(&mock).await.len(), 10);
}

/// Rule 6: a call that is dropped at its deadline keeps its verdicts; they arrive late.
#[tokio::test]
async fn verdicts_arrive_after_the_call_was_dropped() {
    let mock = mock(1, 1);
    mock.broker_round_trip_time(1, Duration::from_secs(2)).unwrap();
    let publisher = publisher(&mock.bootstrap_servers());
    let batch = Batch::new(numbered("t", "a", 10));
    publish_until_queued(&publisher, &batch, 10).await;
    assert_eq!(batch.open(), 10);
    settled(&batch).await;
    assert_eq!(classes(&verdicts(&batch)), [CONFIRMED; 10]);
    assert_eq!(texts(&mock).await.len(), 10);
}

/// An outage alone gives no verdict: the producer goes on where it stood.
#[tokio::test]
async fn messages_wait_for_a_broker_that_is_down() {
    let mock = mock(1, 1);
    let publisher = publisher(&mock.bootstrap_servers());
    publish(&publisher, numbered("t", "a", 1)).await;
    mock.broker_down(-1).unwrap();
    let batch = Batch::new(numbered("t", "b", 100));
    publish_until_queued(&publisher, &batch, 100).await;
    assert_eq!(batch.open(), 100);
    mock.broker_up(-1).unwrap();
    settled(&batch).await;
    assert_eq!(classes(&verdicts(&batch)), [CONFIRMED; 100]);
    assert_eq!(texts(&mock).await.len(), 101);
}

/// Rule 6: after `abandon`, what was open can no longer be sent; the next call is served.
#[tokio::test]
async fn what_was_abandoned_is_not_sent_any_more() {
    let mock = mock(1, 1);
    let publisher = publisher(&mock.bootstrap_servers());
    publish(&publisher, numbered("t", "a", 1)).await;
    mock.broker_down(-1).unwrap();
    let batch = Batch::new(numbered("t", "b", 100));
    publish_until_queued(&publisher, &batch, 100).await;
    let started = Instant::now();
    publisher.abandon().await;
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(batch.open(), 100, "they may have been written: that is for nobody to say");
    mock.broker_up(-1).unwrap();
    let again = publish(&publisher, numbered("t", "c", 1)).await;
    assert_eq!(classes(&again), [CONFIRMED]);
    assert_eq!(texts(&mock).await.len(), 2);
}

/// An `abandon` that comes while a call hands over ends that call too.
#[tokio::test]
async fn abandon_ends_a_running_call() {
    let mock = mock(1, 1);
    mock.broker_down(-1).unwrap();
    let config = common::config(&mock.bootstrap_servers()).with_window(5);
    let publisher = KafkaPublisher::new(&config).unwrap();
    let batch = Batch::new(numbered("t", "a", 100));
    let abandon = async {
        queued(&publisher, 10).await;
        publisher.abandon().await;
    };
    tokio::join!(publisher.publish(batch.clone()), abandon);
    let verdicts = verdicts(&batch);
    assert_eq!(verdicts[..10], vec![None; 10], "these were in the queue");
    assert_eq!(classes(&verdicts[10..]), [UNAVAILABLE; 90]);
}

/// B163, H132: dropping the publisher ends what is open.
#[tokio::test]
async fn dropping_the_publisher_ends_open_messages() {
    let mock = mock(1, 1);
    mock.broker_down(-1).unwrap();
    let publisher = publisher(&mock.bootstrap_servers());
    let batch = Batch::new(numbered("t", "a", 100));
    publish_until_queued(&publisher, &batch, 100).await;
    drop(publisher);
    settled(&batch).await;
    assert_eq!(classes(&verdicts(&batch)), [UNAVAILABLE; 100]);
}

/// B172, H139: a partition without a leader holds up its own messages only.
#[tokio::test]
async fn a_partition_without_a_leader_stops_no_other() {
    let mock = mock(1, 2);
    mock.partition_leader("t", 0, None).unwrap();
    let publisher = publisher(&mock.bootstrap_servers());
    let batch = Batch::new((0..20).flat_map(|key| numbered("t", &key.to_string(), 1)).collect());
    let call = publisher.publish(batch.clone());
    assert!(tokio::time::timeout(Duration::from_secs(3), call).await.is_err());
    let confirmed = verdicts(&batch).iter().filter(|verdict| verdict.is_some()).count();
    assert!(confirmed > 0 && confirmed < 20, "{confirmed}");
    mock.partition_leader("t", 0, Some(1)).unwrap();
    settled(&batch).await;
    assert_eq!(classes(&verdicts(&batch)), [CONFIRMED; 20]);
}

/// B173: reports are taken off while nobody looks: the runtime's only thread stands still.
#[tokio::test]
async fn reports_are_taken_off_while_the_runtime_stands_still() {
    let mock = mock(1, 1);
    let publisher = publisher(&mock.bootstrap_servers());
    mock.broker_down(-1).unwrap();
    let batch = Batch::new(numbered("t", "a", 10_000));
    publish_until_queued(&publisher, &batch, 10_000).await;
    mock.broker_up(-1).unwrap();
    let deadline = Instant::now() + LIMIT;
    while batch.open() > 0 {
        assert!(Instant::now() < deadline, "{} reports are missing", batch.open());
        std::thread::yield_now();
    }
    assert_eq!(classes(&verdicts(&batch)), [CONFIRMED; 10_000]);
}

/// A topic whose messages are refused at every try stops no other topic, and is taken up again by itself. (The other
/// topic is sent to between the probes: the mock cluster cannot refuse one topic only.)
#[tokio::test]
async fn a_topic_that_refuses_stops_no_other_topic() {
    for error in [
        Err::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED,
        Err::RD_KAFKA_RESP_ERR_POLICY_VIOLATION,
        Err::RD_KAFKA_RESP_ERR_UNKNOWN,
    ] {
        let mock = mock(1, 1);
        mock.create_topic("u", 1, 1).unwrap();
        let publisher = publisher(&mock.bootstrap_servers());
        mock.request_errors(Api::Produce, &[error; 100]);
        // More often than a publisher may break by itself.
        for round in 0..50 {
            let verdicts = publish(&publisher, numbered("t", "a", 1)).await;
            assert_eq!(classes(&verdicts), [REFUSED], "{error:?}, round {round}: {verdicts:?}");
        }
        mock.clear_request_errors(Api::Produce);
        let mut both = numbered("u", "b", 100);
        both.extend(numbered("t", "a", 3));
        let verdicts = publish(&publisher, both).await;
        assert_eq!(classes(&verdicts[..100]), [CONFIRMED; 100], "{error:?}");
        assert!(publisher.stats().contains(&("refusing_topics", 1.0)));

        let deadline = Instant::now() + LIMIT;
        while class(&publish(&publisher, numbered("t", "a", 3)).await[0]) != CONFIRMED {
            assert!(Instant::now() < deadline, "{error:?}: the topic is not asked again");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(publisher.stats().contains(&("refusing_topics", 0.0)));
    }
}

/// Of each aggregate one message is open at a topic that refused, and the rest of it comes in later calls.
#[tokio::test]
async fn a_topic_that_refused_is_sent_one_message_of_an_aggregate_at_a_time() {
    let mock = mock(1, 1);
    let publisher = publisher(&mock.bootstrap_servers());
    mock.request_errors(Api::Produce, &[Err::RD_KAFKA_RESP_ERR_INVALID_RECORD]);
    assert_eq!(classes(&publish(&publisher, numbered("t", "a", 1)).await), [PERMANENT]);
    let mut messages = numbered("t", "a", 3);
    messages.extend(numbered("t", "b", 2));
    let verdicts = publish(&publisher, messages).await;
    assert_eq!(classes(&verdicts), [CONFIRMED, UNSENT, UNSENT, CONFIRMED, UNSENT]);
}

/// H130: at most 20 times a minute.
#[tokio::test]
async fn a_publisher_that_breaks_all_the_time_stops_trying_for_a_while() {
    let mock = mock(1, 1);
    let publisher = publisher(&mock.bootstrap_servers());
    mock.request_errors(Api::Produce, &[Err::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER; 40]);
    let mut reasons = Vec::new();
    for _ in 0..22 {
        let verdicts = publish(&publisher, numbered("t", "a", 1)).await;
        assert_eq!(class(&verdicts[0]), UNAVAILABLE);
        reasons.push(failure(&verdicts[0]).reason.to_string());
    }
    assert!(!reasons[20].contains("within a minute"), "{}", reasons[20]);
    assert!(reasons[21].contains("20 times within a minute"), "{}", reasons[21]);
}

#[tokio::test]
async fn a_check_says_whether_the_cluster_answers() {
    let mock = mock(1, 1);
    let publisher = publisher(&mock.bootstrap_servers());
    publisher.check().await.unwrap();
    mock.broker_down(-1).unwrap();
    let started = Instant::now();
    let error = publisher.check().await.unwrap_err().to_string();
    assert!(started.elapsed() < Duration::from_secs(10));
    assert!(error.contains("bootstrap_servers"), "{error}");
}

#[tokio::test]
async fn the_figures_count_what_was_sent() {
    let mock = mock(1, 1);
    let publisher = publisher(&mock.bootstrap_servers());
    publish(&publisher, numbered("t", "a", 7)).await;
    let deadline = Instant::now() + LIMIT;
    while !publisher.stats().contains(&("sent_messages", 7.0)) {
        assert!(Instant::now() < deadline, "{:?}", publisher.stats());
        tokio::task::yield_now().await;
    }
}
