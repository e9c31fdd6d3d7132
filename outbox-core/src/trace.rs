//! What the code that creates an event carries with it: trace context and correlation id.

use opentelemetry::baggage::BaggageExt as _;
use opentelemetry::trace::TraceContextExt as _;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use crate::headers::CORRELATION_ID;

/// The current span as a W3C `traceparent`; `None` outside a trace.
pub(crate) fn current_traceparent() -> Option<String> {
    let context = tracing::Span::current().context();
    let span = context.span();
    let span = span.span_context();
    span.is_valid().then(|| {
        let flags = span.trace_flags().to_u8();
        format!("00-{}-{}-{flags:02x}", span.trace_id(), span.span_id())
    })
}

/// The `correlationId` of the baggage, from the current span or the current context.
pub(crate) fn current_correlation_id() -> Option<String> {
    let span = tracing::Span::current().context();
    let here = opentelemetry::Context::current();
    let value = span.baggage().get(CORRELATION_ID).or_else(|| here.baggage().get(CORRELATION_ID));
    value.map(ToString::to_string).filter(|id| !id.is_empty())
}
