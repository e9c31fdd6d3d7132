//! What the broker refuses: a queue that goes, a message that is too large, a right that is missing.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lapin::options::QueueDeleteOptions;
use outbox_rabbitmq::RabbitMqConfig;
use tokio::task::block_in_place;

use crate::common::{
    Broker, CONFIRMED, LIMIT, PERMANENT, REFUSED, Row, classes, failure, ids, messages, publish,
    publisher, random, to_queues,
};
use crate::{Turn, confirmed};

/// A queue that is deleted under load refuses from then on; confirmed before, confirmed again once it is back.
async fn a_queue_deleted_under_load_refuses_until_it_is_back(broker: Turn) {
    let own = Broker::connect(&broker.url()).await;
    let queue = random("deleted");
    own.queue(&queue, &[]).await;
    let publisher = publisher(&to_queues(&broker.url()));
    let deleted = AtomicBool::new(false);
    let load = async {
        let mut found = Vec::new();
        // The last call begins when the queue is gone.
        loop {
            let is_last = deleted.load(Ordering::Relaxed);
            found.extend(classes(&publish(&publisher, messages(&queue, 500)).await));
            if is_last {
                return found;
            }
        }
    };
    let delete = async {
        confirmed(&publisher, 100.0).await;
        let options = QueueDeleteOptions::default();
        own.channel.queue_delete(queue.as_str().into(), options).await.unwrap();
        deleted.store(true, Ordering::Relaxed);
    };
    let (found, ()) = tokio::join!(load, delete);
    assert!(found.iter().all(|class| *class == CONFIRMED || *class == REFUSED));
    assert!(found.contains(&REFUSED), "the queue was deleted while messages came");
    assert_eq!(classes(&publish(&publisher, messages(&queue, 2)).await), [REFUSED; 2]);
    own.queue(&queue, &[]).await;
    assert_eq!(classes(&publish(&publisher, messages(&queue, 2)).await), [CONFIRMED; 2]);
    assert_eq!(own.take(&queue).await.len(), 2);
}

/// B188, H148: a message that only the broker finds too large is given up; those around it arrive.
async fn a_message_too_large_for_the_broker_is_given_up_alone(broker: Turn) {
    let own = Broker::connect(&broker.url()).await;
    let queue = random("large");
    own.queue(&queue, &[]).await;
    let mut config = to_queues(&broker.url());
    config.channels = 1;
    let publisher = publisher(&config);
    let mut sent = messages(&queue, 20);
    let large = vec![b'x'; 1_000_001];
    sent[7] =
        Row { aggregate_id: Some("large"), payload: Some(&large), ..Row::default() }.to(&queue);
    let verdicts = publish(&publisher, sent.clone()).await;
    for (at, class) in classes(&verdicts).into_iter().enumerate() {
        assert_eq!(class, if at == 7 { PERMANENT } else { CONFIRMED }, "{at}: {:?}", verdicts[at]);
    }
    assert!(failure(&verdicts[7]).reason.contains("max_message_bytes"), "{:?}", verdicts[7]);
    sent.remove(7);
    let received: BTreeSet<String> = own.take_ids(&queue).await.into_iter().collect();
    assert_eq!(received, ids(&sent).into_iter().collect());
}

/// Rule 5: what is not permitted waits; it hurts others the first time only. With a virtual host and a user of their own.
async fn an_exchange_that_is_not_permitted_refuses_and_is_sent_carefully_from_then_on(
    broker: Turn,
) {
    let host = random("host").replace('.', "-");
    // In one command: each costs a second or two.
    let users = "rabbit_auth_backend_internal";
    let rights = |user: &str, configure: &str, write: &str, read: &str| {
        format!(
            r#"{users}:set_permissions(<<"{user}">>, <<"{host}">>, <<"{configure}">>, <<"{write}">>, <<"{read}">>, <<"test">>)"#
        )
    };
    let setup = [
        format!(r#"rabbit_vhost:add(<<"{host}">>, <<"test">>)"#),
        format!(r#"{users}:add_user(<<"{host}">>, <<"hush">>, <<"test">>)"#),
        rights("guest", ".*", ".*", ".*"),
        rights(&host, "", "mine.*", ""),
    ];
    block_in_place(|| broker.ctl(&["eval", &format!("{}.", setup.join(", "))]));
    let own = Broker::connect(&broker.url().replace("%2f", &host)).await;
    for name in ["mine", "theirs"] {
        own.topic_exchange(name).await;
        own.queue(name, &[]).await;
        own.bind(name, name, "#").await;
    }
    let url = broker.url().replace("guest:guest", &format!("{host}:hush")).replace("%2f", &host);
    let mut config = RabbitMqConfig::new(url);
    config.channels = 1;
    let publisher = publisher(&config);
    let mixed = || {
        let mut mixed = messages("mine", 9);
        mixed.insert(4, messages("theirs", 1).remove(0));
        mixed
    };
    for round in 0..3 {
        let verdicts = publish(&publisher, mixed()).await;
        let mut found = classes(&verdicts);
        assert_eq!(found.remove(4), REFUSED, "round {round}: {:?}", verdicts[4]);
        assert_eq!(found, [CONFIRMED; 9], "round {round}");
        let reason = &failure(&verdicts[4]).reason;
        assert!(reason.contains("grant this user write") && !reason.contains("hush"), "{reason}");
        // The first round may deliver some twice.
        let received = own.take("mine").await.len();
        assert!(round == 0 && received >= 9 || received == 9, "round {round}: {received}");
    }
    block_in_place(|| {
        broker.ctl(&["set_permissions", "-p", &host, &host, "", ".*", ""]);
    });
    let deadline = Instant::now() + LIMIT;
    while classes(&publish(&publisher, messages("theirs", 1)).await) != [CONFIRMED] {
        assert!(Instant::now() < deadline, "the right was granted");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

crate::on_both! {
    a_queue_deleted_under_load_refuses_until_it_is_back,
    a_message_too_large_for_the_broker_is_given_up_alone,
    an_exchange_that_is_not_permitted_refuses_and_is_sent_carefully_from_then_on,
}
