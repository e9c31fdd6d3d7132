//! A broker that is killed, restarted or frozen, and a line that is cut.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_core::{Batch, FailureClass, Message, Publisher, Verdict};
use outbox_rabbitmq::RabbitMqPublisher;
use tokio::task::{JoinHandle, block_in_place};

use crate::common::proxy::Proxy;
use crate::common::{
    Broker, CONFIRMED, LIMIT, REFUSED, UNAVAILABLE, classes, ids, messages, publish, publisher,
    random, through, to_queues, verdicts,
};
use crate::{Turn, confirmed};

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

/// B184, H143, H146: a broker that is killed, and one that restarts, lose nothing that was confirmed; the publisher comes back
/// by itself.
async fn a_broker_killed_and_restarted_under_load_loses_nothing(broker: Turn) {
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
async fn a_connection_cut_in_the_middle_of_a_call_invents_no_confirm(broker: Turn) {
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

/// B185: a broker that stands still is noticed by its missing heartbeats, also while messages are open.
async fn a_frozen_broker_is_noticed_by_its_heartbeat(broker: Turn) {
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

/// B183: an answer that comes after its caller has gone belongs to the message that it was given for, also when the channel
/// has sent others since; and none outlives its connection.
async fn a_late_answer_belongs_to_its_own_message(broker: Turn) {
    let own = Broker::connect(&broker.url()).await;
    let queue = random("late");
    own.queue(&queue, &[]).await;
    let proxy = Proxy::before(broker.address());
    let mut config = to_queues(&through(&broker.url(), &proxy.address()));
    config.channels = 1;
    let publisher = publisher(&config);
    assert_eq!(classes(&publish(&publisher, messages(&queue, 1)).await), [CONFIRMED]);
    proxy.slow(Duration::from_millis(300));
    let send = async |queue: &str| {
        let batch = Batch::new(messages(queue, 1));
        let call = publisher.publish(batch.clone());
        assert!(tokio::time::timeout(Duration::from_millis(50), call).await.is_err());
        batch
    };
    for [first, second] in [["missing", &queue], [&queue, "missing"]] {
        let (first, second) = (send(first).await, send(second).await);
        for batch in [first, second] {
            tokio::time::timeout(LIMIT, batch.all_settled()).await.expect("an answer comes");
            let missing = batch.messages()[0].destination().as_ref() == "missing";
            let expected = if missing { REFUSED } else { CONFIRMED };
            assert_eq!(classes(&verdicts(&batch)), [expected]);
        }
    }
    let abandoned = send("missing").await;
    publisher.abandon().await;
    assert_eq!(classes(&publish(&publisher, messages(&queue, 1)).await), [CONFIRMED]);
    assert_eq!(abandoned.open(), 1);
}

crate::on_both! {
    a_late_answer_belongs_to_its_own_message,
    a_broker_killed_and_restarted_under_load_loses_nothing,
    a_connection_cut_in_the_middle_of_a_call_invents_no_confirm,
    a_frozen_broker_is_noticed_by_its_heartbeat,
}
