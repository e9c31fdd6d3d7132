//! What the relay's log lines carry.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_core::memory::{Fault, FaultRule, MemoryPublisher, MemoryStore};
use outbox_core::{
    Failure, FailureClass, NewEvent, Pipeline, Relay, Store as _, Worker, Writer as _,
};
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

/// An event that is named can be found elsewhere, and a line says whose it is.
#[tokio::test(start_paused = true)]
async fn every_line_names_its_pipeline_and_every_event_its_type_trace_and_correlation() {
    let lines = Lines::default();
    let _guard =
        tracing::subscriber::set_default(tracing_subscriber::registry().with(lines.clone()));
    let (store, publisher) = (MemoryStore::new(), MemoryPublisher::new());
    for _ in 0..3 {
        let worker = Worker::new(Pipeline::new("default").unwrap(), "mortal");
        store.heartbeat(&worker, Duration::from_secs(1)).await.unwrap();
        store.acquire(&worker, 16).await.unwrap();
        tokio::time::advance(Duration::from_secs(2)).await;
    }
    let mut transaction = store.begin();
    for event_type in ["good", "bad", "panic", "down"] {
        let event = NewEvent::builder("order", event_type, event_type)
            .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
            .header("correlationId", "c1")
            .build()
            .unwrap();
        store.append(&mut transaction, &[event]).await.unwrap();
    }
    transaction.commit();
    let refuse = |class| Fault::Refuse(Failure::new(class, "as scripted"));
    publisher.script(FaultRule::on_type("bad", refuse(FailureClass::Permanent)));
    publisher.script(FaultRule::on_type("panic", Fault::Panic).times(1));
    publisher.script(FaultRule::on_type("down", refuse(FailureClass::Unavailable)).times(1));
    let done = store.wait_until_nothing_pending(Duration::from_secs(600));
    Relay::new(Arc::new(store.clone()), Arc::new(publisher))
        .with_virtual_time()
        .run(done)
        .await
        .unwrap();
    let lines = lines.0.lock().unwrap();
    assert!(lines.iter().any(|line| line["message"].contains("an event failed")), "{lines:?}");
    for line in lines.iter() {
        assert!(line.contains_key("pipeline"), "{line:?}");
        let named = line.contains_key("id");
        let of_event = ["event_type", "trace", "correlation_id"];
        assert!(!named || of_event.iter().all(|field| line.contains_key(field)), "{line:?}");
    }
}

/// However many aggregates wait for it, and however often they are tried.
#[tokio::test(start_paused = true)]
async fn a_destination_that_refuses_has_one_line_and_one_when_it_takes_messages_again() {
    let lines = Lines::default();
    let _guard =
        tracing::subscriber::set_default(tracing_subscriber::registry().with(lines.clone()));
    let (store, publisher) = (MemoryStore::new(), MemoryPublisher::new());
    let mut transaction = store.begin();
    for n in 0..20 {
        let event = NewEvent::builder("order", n.to_string(), "made").build().unwrap();
        store.append(&mut transaction, &[event]).await.unwrap();
    }
    transaction.commit();
    let refused = Fault::Refuse(Failure::new(FailureClass::Refused, "no such topic"));
    publisher.script(FaultRule::on_type("made", refused).times(60));
    let done = store.wait_until_nothing_pending(Duration::from_secs(600));
    Relay::new(Arc::new(store.clone()), Arc::new(publisher))
        .with_virtual_time()
        .run(done)
        .await
        .unwrap();
    let lines = lines.0.lock().unwrap();
    let of = |level: &str| -> Vec<_> {
        lines
            .iter()
            .filter(|line| line["level"] == level && line.contains_key("destination"))
            .collect()
    };
    let (told, over, each) = (of("WARN"), of("INFO"), of("DEBUG"));
    assert_eq!((told.len(), over.len()), (1, 1), "{lines:?}");
    assert_eq!(told[0]["destination"], "outbox.event.order");
    assert_eq!(told[0]["reason"], "no such topic");
    assert!(over[0]["message"].contains("takes messages"));
    assert_eq!(each.len(), 60, "each event has its line for who looks closer");
}

/// The fields of every line, and its level.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<BTreeMap<&'static str, String>>>>);

struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl<S: tracing::Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if event.metadata().target().starts_with("outbox_core") {
            let mut fields = Fields(BTreeMap::new());
            event.record(&mut fields);
            fields.0.insert("level", event.metadata().level().to_string());
            self.0.lock().unwrap().push(fields.0);
        }
    }
}
