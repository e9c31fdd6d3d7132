//! What the broker answers, on the shared one: returns, refusals, declarations, and what arrives.

#![allow(clippy::unwrap_used)] // A test.

mod common;

use std::time::Duration;

use common::proxy::Proxy;
use common::{
    Broker, CONFIRMED, PERMANENT, REFUSED, Row, UNAVAILABLE, classes, failure, id, messages,
    publish, publisher, random, shared, to_queues,
};
use lapin::options::{ExchangeDeleteOptions, QueueDeleteOptions};
use lapin::types::AMQPValue;
use outbox_core::{FailureClass, Message, Publisher};
use outbox_rabbitmq::{
    Exchange, ExchangeType, Queue, RabbitMqConfig, Routing, RoutingKey, Unroutable,
};

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

fn is_some(class: FailureClass) -> impl Fn(&Option<FailureClass>) -> bool {
    move |found| *found == Some(class)
}

/// B176, H141: what the broker returns is matched to its message, whichever confirm the client hands it out with. Two
/// queues of different speed let confirms overtake each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_seventh_message_is_unroutable_and_no_other() {
    const COUNT: usize = 1_400;
    let broker = Broker::connect(&shared()).await;
    let name = random("returns");
    let (fast, slow) = (format!("{name}.fast"), format!("{name}.slow"));
    broker.topic_exchange(&name).await;
    broker.queue(&fast, &[]).await;
    broker.queue(&slow, &[("x-queue-type", text("quorum"))]).await;
    broker.bind(&fast, &name, "Fast").await;
    broker.bind(&slow, &name, "Slow").await;
    let mut config = RabbitMqConfig::new(shared());
    config.channels = 1;
    let publisher = publisher(&config);
    let keys: Vec<String> = (0..COUNT).map(|at| format!("key-{at}")).collect();
    let lost = |at: usize| at.is_multiple_of(7);
    let message = |at: usize| {
        let event_type = if lost(at) { "Nobody" } else { ["Fast", "Slow"][at % 2] };
        Row { aggregate_id: Some(&keys[at]), event_type, ..Row::default() }.to(&name)
    };
    let sent: Vec<Message> = (0..COUNT).map(message).collect();
    let verdicts = publish(&publisher, sent.clone()).await;
    for (at, class) in classes(&verdicts).into_iter().enumerate() {
        assert_eq!(class, if lost(at) { REFUSED } else { CONFIRMED }, "message {at}");
    }
    let reason = &failure(&verdicts[0]).reason;
    assert!(reason.contains("312 NO_ROUTE") && reason.contains("bind a queue"), "{reason}");
    let mut received = broker.take_ids(&fast).await;
    received.append(&mut broker.take_ids(&slow).await);
    received.sort();
    let expected: Vec<Message> =
        (0..COUNT).filter(|at| !lost(*at)).map(|at| sent[at].clone()).collect();
    assert_eq!(received, common::ids(&expected));
    assert!(publisher.stats().contains(&("returned_messages", (COUNT / 7) as f64)));
}

#[tokio::test]
async fn an_unroutable_message_is_given_up_where_the_setting_says_so() {
    let mut config = to_queues(&shared());
    config.unroutable = Unroutable::Permanent;
    let verdicts = publish(&publisher(&config), messages(&random("missing"), 2)).await;
    assert_eq!(classes(&verdicts), [PERMANENT; 2]);
    assert!(failure(&verdicts[0]).reason.contains("NO_ROUTE"));
}

/// B179: a full queue that rejects loses nothing, and confirms nothing that it has not.
#[tokio::test]
async fn a_full_queue_that_rejects_refuses() {
    let broker = Broker::connect(&shared()).await;
    let name = random("full");
    let full = [("x-max-length", AMQPValue::LongInt(2)), ("x-overflow", text("reject-publish"))];
    broker.queue(&name, &full).await;
    let publisher = publisher(&to_queues(&shared()));
    let verdicts = publish(&publisher, messages(&name, 5)).await;
    let found = classes(&verdicts);
    assert_eq!(found.iter().filter(|class| **class == CONFIRMED).count(), 2, "{found:?}");
    assert_eq!(found.iter().filter(|class| is_some(FailureClass::Refused)(class)).count(), 3);
    let refused = verdicts.iter().find(|verdict| common::class(verdict) == REFUSED).unwrap();
    assert!(failure(refused).reason.contains("full"), "{verdicts:?}");
    assert_eq!(broker.take(&name).await.len(), 2);
    assert_eq!(classes(&publish(&publisher, messages(&name, 1)).await), [CONFIRMED]);
}

/// B189: a missing exchange is named, others go on, and it is used once it is there.
#[tokio::test]
async fn a_missing_exchange_refuses_and_is_found_when_it_is_made() {
    let broker = Broker::connect(&shared()).await;
    let (there, late) = (random("there"), random("late"));
    broker.topic_exchange(&there).await;
    broker.queue(&there, &[]).await;
    broker.bind(&there, &there, "#").await;
    let publisher = publisher(&RabbitMqConfig::new(shared()));
    let both = || {
        let mut both = messages(&there, 2);
        both.append(&mut messages(&late, 1));
        both
    };
    let verdicts = publish(&publisher, both()).await;
    assert_eq!(classes(&verdicts), [CONFIRMED, CONFIRMED, REFUSED]);
    let reason = &failure(&verdicts[2]).reason;
    assert!(reason.contains(&late) && reason.contains("declare it"), "{reason}");
    broker.topic_exchange(&late).await;
    broker.bind(&there, &late, "#").await;
    assert_eq!(classes(&publish(&publisher, both()).await), [CONFIRMED; 3]);
    assert_eq!(broker.take(&there).await.len(), 5);
}

/// B189, H142: an exchange that is deleted while it is in use closes the channel; what else was on it arrives all the same.
#[tokio::test]
async fn an_exchange_deleted_in_operation_hurts_no_other() {
    let broker = Broker::connect(&shared()).await;
    let (there, gone) = (random("there"), random("gone"));
    for name in [&there, &gone] {
        broker.topic_exchange(name).await;
        broker.queue(name, &[]).await;
        broker.bind(name, name, "#").await;
    }
    let mut config = RabbitMqConfig::new(shared());
    config.channels = 1;
    let publisher = publisher(&config);
    let mut before = messages(&there, 1);
    before.append(&mut messages(&gone, 1));
    assert_eq!(classes(&publish(&publisher, before).await), [CONFIRMED; 2]);
    let deleted =
        broker.channel.exchange_delete(gone.as_str().into(), ExchangeDeleteOptions::default());
    deleted.await.unwrap();

    // Known to be there, so they are sent: among 40 others.
    let mut mixed = messages(&there, 40);
    let wrong = [3, 20, 21];
    for at in wrong {
        let key = format!("wrong-{at}");
        mixed[at] = Row { aggregate_id: Some(&key), ..Row::default() }.to(&gone);
    }
    let verdicts = publish(&publisher, mixed.clone()).await;
    for (at, class) in classes(&verdicts).into_iter().enumerate() {
        let expected = if wrong.contains(&at) { REFUSED } else { CONFIRMED };
        assert_eq!(class, expected, "message {at}: {:?}", verdicts[at]);
    }
    let mut received = broker.take_ids(&there).await;
    received.dedup();
    assert_eq!(received.len(), 1 + 37, "all arrived, some of them twice perhaps");

    // From now on it is looked at first.
    let verdicts = publish(&publisher, messages(&gone, 1)).await;
    assert_eq!(classes(&verdicts), [REFUSED]);
    broker.topic_exchange(&gone).await;
    broker.bind(&gone, &gone, "#").await;
    assert_eq!(classes(&publish(&publisher, messages(&gone, 1)).await), [CONFIRMED]);
}

/// A message is persistent and says what its event is.
#[tokio::test]
async fn what_arrives_says_what_the_event_is() {
    let broker = Broker::connect(&shared()).await;
    let queue = random("orders");
    broker.queue(&queue, &[]).await;
    let row = Row {
        aggregate_id: Some("7"),
        payload: Some(b" {\"a\":1} "),
        headers: Some(r#"{"content-type":"application/json","correlationId":"c-1","n":5}"#),
        ..Row::default()
    };
    let verdicts = publish(&publisher(&to_queues(&shared())), vec![row.to(&queue)]).await;
    assert_eq!(classes(&verdicts), [CONFIRMED]);
    let message = broker.take(&queue).await.remove(0);
    let properties = &message.properties;
    assert_eq!(message.delivery.data, b" {\"a\":1} ");
    assert_eq!(id(&message), row.id.to_string());
    assert_eq!(properties.kind().as_ref().unwrap().as_str(), "Created");
    assert_eq!(properties.content_type().as_ref().unwrap().as_str(), "application/json");
    assert_eq!(properties.correlation_id().as_ref().unwrap().as_str(), "c-1");
    assert_eq!(*properties.timestamp(), Some(1_700_000_000));
    assert_eq!(*properties.delivery_mode(), Some(2));
    let headers = properties.headers().as_ref().unwrap().inner();
    for (name, value) in [
        ("id", id(&message)),
        ("eventType", "Created".into()),
        ("aggregateId", "7".into()),
        ("n", "5".into()),
    ] {
        assert_eq!(headers[name], text(&value), "{name}");
    }
}

/// H150: what the settings name is declared on each connection, and what is there stays.
#[tokio::test]
async fn exchanges_and_queues_are_declared_where_the_settings_say_so() {
    let name = random("declared");
    let queue = Queue::quorum(&name).bound_to(&name, "order.*").with_max_length(1_000);
    let key = RoutingKey::Destination;
    let config = RabbitMqConfig::new(shared())
        .with_routing(Routing::OneExchange { exchange: name.clone(), key })
        .with_exchange(Exchange::new(&name, ExchangeType::Topic))
        .with_queue(queue);
    for _ in 0..2 {
        let verdicts = publish(&publisher(&config), messages("order.Created", 3)).await;
        assert_eq!(classes(&verdicts), [CONFIRMED; 3]);
    }
    let broker = Broker::connect(&shared()).await;
    assert_eq!(broker.take(&name).await.len(), 6);

    let other = config.clone().with_exchange(Exchange::new(&name, ExchangeType::Fanout));
    let error = publisher(&other).check().await.unwrap_err().to_string();
    assert!(error.contains("the settings exchanges and queues"), "{error}");
    let deleted = broker.channel.queue_delete(name.as_str().into(), QueueDeleteOptions::default());
    deleted.await.unwrap();
    let deleted =
        broker.channel.exchange_delete(name.as_str().into(), ExchangeDeleteOptions::default());
    deleted.await.unwrap();
}

/// A login that fails, a virtual host that is missing and a broker that is not there: an outage each, and no secret.
#[tokio::test]
async fn what_stands_in_the_way_of_a_connection_is_named_without_the_password() {
    let wrong_password = shared().replace("guest:guest@", "guest:hush@");
    let no_host = shared().replace("/%2f", "/missing");
    let nobody = "amqp://guest:hush@127.0.0.1:1/%2f".to_owned();
    let cases =
        [(wrong_password, "user and password"), (no_host, "virtual host"), (nobody, "setting url")];
    for (url, expected) in cases {
        let publisher = publisher(&to_queues(&url));
        let verdicts = publish(&publisher, messages("q", 1)).await;
        assert_eq!(classes(&verdicts), [UNAVAILABLE]);
        let reason = &failure(&verdicts[0]).reason;
        let error = publisher.check().await.unwrap_err().to_string();
        for text in [&**reason, &error] {
            assert!(text.contains(expected) && !text.contains("hush"), "{text}");
        }
    }
}

/// A broker that takes the connection and says nothing costs the time that is set for connecting.
#[tokio::test]
async fn a_silent_broker_does_not_hold_up_a_connection_for_ever() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = to_queues(&format!("amqp://{}/%2f", listener.local_addr().unwrap()));
    config.connect_timeout = Duration::from_millis(300);
    let verdicts = publish(&publisher(&config), messages("q", 1)).await;
    assert_eq!(classes(&verdicts), [UNAVAILABLE]);
    assert!(failure(&verdicts[0]).reason.contains("connect_timeout"), "{verdicts:?}");
}

/// A node that is down and one that says nothing are passed over, and the one that is left serves.
#[tokio::test]
async fn the_next_node_is_tried_when_one_gives_no_connection() {
    let broker = Broker::connect(&shared()).await;
    let queue = random("nodes");
    broker.queue(&queue, &[]).await;
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = to_queues(&common::through(&shared(), "127.0.0.1:1"))
        .with_host(silent.local_addr().unwrap().to_string());
    config.connect_timeout = Duration::from_secs(1);
    let alone = publisher(&config);
    let verdicts = publish(&alone, messages(&queue, 1)).await;
    assert_eq!(classes(&verdicts), [UNAVAILABLE]);
    let reason = &failure(&verdicts[0]).reason;
    assert!(reason.contains("127.0.0.1:1: ") && reason.contains("within 1s"), "{reason}");

    let publisher = publisher(&config.with_host(common::address(&shared())));
    assert_eq!(classes(&publish(&publisher, messages(&queue, 1)).await), [CONFIRMED]);
    // It goes on with this one: another connection takes no time.
    publisher.abandon().await;
    let started = std::time::Instant::now();
    assert_eq!(classes(&publish(&publisher, messages(&queue, 1)).await), [CONFIRMED]);
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    assert_eq!(broker.take(&queue).await.len(), 2);
}

/// A publisher whose node goes is at the next one with its next call, and back when that one goes too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_moves_to_the_node_that_is_left() {
    let broker = Broker::connect(&shared()).await;
    let queue = random("moves");
    broker.queue(&queue, &[]).await;
    let nodes = [(); 2].map(|()| Proxy::before(common::address(&shared())));
    let url = common::through(&shared(), &nodes[0].address());
    let publisher = publisher(&to_queues(&url).with_host(nodes[1].address()));
    assert_eq!(classes(&publish(&publisher, messages(&queue, 1)).await), [CONFIRMED]);
    for [gone, left] in [[0, 1], [1, 0]] {
        nodes[left].cut(false);
        nodes[gone].cut(true);
        let deadline = std::time::Instant::now() + common::LIMIT;
        while classes(&publish(&publisher, messages(&queue, 1)).await) != [CONFIRMED] {
            assert!(std::time::Instant::now() < deadline, "node {left} is there");
        }
    }
    assert!(publisher.stats().contains(&("connections_opened", 3.0)), "{:?}", publisher.stats());
}
