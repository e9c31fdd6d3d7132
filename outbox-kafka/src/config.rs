//! Every setting: its unit, its default, and what librdkafka is told.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use outbox_core::{PublishError, Timing};
use rdkafka::ClientConfig;

use crate::security::{self, Sasl, Tls};

/// What librdkafka is told unless a field or a property of [`KafkaConfig`] says otherwise, with the reason.
const DEFAULTS: &[(&str, &str)] = &[
    // Promises: what was confirmed is on all in-sync replicas, once, and in the order of sending.
    ("acks", "all"),
    ("enable.idempotence", "true"),
    // A refused batch stops the producer; otherwise the messages behind it would be delivered before it.
    ("enable.gapless.guarantee", "true"),
    ("max.in.flight.requests.per.connection", "5"),
    // No message is cut out of the middle of the stream because it waited: the relay has the deadline.
    ("message.timeout.ms", "0"),
    // The Java client's partitioner: a key's messages stand together, whoever wrote them.
    ("partitioner", "murmur2_random"),
    // A mistyped topic is an error, not a new topic with the broker's default of partitions.
    ("allow.auto.create.topics", "false"),
    ("batch.num.messages", "10000"),
    // A missing topic is reported within a publish call's deadline; librdkafka would wait 30 s.
    ("topic.metadata.propagation.max.ms", "5000"),
    // After an outage: librdkafka would wait up to 10 s before it tries again.
    ("reconnect.backoff.max.ms", "1000"),
    // The source of `Publisher::stats`.
    ("statistics.interval.ms", "5000"),
    // Metrics are the relay's; nothing is pushed to the broker.
    ("enable.metrics.push", "false"),
    ("client.id", "outbox"),
];

/// Measured: 16 kB, the Java client's default, costs two thirds of the throughput and four times the broker's CPU.
const BATCH_BYTES: usize = 1_000_000;

/// Properties that have one allowed set of values, and what breaks otherwise.
const PROMISES: &[(&[&str], &[&str], &str)] = &[
    (
        &["acks", "request.required.acks"],
        &["all", "-1"],
        "a confirmed message could be lost with its leader",
    ),
    (&["enable.idempotence"], &["true"], "a retried message could be doubled or change places"),
    (
        &["enable.gapless.guarantee"],
        &["true"],
        "messages behind a refused one would be delivered before it",
    ),
    (
        &["max.in.flight", "max.in.flight.requests.per.connection"],
        &["1", "2", "3", "4", "5"],
        "idempotence holds for at most 5 requests in flight",
    ),
    (
        &["message.timeout.ms", "delivery.timeout.ms"],
        &["0"],
        "a message that expires leaves a gap in the order of its key; the relay's publish deadline is the limit",
    ),
    (
        &["retries", "message.send.max.retries"],
        &[],
        "a message given up by the client leaves a gap in the order of its key",
    ),
    (&["queuing.strategy"], &["fifo"], "messages of one key could change places"),
    (&["delivery.report.only.error"], &["false"], "confirmations would not arrive"),
    (
        &["transactional.id", "transaction.timeout.ms"],
        &[],
        "Kafka transactions are not supported: a message is confirmed by itself and settled in the database",
    ),
    (&["bootstrap.servers", "metadata.broker.list"], &[], "set it by bootstrap_servers"),
    (&["linger.ms", "queue.buffering.max.ms"], &[], "set it by linger"),
    (&["compression.type", "compression.codec"], &[], "set it by compression"),
    (&["queue.buffering.max.messages"], &[], "it is twice the window; set window"),
    (&["queue.buffering.max.kbytes"], &[], "it is twice the window's bytes; set window_bytes"),
    (&["message.max.bytes"], &[], "set it by max_message_bytes"),
];

/// The partitioners under which a key always goes to the partition that the Java client would choose.
const PARTITIONERS: &[&str] = &["murmur2_random", "murmur2"];

/// Settings of a [`KafkaPublisher`](crate::KafkaPublisher). Secrets are not in its `Debug`.
#[derive(Clone)]
pub struct KafkaConfig {
    bootstrap_servers: String,
    linger: Duration,
    compression: Compression,
    sasl: Option<Sasl>,
    tls: Option<Tls>,
    insecure: bool,
    delivery_deadline: Duration,
    window: usize,
    window_bytes: usize,
    max_message_bytes: usize,
    properties: BTreeMap<String, String>,
    other_partitioner: bool,
}

impl KafkaConfig {
    /// The [`linger`](Self::with_linger) that trades 5 ms of latency for a third of the broker's CPU at medium rates.
    pub const ECONOMY_LINGER: Duration = Duration::from_millis(5);

    /// The defaults, with these brokers: `host:port` of some, separated by commas.
    #[must_use]
    pub fn new(bootstrap_servers: impl Into<String>) -> Self {
        Self {
            bootstrap_servers: bootstrap_servers.into(),
            linger: Duration::ZERO,
            compression: Compression::None,
            sasl: None,
            tls: None,
            insecure: false,
            delivery_deadline: Duration::from_secs(60),
            window: 16_000,
            window_bytes: 64 << 20,
            max_message_bytes: 1_000_000,
            properties: BTreeMap::new(),
            other_partitioner: false,
        }
    }

    /// How long a message may wait for company, up to 60 s; 0 by default, since the relay's claims are batches already
    /// and waiting is pure latency. See [`ECONOMY_LINGER`](Self::ECONOMY_LINGER).
    #[must_use]
    pub fn with_linger(self, linger: Duration) -> Self {
        Self { linger, ..self }
    }

    /// Compression of batches; none by default. [`Compression::Lz4`] where the network is the limit.
    #[must_use]
    pub fn with_compression(self, compression: Compression) -> Self {
        Self { compression, ..self }
    }

    /// The login; none by default.
    #[must_use]
    pub fn with_sasl(self, sasl: Sasl) -> Self {
        Self { sasl: Some(sasl), ..self }
    }

    /// Encrypts the connections, and checks the brokers' certificates; not by default.
    #[must_use]
    pub fn with_tls(self, tls: Tls) -> Self {
        Self { tls: Some(tls), ..self }
    }

    /// Allows what a stranger on the network can make use of: a password or token that is sent without encryption, and
    /// properties that switch off the check of certificates. Refused by default. For trials.
    #[must_use]
    pub fn with_insecure_allowed(self) -> Self {
        Self { insecure: true, ..self }
    }

    /// A publish call returns after this time even if the broker has not answered; what is open then stays open. 60 s by
    /// default: a safety net, the relay's own deadline is shorter.
    #[must_use]
    pub fn with_delivery_deadline(self, deadline: Duration) -> Self {
        Self { delivery_deadline: deadline, ..self }
    }

    /// Messages that the relay may have open at once, 1 to 5,000,000; 16,000 by default, as in the relay's `Limits`. The
    /// producer's queue holds twice as many.
    ///
    /// Set it when you set the relay's window. If it is more than the relay's, nothing happens. If the relay's is more
    /// than twice as large, calls wait at the full queue, in order: slower, and what is not handed over at the relay's
    /// publish deadline counts as unavailable, so the pipeline pauses although the broker is well.
    #[must_use]
    pub fn with_window(self, messages: usize) -> Self {
        Self { window: messages, ..self }
    }

    /// Bytes of payload that the relay may have open at once, up to 1 TiB; 64 MiB by default, as in the relay's `Limits`.
    /// The producer's queue holds twice as much; [`with_window`](Self::with_window) says what happens when the two differ.
    #[must_use]
    pub fn with_window_bytes(self, bytes: usize) -> Self {
        Self { window_bytes: bytes, ..self }
    }

    /// The largest message in bytes, with key and headers, 1,000 to 1,000,000,000; 1,000,000 by default. A larger one is
    /// refused for good before it is sent. Batches are not larger either.
    ///
    /// Set it to the smallest `max.message.bytes` of your topics: what only the broker finds too large costs a new
    /// connection, and its topic is slow for a while.
    #[must_use]
    pub fn with_max_message_bytes(self, bytes: usize) -> Self {
        Self { max_message_bytes: bytes, ..self }
    }

    /// A property of librdkafka, which stands before the defaults; none by default. One that would break a promise is
    /// refused, as is one that has a setting of its own here.
    #[must_use]
    pub fn with_property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.properties.insert(name.into(), value.into());
        self
    }

    /// Allows a property `partitioner` other than the Java client's; refused by default. Keys then go to other partitions
    /// than those that Java producers choose, and changing it in operation breaks the order of every key once.
    #[must_use]
    pub fn with_other_partitioner_allowed(self) -> Self {
        Self { other_partitioner: true, ..self }
    }

    pub(crate) fn delivery_deadline(&self) -> Duration {
        self.delivery_deadline
    }

    /// What librdkafka is told.
    pub(crate) fn client(&self) -> Result<ClientConfig, PublishError> {
        self.check()?;
        let mut client = ClientConfig::new();
        for (name, value) in DEFAULTS {
            client.set(*name, *value);
        }
        client.set("bootstrap.servers", &self.bootstrap_servers);
        client.set("linger.ms", (self.linger.as_secs_f64() * 1_000.0).to_string());
        client.set("compression.type", self.compression.name());
        client.set("queue.buffering.max.messages", (2 * self.window).to_string());
        client
            .set("queue.buffering.max.kbytes", (2 * self.window_bytes).div_ceil(1024).to_string());
        client.set("message.max.bytes", self.max_message_bytes.to_string());
        // The broker's limit is for a batch: one that is larger than the topic allows is refused for no message's fault.
        client.set("batch.size", self.max_message_bytes.min(BATCH_BYTES).to_string());
        security::apply(self.sasl.as_ref(), self.tls.as_ref(), &mut client);
        for (name, value) in &self.properties {
            // Two names of one setting: the default's would win or lose by chance.
            if let Some((names, ..)) =
                PROMISES.iter().find(|(names, ..)| names.contains(&name.as_str()))
            {
                for other in *names {
                    client.remove(other);
                }
            }
            client.set(name, value);
        }
        if let Some((setting, reason)) =
            security::contradiction(self.sasl.as_ref(), self.tls.as_ref(), &client)
        {
            return refuse(setting, reason);
        }
        if !self.insecure
            && let Some((setting, reason)) = security::weakness(&client)
        {
            return refuse(setting, &format!("{reason}; with_insecure_allowed permits it"));
        }
        Ok(client)
    }

    fn check(&self) -> Result<(), PublishError> {
        if self.bootstrap_servers.trim().is_empty() {
            return refuse("bootstrap_servers", "it names no broker; give host:port");
        }
        if self.bootstrap_servers.contains('@') {
            return refuse("bootstrap_servers", "it is host:port without a login; set sasl");
        }
        if self.window == 0 || self.window > 5_000_000 {
            return refuse("window", "it must be 1 to 5,000,000 messages");
        }
        if self.window_bytes == 0 || self.window_bytes > 1 << 40 {
            return refuse("window_bytes", "it must be 1 byte to 1 TiB");
        }
        if !(1_000..=1_000_000_000).contains(&self.max_message_bytes) {
            return refuse("max_message_bytes", "it must be 1,000 to 1,000,000,000 bytes");
        }
        if self.linger > Duration::from_secs(60) {
            return refuse("linger", "it must be at most 60 s");
        }
        if !(Duration::from_millis(1)..=Timing::MAX).contains(&self.delivery_deadline) {
            return refuse("delivery_deadline", "it must be 1 ms to 1 day");
        }
        for (name, value) in &self.properties {
            if name == "partitioner"
                && !self.other_partitioner
                && !PARTITIONERS.contains(&value.as_str())
            {
                return refuse(
                    name,
                    "keys would go to other partitions than those that Java producers choose; \
                     with_other_partitioner_allowed permits it",
                );
            }
            for (names, allowed, reason) in PROMISES {
                if names.contains(&name.as_str()) && !allowed.contains(&value.as_str()) {
                    return refuse(name, reason);
                }
            }
        }
        Ok(())
    }
}

fn refuse<T>(setting: &str, reason: &str) -> Result<T, PublishError> {
    Err(PublishError::misconfigured(format!("kafka setting {setting} is refused: {reason}")))
}

impl fmt::Debug for KafkaConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What stands before an @ was meant for a login, and is refused.
        let servers = self.bootstrap_servers.split(',').map(|it| it.rsplit('@').next());
        f.debug_struct("KafkaConfig")
            .field("bootstrap_servers", &servers.collect::<Vec<_>>())
            .field("linger", &self.linger)
            .field("compression", &self.compression)
            .field("sasl", &self.sasl)
            .field("tls", &self.tls)
            .field("insecure", &self.insecure)
            .field("delivery_deadline", &self.delivery_deadline)
            .field("window", &self.window)
            .field("window_bytes", &self.window_bytes)
            .field("max_message_bytes", &self.max_message_bytes)
            // Names only: which of the values is a secret is librdkafka's business.
            .field("properties", &self.properties.keys())
            .field("other_partitioner", &self.other_partitioner)
            .finish()
    }
}

/// How batches are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// Not at all.
    None,
    /// gzip.
    Gzip,
    /// LZ4: cheap.
    Lz4,
    /// Snappy.
    Snappy,
    /// Zstandard: small, at twice the client's CPU.
    Zstd,
}

impl Compression {
    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Lz4 => "lz4",
            Self::Snappy => "snappy",
            Self::Zstd => "zstd",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SaslMechanism;

    fn config() -> KafkaConfig {
        KafkaConfig::new("127.0.0.1:1")
    }

    /// H128
    #[test]
    fn a_property_that_breaks_a_promise_is_refused_by_name_and_reason() {
        for (name, value) in [
            ("acks", "1"),
            ("request.required.acks", "0"),
            ("enable.idempotence", "false"),
            ("enable.gapless.guarantee", "false"),
            ("max.in.flight", "6"),
            ("max.in.flight.requests.per.connection", "1000000"),
            ("message.timeout.ms", "300000"),
            ("delivery.timeout.ms", "1"),
            ("retries", "3"),
            ("message.send.max.retries", "0"),
            ("queuing.strategy", "lifo"),
            ("delivery.report.only.error", "true"),
            ("transactional.id", "x"),
            ("partitioner", "consistent_random"),
            ("bootstrap.servers", "x:1"),
            ("queue.buffering.max.messages", "1"),
        ] {
            let error = config().with_property(name, value).client().unwrap_err().to_string();
            assert!(error.starts_with(&format!("kafka setting {name} is refused: ")), "{error}");
        }
    }

    /// H128
    #[test]
    fn a_property_that_keeps_the_promises_is_passed_on_in_place_of_the_default() {
        let config = config()
            .with_property("max.in.flight", "1")
            .with_property("batch.size", "5000")
            .with_property("partitioner", "consistent")
            .with_other_partitioner_allowed();
        let client = config.client().unwrap();
        assert_eq!(client.get("max.in.flight"), Some("1"));
        assert_eq!(client.get("max.in.flight.requests.per.connection"), None);
        assert_eq!(client.get("batch.size"), Some("5000"));
        assert_eq!(client.get("partitioner"), Some("consistent"));
        assert_eq!(client.get("acks"), Some("all"));
    }

    #[test]
    fn a_setting_out_of_range_is_refused_by_name() {
        for (setting, config) in [
            ("window", config().with_window(0)),
            ("window_bytes", config().with_window_bytes(0)),
            ("max_message_bytes", config().with_max_message_bytes(999)),
            ("linger", config().with_linger(Duration::from_secs(61))),
            ("delivery_deadline", config().with_delivery_deadline(Duration::ZERO)),
            ("delivery_deadline", config().with_delivery_deadline(Duration::MAX)),
        ] {
            let error = config.client().unwrap_err().to_string();
            assert!(error.starts_with(&format!("kafka setting {setting} is refused: ")), "{error}");
        }
    }

    #[test]
    fn the_queue_holds_two_windows() {
        let config = config().with_window(5).with_window_bytes(10 * 1024 + 1);
        let client = config.client().unwrap();
        assert_eq!(client.get("queue.buffering.max.messages"), Some("10"));
        assert_eq!(client.get("queue.buffering.max.kbytes"), Some("21"));
    }

    #[test]
    fn a_batch_is_not_larger_than_a_message_may_be() {
        let size = |bytes| {
            let client = config().with_max_message_bytes(bytes).client().unwrap();
            client.get("batch.size").unwrap().to_owned()
        };
        assert_eq!(size(5_000), "5000");
        assert_eq!(size(5_000_000), "1000000");
    }

    #[test]
    fn a_linger_below_a_millisecond_is_passed_on() {
        let client = config().with_linger(Duration::from_micros(250)).client().unwrap();
        assert_eq!(client.get("linger.ms"), Some("0.25"));
    }

    #[test]
    fn what_a_stranger_could_use_is_refused_unless_allowed() {
        let plain = || Sasl::new(SaslMechanism::Plain, "alice", "hush");
        let scram = || Sasl::new(SaslMechanism::ScramSha512, "alice", "hush");
        let tls = || config().with_tls(Tls::new());
        for (config, setting) in [
            (config().with_sasl(plain()), "sasl"),
            (
                config().with_sasl(plain()).with_property("security.protocol", "SASL_PLAINTEXT"),
                "sasl",
            ),
            (
                config()
                    .with_property("security.protocol", "sasl_plaintext")
                    .with_property("sasl.mechanisms", "OAUTHBEARER"),
                "sasl",
            ),
            (
                tls().with_property("enable.ssl.certificate.verification", "false"),
                "enable.ssl.certificate.verification",
            ),
            (
                tls().with_property("ssl.endpoint.identification.algorithm", "none"),
                "ssl.endpoint.identification.algorithm",
            ),
            (
                tls().with_property("enable.sasl.oauthbearer.unsecure.jwt", "true"),
                "enable.sasl.oauthbearer.unsecure.jwt",
            ),
        ] {
            let error = config.client().unwrap_err().to_string();
            assert!(error.starts_with(&format!("kafka setting {setting} is refused: ")), "{error}");
            assert!(error.contains("with_insecure_allowed") && !error.contains("hush"), "{error}");
            config.with_insecure_allowed().client().unwrap();
        }
        config().with_sasl(scram()).client().unwrap();
        tls().with_sasl(plain()).client().unwrap();
        tls().with_property("enable.ssl.certificate.verification", "True").client().unwrap();
    }

    #[test]
    fn a_protocol_without_what_was_set_is_refused() {
        let sasl = Sasl::new(SaslMechanism::ScramSha512, "alice", "hush");
        let tls = || config().with_tls(Tls::new());
        for (setting, config, protocol) in [
            ("tls", tls(), "plaintext"),
            ("tls", tls().with_sasl(sasl.clone()), "SASL_PLAINTEXT"),
            ("sasl", tls().with_sasl(sasl.clone()), "ssl"),
            ("sasl", config().with_sasl(sasl), "plaintext"),
        ] {
            let config = config.with_insecure_allowed();
            let error = config.with_property("security.protocol", protocol).client().unwrap_err();
            let start = format!("kafka setting {setting} is refused: ");
            assert!(error.to_string().starts_with(&start), "{error}");
        }
        // The login may stand in properties.
        tls().with_property("security.protocol", "SASL_SSL").client().unwrap();
    }

    #[test]
    fn a_login_among_the_servers_is_refused_and_not_repeated() {
        let config = KafkaConfig::new("b:1,alice:hush@c:2");
        let error = config.client().unwrap_err().to_string();
        assert!(error.contains("bootstrap_servers") && !error.contains("hush"), "{error}");
        let text = format!("{config:?}");
        assert!(text.contains(r#"Some("c:2")"#) && !text.contains("hush"), "{text}");
    }

    #[test]
    fn secrets_are_not_in_debug() {
        let config = config()
            .with_property("sasl.oauthbearer.client.secret", "hush-1")
            .with_sasl(Sasl::new(SaslMechanism::Plain, "alice", "hush-2"))
            .with_tls(Tls::new().with_certificate_pem("x", "hush-3").with_key_password("hush-4"));
        let text = format!("{config:?}");
        assert!(
            text.contains("alice") && text.contains("sasl.oauthbearer.client.secret"),
            "{text}"
        );
        assert!(!text.contains("hush"), "{text}");
    }
}
