//! The publisher's contract, with both kinds of queue: on a strict stub, and on ElasticMQ, which is frozen and whose line is
//! cut. B205
//!
//! No request of ElasticMQ can be scripted: rules about refusals fall away there.

#![allow(clippy::unwrap_used)] // A test.

mod support;

use std::sync::Arc;
use std::time::Duration;

use outbox_conformance::{Faults, PublisherHarness, Received};
use outbox_core::{EventId, FailureClass, Publisher, async_trait};
use outbox_sqs::{BodyEncoding, SqsConfig};
use support::stub::Stub;
use support::{publisher, random};

/// SQS takes 1 MiB, with attributes.
const TOO_LARGE: usize = 1 << 20;
const DEADLINE: Duration = Duration::from_secs(5);

fn config() -> SqsConfig {
    SqsConfig::new().with_request_timeout(Duration::from_secs(4)).with_delivery_deadline(DEADLINE)
}

fn faults() -> Faults {
    Faults::default()
        .with_deadline(DEADLINE)
        .with_outage()
        .with_silence()
        .with_too_large(TOO_LARGE)
        .with_refused_destination("missing")
        .without_header_order()
}

struct StubHarness {
    stub: Stub,
    queue: &'static str,
    config: SqsConfig,
}

async fn stub_harness(queue: &'static str, config: SqsConfig) -> StubHarness {
    let stub = Stub::start().await;
    stub.create(queue);
    StubHarness { stub, queue, config }
}

#[async_trait]
impl PublisherHarness for StubHarness {
    async fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::new(publisher(&self.stub.endpoint(), &self.config))
    }

    fn destination(&self) -> Arc<str> {
        self.queue.into()
    }

    async fn received(&self) -> Vec<Received> {
        self.stub.stored(self.queue).iter().map(support::Stored::received).collect()
    }

    fn faults(&self) -> Faults {
        faults().with_slowness().with_refusals(&[FailureClass::Transient, FailureClass::Permanent])
    }

    async fn outage(&self, on: bool) {
        self.stub.down(on);
    }

    async fn silence(&self, on: bool) {
        self.stub.silence(on);
    }

    async fn slow(&self, delay: Duration) {
        self.stub.slow(delay);
    }

    async fn refuse(&self, _: usize, id: &EventId, class: FailureClass) {
        let code = match class {
            FailureClass::Permanent => "InvalidMessageContents",
            _ => "SomethingNew",
        };
        self.stub.fail(&id.to_string(), code, true);
    }
}

mod stub_fifo {
    use super::*;

    async fn harness() -> StubHarness {
        stub_harness("q.fifo", config()).await
    }

    outbox_conformance::publisher_conformance!(harness);
}

mod stub_standard {
    use super::*;

    async fn harness() -> StubHarness {
        stub_harness("q", config().with_body(BodyEncoding::Base64IfRefused)).await
    }

    outbox_conformance::publisher_conformance!(harness);
}

mod server {
    use tokio::sync::{Mutex, MutexGuard};
    use tokio::task::block_in_place;
    use xtask::proxy::Proxy;
    use xtask::services::ElasticMq;

    use super::*;
    use crate::support::Reader;

    /// The one server of these tests: they take turns.
    static SERVER: Mutex<Option<Server>> = Mutex::const_new(None);

    /// Reached by the publisher through a proxy.
    struct Server {
        elasticmq: ElasticMq,
        proxy: Proxy,
    }

    impl Server {
        fn start() -> Self {
            let elasticmq = ElasticMq::start();
            let proxy = Proxy::before(elasticmq.address());
            Self { elasticmq, proxy }
        }
    }

    struct Harness {
        server: MutexGuard<'static, Option<Server>>,
        queue: Arc<str>,
        config: SqsConfig,
        /// What was taken from the queue.
        received: Mutex<Vec<Received>>,
    }

    impl Harness {
        fn server(&self) -> &Server {
            self.server.as_ref().unwrap()
        }

        fn reader(&self) -> Reader {
            Reader::new(&self.server().elasticmq.endpoint())
        }
    }

    async fn harness(suffix: &str, config: SqsConfig) -> Harness {
        let mut server = SERVER.lock().await;
        block_in_place(|| server.get_or_insert_with(Server::start));
        let queue = random("conformance") + suffix;
        let harness = Harness { server, queue: queue.into(), config, received: Mutex::default() };
        harness.reader().create(&harness.queue).await;
        harness
    }

    #[async_trait]
    impl PublisherHarness for Harness {
        async fn publisher(&self) -> Arc<dyn Publisher> {
            let Server { elasticmq, proxy } = self.server();
            let endpoint = proxy.through(&elasticmq.endpoint());
            Arc::new(publisher(&endpoint, &self.config))
        }

        fn destination(&self) -> Arc<str> {
            self.queue.clone()
        }

        async fn received(&self) -> Vec<Received> {
            let mut all = self.received.lock().await;
            let new = self.reader().drain(&self.queue).await;
            all.extend(new.iter().map(support::Stored::received));
            all.clone()
        }

        fn faults(&self) -> Faults {
            faults()
        }

        async fn outage(&self, on: bool) {
            self.server().proxy.cut(on);
        }

        async fn silence(&self, on: bool) {
            let elasticmq = &self.server().elasticmq;
            if on { elasticmq.freeze() } else { elasticmq.thaw() }
        }
    }

    impl Drop for Harness {
        fn drop(&mut self) {
            // A rule that failed may have left it so; the next one starts a new server.
            if std::thread::panicking() {
                *self.server = None;
            }
        }
    }

    mod fifo {
        async fn harness() -> super::Harness {
            super::harness(".fifo", super::config()).await
        }

        outbox_conformance::publisher_conformance!(harness);
    }

    mod standard {
        use outbox_sqs::BodyEncoding;

        async fn harness() -> super::Harness {
            let config = super::config().with_body(BodyEncoding::Base64IfRefused);
            super::harness("", config).await
        }

        outbox_conformance::publisher_conformance!(harness);
    }
}
