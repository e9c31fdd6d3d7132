//! A broker that is killed, short of memory, frozen, slow or cut off: on a broker of these tests' own.

#![allow(clippy::unwrap_used)] // A test.

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::proxy::Proxy;
use common::{
    Broker, CONFIRMED, LIMIT, PERMANENT, REFUSED, Row, UNAVAILABLE, address, classes, failure, ids,
    messages, publish, publisher, random, through, to_queues, verdicts,
};
use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use outbox_core::{Batch, FailureClass, Message, Publisher, Verdict};
use outbox_rabbitmq::{RabbitMqConfig, RabbitMqPublisher, Tls};
use tokio::sync::{Mutex, MutexGuard};
use tokio::task::{JoinHandle, block_in_place};
use xtask::services::RabbitMq;

/// The broker refuses larger messages; the publisher's own limit is higher.
const MAX_MESSAGE_SIZE: &str = "1000000";

/// The one broker of these tests: they take turns.
static BROKER: Mutex<Option<RabbitMq>> = Mutex::const_new(None);

struct Turn(MutexGuard<'static, Option<RabbitMq>>);

async fn turn() -> Turn {
    let mut broker = BROKER.lock().await;
    block_in_place(|| {
        broker
            .get_or_insert_with(|| RabbitMq::start_with(&[("max_message_size", MAX_MESSAGE_SIZE)]));
    });
    Turn(broker)
}

impl std::ops::Deref for Turn {
    type Target = RabbitMq;

    fn deref(&self) -> &RabbitMq {
        self.0.as_ref().unwrap()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // A test that failed may have left it in any state; the next one starts a new broker.
        if std::thread::panicking() {
            *self.0 = None;
        }
    }
}

/// As the relay: sends what is not confirmed again and again, abandons what stays open, until all is confirmed. Panics when
/// a failure is anything but an outage.
fn keep_sending(publisher: Arc<RabbitMqPublisher>, sent: Vec<Message>) -> JoinHandle<()> {
    tokio::spawn(async move {
        for chunk in sent.chunks(50) {
            let mut left = chunk.to_vec();
            while !left.is_empty() {
                let batch = Batch::new(left.clone());
                let call = publisher.publish(batch.clone());
                if tokio::time::timeout(Duration::from_secs(5), call).await.is_err() {
                    publisher.abandon().await;
                }
                left = Vec::new();
                for (index, message) in batch.messages().iter().enumerate() {
                    match batch.verdict(index) {
                        Some(Verdict::Confirmed) => continue,
                        None => {}
                        Some(Verdict::Failed(failure)) => {
                            assert_eq!(failure.class, FailureClass::Unavailable, "{failure:?}");
                        }
                    }
                    left.push(message.clone());
                }
                if !left.is_empty() {
                    // The relay's back-off.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    })
}

async fn done(sending: JoinHandle<()>) {
    tokio::time::timeout(3 * LIMIT, sending).await.expect("all is confirmed in time").unwrap();
}

async fn confirmed(publisher: &RabbitMqPublisher, at_least: f64) {
    let deadline = Instant::now() + LIMIT;
    let count = || {
        let stats = publisher.stats();
        stats.iter().find(|(name, _)| *name == "confirmed_messages").unwrap().1
    };
    while count() < at_least {
        assert!(Instant::now() < deadline, "{:?}", publisher.stats());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// B184, H143, H146: a broker that is killed, and one that restarts, lose nothing that was confirmed; the publisher comes back
/// by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_killed_and_restarted_under_load_loses_nothing() {
    let broker = turn().await;
    let queue = random("killed");
    Broker::connect(&broker.url()).await.queue(&queue, &[]).await;
    let publisher = Arc::new(publisher(&to_queues(&broker.url())));
    let sent = messages(&queue, 20_000);
    let sending = keep_sending(publisher.clone(), sent.clone());
    confirmed(&publisher, 500.0).await;
    // First the clean stop: a broker that is killed may have forgotten a queue that it was told of a moment ago.
    block_in_place(|| broker.restart());
    confirmed(&publisher, 1_000.0).await;
    block_in_place(|| {
        broker.kill9();
        broker.start_again();
    });
    confirmed(&publisher, 1_500.0).await;
    sending.abort();
    let _ = sending.await;
    let rest: Vec<Message> = sent[..2_000].to_vec();
    done(keep_sending(publisher.clone(), rest.clone())).await;
    let received: BTreeSet<String> =
        Broker::connect(&broker.url()).await.take_ids(&queue).await.into_iter().collect();
    assert!(ids(&rest).iter().all(|id| received.contains(id)), "what was confirmed is there");
}

/// H146, B184: a line that is cut in the middle of a call, thirty times at thirty places: no confirm is invented, and none
/// is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_cut_in_the_middle_of_a_call_invents_no_confirm() {
    let broker = turn().await;
    let own = Broker::connect(&broker.url()).await;
    let queue = random("cut");
    own.queue(&queue, &[]).await;
    let proxy = Proxy::before(broker.address());
    let publisher = publisher(&to_queues(&through(&broker.url(), &proxy.address())));
    let mut confirmed = Vec::new();
    let mut failed = 0;
    for round in 0..30 {
        let warm = publish(&publisher, messages(&queue, 1)).await;
        assert_eq!(classes(&warm), [CONFIRMED], "round {round}");
        proxy.cut_after(1_000 * round + 77);
        let sent = messages(&queue, 100);
        let verdicts = publish(&publisher, sent.clone()).await;
        for (message, class) in sent.iter().zip(classes(&verdicts)) {
            if class == CONFIRMED {
                confirmed.push(message.id().to_string());
            } else {
                assert_eq!(class, UNAVAILABLE);
                failed += 1;
            }
        }
        // A limit that was not reached.
        proxy.cut_after(usize::MAX);
    }
    assert!(failed > 500 && confirmed.len() > 100, "{failed} {}", confirmed.len());
    let received: BTreeSet<String> = own.take_ids(&queue).await.into_iter().collect();
    assert!(confirmed.iter().all(|id| received.contains(id)), "what was confirmed is there");
}

/// A queue that is deleted under load refuses from then on; confirmed before, confirmed again once it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_deleted_under_load_refuses_until_it_is_back() {
    let broker = turn().await;
    let own = Broker::connect(&broker.url()).await;
    let queue = random("deleted");
    own.queue(&queue, &[]).await;
    let publisher = publisher(&to_queues(&broker.url()));
    let batch = Batch::new(messages(&queue, 5_000));
    let delete = async {
        confirmed(&publisher, 100.0).await;
        let options = QueueDeleteOptions::default();
        own.channel.queue_delete(queue.as_str().into(), options).await.unwrap();
    };
    tokio::join!(publisher.publish(batch.clone()), delete);
    let found = classes(&verdicts(&batch));
    assert!(found.iter().all(|class| *class == CONFIRMED || *class == REFUSED));
    assert!(found.contains(&REFUSED), "the queue was deleted while messages came");
    assert_eq!(classes(&publish(&publisher, messages(&queue, 2)).await), [REFUSED; 2]);
    own.queue(&queue, &[]).await;
    assert_eq!(classes(&publish(&publisher, messages(&queue, 2)).await), [CONFIRMED; 2]);
    assert_eq!(own.take(&queue).await.len(), 2);
}

/// B178, H144: while an alarm for memory lasts, nothing is confirmed and the destination counts as down; when it ends, what
/// was open is confirmed, once. The alarm does not hold up `abandon`, and what was abandoned meanwhile is not sent later,
/// but for what had left already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_memory_alarm_is_an_outage_that_ends_by_itself() {
    let broker = turn().await;
    let queue = random("alarm");
    let own = Broker::connect(&broker.url()).await;
    own.queue(&queue, &[]).await;
    let publisher = publisher(&to_queues(&broker.url()));
    let abandoning = common::publisher(&to_queues(&broker.url()));
    for publisher in [&publisher, &abandoning] {
        assert_eq!(classes(&publish(publisher, messages(&queue, 1)).await), [CONFIRMED]);
    }
    block_in_place(|| broker.ctl(&["set_vm_memory_high_watermark", "0.0000001"]));

    // The broker says that it is blocked to who publishes.
    let open = Batch::new(messages(&queue, 3));
    let call = tokio::time::timeout(Duration::from_secs(1), publisher.publish(open.clone()));
    assert!(call.await.is_err(), "{open:?}");
    assert_eq!(open.open(), 3);
    assert!(publisher.stats().contains(&("blocked", 1.0)));
    let verdicts = publish(&publisher, messages(&queue, 2)).await;
    assert_eq!(classes(&verdicts), [UNAVAILABLE; 2]);
    assert!(failure(&verdicts[0]).reason.contains("memory or disk"));
    let error = publisher.check().await.unwrap_err().to_string();
    assert!(error.contains("memory or disk"), "{error}");

    let lost = Batch::new(messages(&queue, 1));
    let call = tokio::time::timeout(Duration::from_secs(1), abandoning.publish(lost.clone()));
    assert!(call.await.is_err());
    let started = Instant::now();
    abandoning.abandon().await;
    assert!(started.elapsed() < Duration::from_secs(2));
    assert_eq!(lost.open(), 1, "it may have been written: that is for nobody to say");

    block_in_place(|| broker.ctl(&["set_vm_memory_high_watermark", "0.4"]));
    tokio::time::timeout(LIMIT, open.all_settled()).await.expect("the alarm is over");
    assert_eq!(classes(&common::verdicts(&open)), [CONFIRMED; 3]);
    for publisher in [&publisher, &abandoning] {
        assert_eq!(classes(&publish(publisher, messages(&queue, 1)).await), [CONFIRMED]);
    }
    let mut received = own.take_ids(&queue).await;
    received.retain(|id| !ids(lost.messages()).contains(id));
    assert_eq!(received.len(), 2 + 3 + 2, "each once");
}

/// B185: a broker that stands still is noticed by its missing heartbeats, also while messages are open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_broker_is_noticed_by_its_heartbeat() {
    let broker = turn().await;
    let queue = random("frozen");
    Broker::connect(&broker.url()).await.queue(&queue, &[]).await;
    let mut config = to_queues(&broker.url());
    config.heartbeat = Duration::from_secs(1);
    let publisher = publisher(&config);
    assert_eq!(classes(&publish(&publisher, messages(&queue, 1)).await), [CONFIRMED]);
    block_in_place(|| broker.freeze());
    let started = Instant::now();
    let verdicts = publish(&publisher, messages(&queue, 3)).await;
    let took = started.elapsed();
    block_in_place(|| broker.thaw());
    assert_eq!(classes(&verdicts), [UNAVAILABLE; 3]);
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert_eq!(classes(&publish(&publisher, messages(&queue, 1)).await), [CONFIRMED]);
}

/// B190, H144: a broker that does not answer gets no more than the windows of its channels.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_broker_gets_no_more_than_the_window() {
    let broker = turn().await;
    let own = Broker::connect(&broker.url()).await;
    let queue = random("window");
    own.queue(&queue, &[]).await;
    let proxy = Proxy::before(broker.address());
    let mut config = to_queues(&through(&broker.url(), &proxy.address()));
    (config.channels, config.window) = (2, 30);
    let publisher = publisher(&config);
    // Both channels are open.
    assert_eq!(classes(&publish(&publisher, messages(&queue, 20)).await), [CONFIRMED; 20]);
    proxy.silence(true);
    let batch = Batch::new(messages(&queue, 1_000));
    let call = tokio::time::timeout(Duration::from_secs(2), publisher.publish(batch.clone()));
    assert!(call.await.is_err());
    let passive = QueueDeclareOptions { passive: true, ..Default::default() };
    let declared =
        own.channel.queue_declare(queue.as_str().into(), passive, FieldTable::default()).await;
    assert_eq!(declared.unwrap().message_count(), 20 + 2 * 30);
    proxy.silence(false);
    tokio::time::timeout(LIMIT, batch.all_settled()).await.expect("the broker answers again");
    assert_eq!(classes(&verdicts(&batch)), [CONFIRMED; 1_000]);
    assert_eq!(own.take(&queue).await.len(), 1_020);
}

/// B188, H148: a message that only the broker finds too large is given up; those around it arrive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_too_large_for_the_broker_is_given_up_alone() {
    let broker = turn().await;
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
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exchange_that_is_not_permitted_refuses_and_is_sent_carefully_from_then_on() {
    let broker = turn().await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_needs_an_authority_that_is_trusted() {
    let broker = turn().await;
    let own = Broker::connect(&broker.url()).await;
    let queue = random("tls");
    own.queue(&queue, &[]).await;
    let ca = std::fs::read_to_string(broker.ca_certificate()).unwrap();
    let config = to_queues(&broker.tls_url());
    let trusted = publisher(&config.clone().with_tls(Tls::default().with_ca_pem(ca)));
    assert_eq!(classes(&publish(&trusted, messages(&queue, 3)).await), [CONFIRMED; 3]);
    assert_eq!(own.take(&queue).await.len(), 3);
    let verdicts = publish(&publisher(&config), messages(&queue, 1)).await;
    assert_eq!(classes(&verdicts), [UNAVAILABLE]);
    let reason = &failure(&verdicts[0]).reason;
    assert!(reason.contains("certificate"), "{reason}");
    let plain = through(&broker.url(), &address(&broker.tls_url()));
    let verdicts = publish(&publisher(&to_queues(&plain)), messages(&queue, 1)).await;
    assert_eq!(classes(&verdicts), [UNAVAILABLE], "plain text to the port for TLS");
}
