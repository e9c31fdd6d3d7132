//! Every setting with its unit and its default.

use std::time::Duration;

use outbox_core::PublishError;

/// The most that SQS takes in one request, and in one message: 1 MiB.
pub(crate) const SQS_MAX_BYTES: usize = 1 << 20;

/// Settings of an [`SqsPublisher`](crate::SqsPublisher). Credentials, region and endpoint are the SDK's.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SqsConfig {
    /// The URL of a queue by its name, which stands for `{name}`, such as
    /// `https://sqs.eu-central-1.amazonaws.com/123456789012/{name}`. `None`, the default, asks SQS (`sqs:GetQueueUrl`) once
    /// for each queue. Routes may also name queues by URL or by ARN.
    pub queue_url: Option<String>,
    /// What becomes of payloads that SQS refuses; [`BodyEncoding::Text`] by default.
    pub body: BodyEncoding,
    /// What becomes of headers that have no room; [`HeaderOverflow::Fold`] by default.
    pub header_overflow: HeaderOverflow,
    /// Refuses to send to standard queues, which keep no order. Off by default.
    pub require_fifo: bool,
    /// Requests that may be under way at once, of at most ten messages each; 8 by default. A FIFO queue without high
    /// throughput takes 300 requests a second: set 2 or 3 for it, or it throttles, and a throttled pipeline pauses.
    pub requests_in_flight: usize,
    /// Bytes of messages in one request; 1 MiB by default, which is SQS's limit. Lower it for a server that takes less.
    pub max_request_bytes: usize,
    /// A request without an answer after this time is given up; 10 s by default. Its messages stay open: they may have been
    /// taken. Keep it below the relay's publish deadline (15 s).
    pub request_timeout: Duration,
    /// Time to connect; 3 s by default.
    pub connect_timeout: Duration,
    /// A publish call returns after this time, and starts no request any more; 60 s by default. A safety net, the relay's
    /// own deadline is shorter.
    pub delivery_deadline: Duration,
}

impl Default for SqsConfig {
    fn default() -> Self {
        Self {
            queue_url: None,
            body: BodyEncoding::Text,
            header_overflow: HeaderOverflow::Fold,
            require_fifo: false,
            requests_in_flight: 8,
            max_request_bytes: SQS_MAX_BYTES,
            request_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(3),
            delivery_deadline: Duration::from_secs(60),
        }
    }
}

impl SqsConfig {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`queue_url`](Self::queue_url).
    #[must_use]
    pub fn with_queue_url(mut self, template: impl Into<String>) -> Self {
        self.queue_url = Some(template.into());
        self
    }

    /// Sets [`body`](Self::body).
    #[must_use]
    pub fn with_body(mut self, body: BodyEncoding) -> Self {
        self.body = body;
        self
    }

    /// Sets [`header_overflow`](Self::header_overflow).
    #[must_use]
    pub fn with_header_overflow(mut self, overflow: HeaderOverflow) -> Self {
        self.header_overflow = overflow;
        self
    }

    /// Sets [`require_fifo`](Self::require_fifo).
    #[must_use]
    pub fn with_require_fifo(mut self, require: bool) -> Self {
        self.require_fifo = require;
        self
    }

    /// Sets [`requests_in_flight`](Self::requests_in_flight).
    #[must_use]
    pub fn with_requests_in_flight(mut self, requests: usize) -> Self {
        self.requests_in_flight = requests;
        self
    }

    /// Sets [`max_request_bytes`](Self::max_request_bytes).
    #[must_use]
    pub fn with_max_request_bytes(mut self, bytes: usize) -> Self {
        self.max_request_bytes = bytes;
        self
    }

    /// Sets [`request_timeout`](Self::request_timeout).
    #[must_use]
    pub fn with_request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// Sets [`connect_timeout`](Self::connect_timeout).
    #[must_use]
    pub fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets [`delivery_deadline`](Self::delivery_deadline).
    #[must_use]
    pub fn with_delivery_deadline(mut self, deadline: Duration) -> Self {
        self.delivery_deadline = deadline;
        self
    }

    pub(crate) fn check(&self) -> Result<(), PublishError> {
        let refuse = |setting: &str, reason: &str| {
            Err(PublishError::misconfigured(format!("sqs setting {setting} is refused: {reason}")))
        };
        if self.queue_url.as_ref().is_some_and(|url| !url.contains("{name}")) {
            return refuse("queue_url", "it lacks {name}, so all queues would be one");
        }
        if !(1..=1_000).contains(&self.requests_in_flight) {
            return refuse("requests_in_flight", "it must be 1 to 1,000 requests");
        }
        if !(1_024..=SQS_MAX_BYTES).contains(&self.max_request_bytes) {
            return refuse("max_request_bytes", "it must be 1 KiB to 1 MiB");
        }
        for (setting, time) in [
            ("request_timeout", self.request_timeout),
            ("connect_timeout", self.connect_timeout),
            ("delivery_deadline", self.delivery_deadline),
        ] {
            if time.is_zero() || time > Duration::from_secs(3_600) {
                return refuse(setting, "it must be more than zero and at most an hour");
            }
        }
        Ok(())
    }
}

/// What becomes of a payload that SQS refuses: bytes that are not UTF-8, or characters outside XML 1.0, such as control
/// characters. Without a payload, and with one of zero bytes, an event is refused in each case: SQS has no empty message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BodyEncoding {
    /// The event is refused for good. All others are sent as they are.
    Text,
    /// It is sent as base64, with the attribute `outbox-encoding` = `base64`; all others as they are. A key that SQS refuses
    /// is sent as a binary attribute.
    Base64IfRefused,
    /// All are sent as base64, with that attribute.
    Base64,
}

/// What becomes of headers that SQS has no room for. A header becomes a message attribute of its own if SQS allows name and
/// value (a name of letters, digits, `_`, `-` and single dots that does not begin with `AWS.` or `Amazon.`; a value that is not
/// empty and has no character outside XML 1.0), if the name comes first, and while there are at most ten attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderOverflow {
    /// The others go, in their order, into one attribute `outbox-headers`: one flat JSON object.
    Fold,
    /// The event is refused for good.
    Refuse,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_range_are_refused_by_name() {
        let config = SqsConfig::new;
        for (setting, config) in [
            ("queue_url", config().with_queue_url("https://sqs.example/1/orders")),
            ("requests_in_flight", config().with_requests_in_flight(0)),
            ("max_request_bytes", config().with_max_request_bytes(SQS_MAX_BYTES + 1)),
            ("request_timeout", config().with_request_timeout(Duration::ZERO)),
            ("delivery_deadline", config().with_delivery_deadline(Duration::MAX)),
        ] {
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(setting), "{error}");
        }
        config().check().unwrap();
    }
}
