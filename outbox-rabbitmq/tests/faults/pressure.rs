//! A broker that is short of memory or disk, or silent.

use std::time::{Duration, Instant};

use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use outbox_core::{Batch, Publisher};
use tokio::task::block_in_place;

use crate::Turn;
use crate::common::proxy::Proxy;
use crate::common::{
    self, Broker, CONFIRMED, LIMIT, UNAVAILABLE, classes, failure, ids, messages, publish,
    publisher, random, through, to_queues, verdicts,
};

/// B178
async fn a_memory_alarm_is_an_outage_that_ends_by_itself(broker: Turn) {
    let setting = "set_vm_memory_high_watermark";
    an_alarm_is_an_outage_that_ends_by_itself(&broker, [setting, "0.0000001"], [setting, "0.4"])
        .await;
}

/// B178
async fn a_disk_alarm_is_an_outage_that_ends_by_itself(broker: Turn) {
    let setting = "set_disk_free_limit";
    an_alarm_is_an_outage_that_ends_by_itself(&broker, [setting, "900000GB"], [setting, "50MB"])
        .await;
}

/// B178, H144: while an alarm lasts, nothing is confirmed and the destination counts as down; when it ends, what
/// was open is confirmed, once. The alarm does not hold up `abandon`, and what was abandoned meanwhile is not sent later,
/// but for what had left already.
async fn an_alarm_is_an_outage_that_ends_by_itself(
    broker: &Turn,
    raise: [&str; 2],
    clear: [&str; 2],
) {
    let queue = random("alarm");
    let own = Broker::connect(&broker.url()).await;
    own.queue(&queue, &[]).await;
    let publisher = publisher(&to_queues(&broker.url()));
    let abandoning = common::publisher(&to_queues(&broker.url()));
    for publisher in [&publisher, &abandoning] {
        assert_eq!(classes(&publish(publisher, messages(&queue, 1)).await), [CONFIRMED]);
    }
    block_in_place(|| broker.ctl(&raise));

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

    block_in_place(|| broker.ctl(&clear));
    tokio::time::timeout(LIMIT, open.all_settled()).await.expect("the alarm is over");
    assert_eq!(classes(&common::verdicts(&open)), [CONFIRMED; 3]);
    for publisher in [&publisher, &abandoning] {
        assert_eq!(classes(&publish(publisher, messages(&queue, 1)).await), [CONFIRMED]);
    }
    let mut received = own.take_ids(&queue).await;
    received.retain(|id| !ids(lost.messages()).contains(id));
    assert_eq!(received.len(), 2 + 3 + 2, "each once");
}

/// B190, H144: a broker that does not answer gets no more than the windows of its channels.
async fn a_silent_broker_gets_no_more_than_the_window(broker: Turn) {
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

crate::on_both! {
    a_memory_alarm_is_an_outage_that_ends_by_itself,
    a_disk_alarm_is_an_outage_that_ends_by_itself,
    a_silent_broker_gets_no_more_than_the_window,
}
