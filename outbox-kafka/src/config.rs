//! Every setting: its unit, its default, and what librdkafka is told.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use outbox_core::PublishError;
use rdkafka::ClientConfig;

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
    // Measured: 16 kB, the Java client's default, costs two thirds of the throughput and four times the broker's CPU.
    ("batch.size", "1000000"),
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
#[non_exhaustive]
pub struct KafkaConfig {
    /// `host:port` of some brokers, separated by commas.
    pub bootstrap_servers: String,
    /// How long a message may wait for company. 0 by default: the relay's claims are batches already, so waiting is pure
    /// latency. [`KafkaConfig::ECONOMY_LINGER`] saves a third of the broker's CPU at medium rates.
    pub linger: Duration,
    /// Compression of batches; none by default. `Lz4` where the network is the limit.
    pub compression: Compression,
    /// The login; none by default.
    pub sasl: Option<Sasl>,
    /// Encryption; none by default.
    pub tls: Option<Tls>,
    /// A publish call returns after this time even if the broker has not answered; what is open then stays open. 60 s by
    /// default: a safety net, the relay's own deadline is shorter.
    pub delivery_deadline: Duration,
    /// Messages that the relay may have open at once; 16,000 by default. The producer's queue holds twice as many.
    pub window: usize,
    /// Bytes of payload that the relay may have open at once; 64 MiB by default. The producer's queue holds twice as much.
    pub window_bytes: usize,
    /// The largest message in bytes, with key and headers; 1,000,000 by default. A larger one is refused for good before it
    /// is sent. Set it to the smallest `max.message.bytes` of your topics: a message that only the broker finds too
    /// large costs a new connection.
    pub max_message_bytes: usize,
    /// Properties of librdkafka that stand before the defaults. Those that would break a promise are refused.
    pub properties: BTreeMap<String, String>,
    /// Allows a property `partitioner` other than the Java client's. Keys then go to other partitions than those that
    /// Java producers choose, and changing it in operation breaks the order of every key once.
    pub allow_other_partitioner: bool,
}

impl KafkaConfig {
    /// The [`linger`](Self::linger) that trades 5 ms of latency for the broker's CPU.
    pub const ECONOMY_LINGER: Duration = Duration::from_millis(5);

    /// The defaults, with these brokers.
    #[must_use]
    pub fn new(bootstrap_servers: impl Into<String>) -> Self {
        Self {
            bootstrap_servers: bootstrap_servers.into(),
            linger: Duration::ZERO,
            compression: Compression::None,
            sasl: None,
            tls: None,
            delivery_deadline: Duration::from_secs(60),
            window: 16_000,
            window_bytes: 64 << 20,
            max_message_bytes: 1_000_000,
            properties: BTreeMap::new(),
            allow_other_partitioner: false,
        }
    }

    /// The same with a property of librdkafka.
    #[must_use]
    pub fn with_property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.properties.insert(name.into(), value.into());
        self
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
        client.set(
            "security.protocol",
            match (&self.sasl, &self.tls) {
                (None, None) => "plaintext",
                (None, Some(_)) => "ssl",
                (Some(_), None) => "sasl_plaintext",
                (Some(_), Some(_)) => "sasl_ssl",
            },
        );
        if let Some(sasl) = &self.sasl {
            client.set("sasl.mechanism", sasl.mechanism.name());
            client.set("sasl.username", &sasl.username);
            client.set("sasl.password", &sasl.password);
        }
        if let Some(tls) = &self.tls {
            tls.apply(&mut client);
        }
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
        Ok(client)
    }

    fn check(&self) -> Result<(), PublishError> {
        let refuse = |setting: &str, reason: &str| {
            Err(PublishError::new(format!("kafka setting {setting} is refused: {reason}")))
        };
        if self.bootstrap_servers.trim().is_empty() {
            return refuse("bootstrap_servers", "it names no broker; give host:port");
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
        for (name, value) in &self.properties {
            if name == "partitioner"
                && !self.allow_other_partitioner
                && !PARTITIONERS.contains(&value.as_str())
            {
                return refuse(
                    name,
                    "keys would go to other partitions than those that Java producers choose; \
                     allow_other_partitioner permits it",
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

impl fmt::Debug for KafkaConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaConfig")
            .field("bootstrap_servers", &self.bootstrap_servers)
            .field("linger", &self.linger)
            .field("compression", &self.compression)
            .field("sasl", &self.sasl)
            .field("tls", &self.tls)
            .field("delivery_deadline", &self.delivery_deadline)
            .field("window", &self.window)
            .field("window_bytes", &self.window_bytes)
            .field("max_message_bytes", &self.max_message_bytes)
            // Names only: which of the values is a secret is librdkafka's business.
            .field("properties", &self.properties.keys())
            .field("allow_other_partitioner", &self.allow_other_partitioner)
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

/// A login by name and password. Its `Debug` has no password.
#[derive(Clone)]
#[non_exhaustive]
pub struct Sasl {
    /// How the password is proved.
    pub mechanism: SaslMechanism,
    /// The user.
    pub username: String,
    /// The password.
    pub password: String,
}

impl Sasl {
    /// A login.
    pub fn new(
        mechanism: SaslMechanism,
        username: impl Into<String>,
        password: impl Into<String>,
    ) -> Self {
        Self { mechanism, username: username.into(), password: password.into() }
    }
}

impl fmt::Debug for Sasl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sasl")
            .field("mechanism", &self.mechanism)
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

/// How a password is proved to the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SaslMechanism {
    /// It is sent: use it with [`Tls`] only.
    Plain,
    /// SCRAM-SHA-256.
    ScramSha256,
    /// SCRAM-SHA-512.
    ScramSha512,
}

impl SaslMechanism {
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

/// Encryption of the connections. Its `Debug` has no key.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct Tls {
    /// Certificates, in PEM, of the authorities that are trusted; the system's when absent.
    pub ca_pem: Option<String>,
    /// The client's own certificate chain, in PEM.
    pub certificate_pem: Option<String>,
    /// The key of the client's certificate, in PEM.
    pub key_pem: Option<String>,
    /// The password of that key.
    pub key_password: Option<String>,
}

impl Tls {
    fn apply(&self, client: &mut ClientConfig) {
        let values = [
            ("ssl.ca.pem", &self.ca_pem),
            ("ssl.certificate.pem", &self.certificate_pem),
            ("ssl.key.pem", &self.key_pem),
            ("ssl.key.password", &self.key_password),
        ];
        for (name, value) in values {
            if let Some(value) = value {
                client.set(name, value);
            }
        }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("ca", &self.ca_pem.is_some())
            .field("certificate", &self.certificate_pem.is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut config = config()
            .with_property("max.in.flight", "1")
            .with_property("batch.size", "5000")
            .with_property("partitioner", "consistent");
        config.allow_other_partitioner = true;
        let client = config.client().unwrap();
        assert_eq!(client.get("max.in.flight"), Some("1"));
        assert_eq!(client.get("max.in.flight.requests.per.connection"), None);
        assert_eq!(client.get("batch.size"), Some("5000"));
        assert_eq!(client.get("partitioner"), Some("consistent"));
        assert_eq!(client.get("acks"), Some("all"));
    }

    #[test]
    fn the_queue_holds_two_windows() {
        let mut config = config();
        (config.window, config.window_bytes) = (5, 10 * 1024 + 1);
        let client = config.client().unwrap();
        assert_eq!(client.get("queue.buffering.max.messages"), Some("10"));
        assert_eq!(client.get("queue.buffering.max.kbytes"), Some("21"));
    }

    #[test]
    fn secrets_are_not_in_debug() {
        let mut config = config().with_property("sasl.oauthbearer.client.secret", "hush-1");
        config.sasl = Some(Sasl::new(SaslMechanism::Plain, "alice", "hush-2"));
        config.tls = Some(Tls {
            key_pem: Some("hush-3".into()),
            key_password: Some("hush-4".into()),
            ..Tls::default()
        });
        let text = format!("{config:?}");
        assert!(
            text.contains("alice") && text.contains("sasl.oauthbearer.client.secret"),
            "{text}"
        );
        assert!(!text.contains("hush"), "{text}");
    }
}
