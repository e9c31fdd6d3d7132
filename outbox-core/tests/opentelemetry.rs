//! With the feature `opentelemetry` an event carries the trace and the correlation id of the code that creates it.

use opentelemetry::Context;
use opentelemetry::KeyValue;
use opentelemetry::baggage::BaggageExt as _;
use opentelemetry::trace::{TraceContextExt as _, TracerProvider as _};
use opentelemetry_sdk::trace::SdkTracerProvider;
use outbox_core::NewEvent;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::layer::SubscriberExt as _;

fn traced<T>(body: impl FnOnce() -> T) -> T {
    let tracer = SdkTracerProvider::builder().build().tracer("test");
    let layer = tracing_opentelemetry::layer().with_tracer(tracer);
    tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), body)
}

fn headers(event: &NewEvent) -> serde_json::Value {
    event.headers().map_or(serde_json::Value::Null, |json| {
        serde_json::from_str(json).expect("headers are JSON")
    })
}

#[test]
fn the_current_span_becomes_the_traceparent() {
    traced(|| {
        let span = tracing::info_span!("request");
        let _entered = span.enter();
        let event = NewEvent::builder("order", "1", "Created").build().expect("within limits");
        let context = span.context();
        let (trace, parent) =
            (context.span().span_context().trace_id(), context.span().span_context().span_id());
        assert_eq!(headers(&event)["traceparent"], format!("00-{trace}-{parent}-01"));
    });
}

#[test]
fn a_traceparent_of_the_application_is_left_alone() {
    traced(|| {
        let _entered = tracing::info_span!("request").entered();
        let event = NewEvent::builder("order", "1", "Created").traceparent("mine").build();
        assert_eq!(headers(&event.expect("within limits"))["traceparent"], "mine");
    });
}

#[test]
fn the_correlation_id_comes_from_the_baggage() {
    let context = Context::current().with_baggage([KeyValue::new("correlationId", "request-7")]);
    let _attached = context.attach();
    let event = NewEvent::builder("order", "1", "Created").build().expect("within limits");
    assert_eq!(headers(&event)["correlationId"], "request-7");
}

#[test]
fn outside_a_trace_nothing_is_added() {
    let event = NewEvent::builder("order", "1", "Created").build().expect("within limits");
    assert_eq!(event.headers(), None);
}
