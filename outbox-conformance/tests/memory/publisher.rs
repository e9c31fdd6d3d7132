//! A harness around the memory publisher.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outbox_conformance::{Faults, PublisherHarness, Received};
use outbox_core::memory::{Fault, FaultRule, MemoryPublisher};
use outbox_core::{Batch, EventId, Failure, FailureClass, Message, Publisher, async_trait};

const TOO_LARGE: usize = 1 << 20;
const REFUSED: &str = "missing";

/// A broker in memory, behind `publisher`: itself, or a wrapper around it.
pub(crate) struct MemoryBroker {
    broker: MemoryPublisher,
    publisher: Arc<dyn Publisher>,
    deadline: Option<Duration>,
    calls_before_silence: AtomicU64,
    outages_do_nothing: bool,
}

impl MemoryBroker {
    pub(crate) fn new(broker: MemoryPublisher) -> Self {
        Self::wrapped(broker.clone(), Arc::new(broker))
    }

    /// The publisher under test is `publisher`, and sends to `broker`.
    pub(crate) fn wrapped(broker: MemoryPublisher, publisher: Arc<dyn Publisher>) -> Self {
        let calls_before_silence = AtomicU64::new(0);
        let harness = Self {
            broker,
            publisher,
            deadline: None,
            calls_before_silence,
            outages_do_nothing: false,
        };
        harness.script_from_start();
        harness
    }

    pub(crate) fn with_deadline(self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// A harness with a defect: it claims outages and causes none. Its broker takes each call at once.
    #[allow(dead_code, reason = "for the suites with something broken")]
    pub(crate) fn without_outages(self) -> Self {
        Self { outages_do_nothing: true, ..self }
    }

    fn script_from_start(&self) {
        self.broker.clear_script();
        let large = |message: &Message| message.payload().is_some_and(|it| it.len() >= TOO_LARGE);
        self.broker.script(FaultRule::when(large, refused(FailureClass::Permanent)));
        let missing = |message: &Message| &**message.destination() == REFUSED;
        self.broker.script(FaultRule::when(missing, refused(FailureClass::Refused)));
    }
}

#[async_trait]
impl PublisherHarness for MemoryBroker {
    async fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::clone(&self.publisher)
    }

    fn destination(&self) -> Arc<str> {
        "destination".into()
    }

    async fn received(&self) -> Vec<Received> {
        self.broker.messages_to("destination").iter().map(received).collect()
    }

    fn faults(&self) -> Faults {
        let classes = [
            FailureClass::Unavailable,
            FailureClass::Refused,
            FailureClass::Transient,
            FailureClass::Permanent,
        ];
        let faults = Faults::default()
            .with_outage()
            .with_silence()
            .with_refusals(&classes)
            .with_too_large(TOO_LARGE)
            .with_refused_destination(REFUSED);
        let faults = if self.outages_do_nothing { faults } else { faults.with_slowness() };
        match self.deadline {
            Some(deadline) => faults.with_deadline(deadline),
            None => faults,
        }
    }

    async fn outage(&self, on: bool) {
        self.broker.outage(on && !self.outages_do_nothing);
    }

    async fn under_way(&self, _: &dyn Publisher, _: &Batch) {
        while self.broker.calls() == self.calls_before_silence.load(Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
    }

    async fn silence(&self, on: bool) {
        self.script_from_start();
        if on {
            self.calls_before_silence.store(self.broker.calls(), Ordering::SeqCst);
            self.broker.script(FaultRule::always(Fault::Silent));
        }
    }

    async fn slow(&self, delay: Duration) {
        self.script_from_start();
        if !delay.is_zero() {
            self.broker.script(FaultRule::always(Fault::Slow(delay)));
        }
    }

    async fn refuse(&self, _nth: usize, id: &EventId, class: FailureClass) {
        self.broker.script(FaultRule::on_id(id, refused(class)).times(1));
    }
}

fn refused(class: FailureClass) -> Fault {
    Fault::Refuse(Failure::new(class, "as the script says"))
}

fn received(message: &Message) -> Received {
    let mut headers = vec![
        ("id".to_owned(), message.id().to_string().into_bytes()),
        ("eventType".to_owned(), message.event_type().as_bytes().to_vec()),
    ];
    message.for_each_header(|name, value| headers.push((name.to_owned(), value.into())));
    Received {
        key: message.key().map(<[u8]>::to_vec),
        payload: message.payload().map(<[u8]>::to_vec),
        headers,
    }
}
