//! The publisher's contract: on the mock cluster, and on a broker that is frozen and whose line is cut.
//!
//! No harness can have one message of a call refused by the broker: what is refused there stops the producer, and with
//! it the neighbours (see [`outbox_kafka::KafkaPublisher`]). Those rules fall away here; `faults.rs` and `server.rs` look at
//! refusals.

#![allow(clippy::unwrap_used)] // A test.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{queued, random, stored};
use outbox_conformance::{Faults, Received};
use outbox_core::{Batch, Publisher};
use outbox_kafka::{KafkaConfig, KafkaPublisher};

/// Larger than `max_message_bytes`.
const TOO_LARGE: usize = 1_100_000;

/// A missing topic takes 5 s to be sure of.
const DEADLINE: Duration = Duration::from_secs(10);

fn publisher(bootstrap: &str) -> Arc<dyn Publisher> {
    let config = KafkaConfig::new(bootstrap)
        .with_delivery_deadline(DEADLINE)
        // Of a key, and of a call, the broker may have taken a part when it goes away.
        .with_property("batch.num.messages", "10")
        .with_property("statistics.interval.ms", "20");
    Arc::new(KafkaPublisher::new(&config).unwrap())
}

fn faults() -> Faults {
    Faults::default()
        .with_deadline(DEADLINE)
        .with_outage()
        .with_silence()
        .with_too_large(TOO_LARGE)
        .with_refused_destination("missing")
}

async fn received(bootstrap: &str, topic: &str) -> Vec<Received> {
    let received = |stored: common::Stored| Received {
        key: stored.key,
        payload: stored.payload,
        headers: stored
            .headers
            .into_iter()
            .map(|(name, value)| (name, value.expect("no header of ours is null")))
            .collect(),
    };
    stored(bootstrap, topic).await.into_iter().map(received).collect()
}

mod mock {
    use std::sync::mpsc;

    use outbox_conformance::PublisherHarness;
    use outbox_core::async_trait;

    use super::common::Mock;
    use super::*;

    /// A broker that answers after so long does not answer.
    const NEVER: Duration = Duration::from_secs(3_600);

    /// The mock cluster lives on a thread of its own: it cannot be sent to another.
    struct Harness {
        bootstrap: String,
        orders: mpsc::Sender<Order>,
    }

    type Order = Box<dyn FnOnce(&Mock) + Send>;

    async fn harness() -> Harness {
        let (orders, received) = mpsc::channel::<Order>();
        let (ready, bootstrap) = mpsc::channel();
        std::thread::spawn(move || {
            let mock = common::mock(1, 6);
            ready.send(mock.bootstrap_servers()).unwrap();
            for order in received {
                order(&mock);
            }
        });
        Harness { bootstrap: bootstrap.recv().unwrap(), orders }
    }

    impl Harness {
        /// Returns when it is done.
        fn order(&self, order: impl FnOnce(&Mock) + Send + 'static) {
            let (done, is_done) = mpsc::channel();
            let order: Order = Box::new(move |mock| {
                order(mock);
                done.send(()).unwrap();
            });
            self.orders.send(order).unwrap();
            is_done.recv().unwrap();
        }
    }

    #[async_trait]
    impl PublisherHarness for Harness {
        async fn publisher(&self) -> Arc<dyn Publisher> {
            publisher(&self.bootstrap)
        }

        fn destination(&self) -> Arc<str> {
            "t".into()
        }

        async fn received(&self) -> Vec<Received> {
            received(&self.bootstrap, "t").await
        }

        fn faults(&self) -> Faults {
            faults().with_slowness()
        }

        async fn outage(&self, on: bool) {
            self.order(move |mock| {
                if on { mock.broker_down(-1) } else { mock.broker_up(-1) }.unwrap();
            });
        }

        async fn silence(&self, on: bool) {
            self.slow(if on { NEVER } else { Duration::ZERO }).await;
        }

        async fn under_way(&self, publisher: &dyn Publisher, batch: &Batch) {
            queued(publisher, batch.len()).await;
        }

        async fn slow(&self, delay: Duration) {
            self.order(move |mock| mock.broker_round_trip_time(-1, delay).unwrap());
        }
    }

    outbox_conformance::publisher_conformance!(harness);
}

mod server {
    use outbox_conformance::PublisherHarness;
    use outbox_core::async_trait;
    use tokio::sync::{Mutex, MutexGuard};
    use tokio::task::block_in_place;
    use xtask::proxy::Proxy;
    use xtask::services::Kafka;

    use super::common::create_topic;
    use super::*;

    /// The one broker of these tests: they take turns.
    static BROKER: Mutex<Option<Broker>> = Mutex::const_new(None);

    /// Reached by its clients through a proxy.
    struct Broker {
        kafka: Kafka,
        proxy: Proxy,
    }

    impl Broker {
        fn start() -> Self {
            let proxy = Proxy::start();
            let listeners = format!("PLAINTEXT://{}", proxy.address());
            let kafka = Kafka::start_with(&[("advertised.listeners", &listeners)]);
            proxy.lead_to(kafka.bootstrap());
            Self { kafka, proxy }
        }
    }

    struct Harness {
        broker: MutexGuard<'static, Option<Broker>>,
        topic: Arc<str>,
    }

    impl Harness {
        fn broker(&self) -> &Broker {
            self.broker.as_ref().unwrap()
        }

        fn bootstrap(&self) -> String {
            self.broker().proxy.address()
        }
    }

    async fn harness() -> Harness {
        let mut broker = BROKER.lock().await;
        let running = block_in_place(|| broker.get_or_insert_with(Broker::start));
        let topic = random("conformance");
        create_topic(&running.proxy.address(), &topic, 6, &[]).await;
        Harness { broker, topic: topic.into() }
    }

    #[async_trait]
    impl PublisherHarness for Harness {
        async fn publisher(&self) -> Arc<dyn Publisher> {
            publisher(&self.bootstrap())
        }

        fn destination(&self) -> Arc<str> {
            self.topic.clone()
        }

        async fn received(&self) -> Vec<Received> {
            received(&self.bootstrap(), &self.topic).await
        }

        fn faults(&self) -> Faults {
            faults()
        }

        async fn outage(&self, on: bool) {
            self.broker().proxy.cut(on);
        }

        async fn silence(&self, on: bool) {
            let kafka = &self.broker().kafka;
            if on { kafka.freeze() } else { kafka.thaw() }
        }

        async fn under_way(&self, publisher: &dyn Publisher, batch: &Batch) {
            queued(publisher, batch.len()).await;
        }
    }

    impl Drop for Harness {
        fn drop(&mut self) {
            // A rule that failed may have left it so; the next one starts a new broker.
            if std::thread::panicking() {
                *self.broker = None;
            }
        }
    }

    outbox_conformance::publisher_conformance!(harness);
}
