//! The publisher's contract, on the shared broker and on RabbitMQ 4, with a quorum queue and with a classic one; each rule
//! behind a proxy of its own.

#![allow(clippy::unwrap_used)] // A test.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::proxy::Proxy;
use common::{Broker, address, random, shared, through};
use lapin::types::AMQPValue;
use outbox_conformance::{Faults, PublisherHarness, Received};
use outbox_core::{EventId, FailureClass, Publisher, async_trait};
use outbox_rabbitmq::{RabbitMqConfig, RabbitMqPublisher};
use tokio::sync::Mutex;

const DEADLINE: Duration = Duration::from_secs(5);

/// A topic exchange whose one binding is the type of the kit's events, and a queue behind it.
struct Harness {
    url: String,
    proxy: Proxy,
    broker: Broker,
    exchange: Arc<str>,
    received: Mutex<Vec<Received>>,
}

async fn harness(url: String, queue_type: &str) -> Harness {
    let broker = Broker::connect(&url).await;
    let exchange: Arc<str> = random("conformance").into();
    broker.topic_exchange(&exchange).await;
    broker.queue(&exchange, &[("x-queue-type", AMQPValue::LongString(queue_type.into()))]).await;
    broker.bind(&exchange, &exchange, "Created.v1").await;
    let proxy = Proxy::before(address(&url));
    Harness { url, proxy, broker, exchange, received: Mutex::default() }
}

#[async_trait]
impl PublisherHarness for Harness {
    async fn publisher(&self) -> Arc<dyn Publisher> {
        let mut config = RabbitMqConfig::new(through(&self.url, &self.proxy.address()));
        config.delivery_deadline = DEADLINE;
        config.max_message_bytes = 1_000_000;
        Arc::new(RabbitMqPublisher::new(&config).unwrap())
    }

    fn destination(&self) -> Arc<str> {
        self.exchange.clone()
    }

    async fn received(&self) -> Vec<Received> {
        let mut received = self.received.lock().await;
        for message in self.broker.take(&self.exchange).await {
            let table = message.properties.headers().clone().unwrap_or_default();
            let text = |value: &AMQPValue| match value {
                AMQPValue::LongString(text) => text.as_bytes().to_vec(),
                other => panic!("no header of ours is {other:?}"),
            };
            let headers: Vec<(String, Vec<u8>)> = table
                .into_iter()
                // What the quorum queue itself adds.
                .filter(|(name, _)| name.as_str() != "x-delivery-count")
                .map(|(name, value)| (name.to_string(), text(value)))
                .collect();
            let key = headers.iter().find(|(name, _)| name == "aggregateId");
            received.push(Received {
                key: key.map(|(_, value)| value.clone()),
                payload: Some(message.delivery.data),
                headers,
            });
        }
        received.clone()
    }

    fn faults(&self) -> Faults {
        Faults::default()
            .with_deadline(DEADLINE)
            .with_outage()
            .with_silence()
            .with_slowness()
            .with_refusals(&[FailureClass::Refused])
            .with_too_large(1_100_000)
            .with_refused_destination("missing")
            .without_repeated_headers()
            .without_header_order()
    }

    async fn outage(&self, on: bool) {
        self.proxy.cut(on);
    }

    async fn silence(&self, on: bool) {
        self.proxy.silence(on);
    }

    async fn slow(&self, delay: Duration) {
        self.proxy.slow(delay);
    }

    async fn refuse(&self, _: usize, id: &EventId, _: FailureClass) {
        self.proxy.misdirect(&id.to_string());
    }
}

mod quorum {
    async fn harness() -> super::Harness {
        super::harness(super::shared(), "quorum").await
    }

    outbox_conformance::publisher_conformance!(harness);
}

mod classic {
    async fn harness() -> super::Harness {
        super::harness(super::shared(), "classic").await
    }

    outbox_conformance::publisher_conformance!(harness);
}

mod rabbitmq_4 {
    use std::sync::LazyLock;

    use xtask::services::{RabbitMq, RabbitMqVersion};

    /// The one broker of these tests.
    static BROKER: LazyLock<RabbitMq> = LazyLock::new(|| RabbitMq::start(RabbitMqVersion::V4));

    async fn harness() -> super::Harness {
        super::harness(BROKER.url(), "quorum").await
    }

    outbox_conformance::publisher_conformance!(harness);
}
