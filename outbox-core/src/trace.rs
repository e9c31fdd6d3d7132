//! The trace context of the code that creates an event.

use opentelemetry::trace::TraceContextExt as _;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

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
