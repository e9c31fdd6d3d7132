//! On a broker with certificates, logins and permissions.

#![allow(clippy::unwrap_used)] // A test.

mod common;

use std::io;
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use common::{LIMIT, class, failure, numbered, publish, random, stored};
use outbox_core::{Batch, FailureClass, Publisher, Verdict};
use outbox_kafka::{KafkaConfig, KafkaPublisher, Sasl, SaslMechanism, Tls};
use xtask::services::SecureKafka;

/// The one broker of these tests.
static BROKER: LazyLock<SecureKafka> = LazyLock::new(SecureKafka::start);

const MECHANISMS: [SaslMechanism; 3] =
    [SaslMechanism::Plain, SaslMechanism::ScramSha256, SaslMechanism::ScramSha512];

const REFUSED: Option<FailureClass> = Some(FailureClass::Refused);

fn sasl(mechanism: SaslMechanism) -> Sasl {
    Sasl::new(mechanism, SecureKafka::USER, SecureKafka::PASSWORD)
}

fn tls() -> Tls {
    Tls::new().with_ca_pem(BROKER.ca_pem())
}

fn topic(prefix: &str) -> String {
    let topic = random(prefix);
    BROKER.create_topic(&topic, 1);
    topic
}

async fn delivers(config: &KafkaConfig, what: &str) {
    let topic = topic("secure");
    let publisher = KafkaPublisher::new(config).unwrap();
    publisher.check().await.unwrap_or_else(|error| panic!("{what}: {error}"));
    let verdicts = publish(&publisher, numbered(&topic, "a", 10)).await;
    assert_eq!(verdicts, vec![Some(Verdict::Confirmed); 10], "{what}");
    assert_eq!(stored(&BROKER.bootstrap(), &topic).await.len(), 10, "{what}");
}

#[tokio::test]
async fn messages_are_delivered_by_tls_and_by_each_login() {
    delivers(&KafkaConfig::new(BROKER.tls()).with_tls(tls()), "tls").await;
    for mechanism in MECHANISMS {
        let config = KafkaConfig::new(BROKER.sasl_tls()).with_tls(tls()).with_sasl(sasl(mechanism));
        delivers(&config, &format!("{mechanism:?} with tls")).await;
        // Without encryption: SCRAM keeps the password to itself, PLAIN must be allowed.
        let config = KafkaConfig::new(BROKER.sasl_plain_text()).with_sasl(sasl(mechanism));
        let config = match mechanism {
            SaslMechanism::Plain => config.with_insecure_allowed(),
            _ => config,
        };
        delivers(&config, &format!("{mechanism:?} without tls")).await;
    }
}

/// A login that fails is an outage: no message gets a verdict for it. The check and the log say why, and not with what.
#[tokio::test]
async fn a_wrong_password_is_named_by_its_setting() {
    let lines = Log::capture();
    let configs = MECHANISMS.map(|mechanism| {
        let wrong = Sasl::new(mechanism, SecureKafka::USER, "guessed-wrong");
        KafkaConfig::new(BROKER.sasl_tls()).with_tls(tls()).with_sasl(wrong)
    });
    for error in fail(configs).await {
        assert!(error.contains("see the setting sasl"), "{error}");
        assert!(error.contains("uthentication fail"), "{error}");
        assert!(!error.contains("guessed-wrong"), "{error}");
    }
    let log = lines.text();
    assert!(log.contains("ERROR librdkafka") && log.contains("uthentication fail"), "{log}");
    assert!(!log.contains("guessed-wrong"), "{log}");
}

#[tokio::test]
async fn a_broker_whose_certificate_is_not_trusted_is_named_by_its_setting() {
    let stranger = || Tls::new().with_ca_pem(BROKER.strangers_ca_pem());
    let config = KafkaConfig::new(BROKER.tls()).with_tls(stranger());
    let [error] = fail([config.clone()]).await;
    assert!(error.contains("see the setting tls"), "{error}");
    assert!(error.contains("certificate verify failed"), "{error}");
    let allowed = config.with_property("enable.ssl.certificate.verification", "false");
    KafkaPublisher::new(&allowed).unwrap_err();
    delivers(&allowed.with_insecure_allowed(), "without the check").await;
}

#[tokio::test]
async fn a_certificate_that_is_none_is_refused_at_the_start() {
    let config = KafkaConfig::new(BROKER.tls()).with_tls(Tls::new().with_ca_pem("no certificate"));
    let error = KafkaPublisher::new(&config).unwrap_err().to_string();
    assert!(error.contains("ssl.ca.pem") && !error.contains("no certificate"), "{error}");
}

/// Encryption is expected on one side only.
#[tokio::test]
async fn a_listener_that_speaks_otherwise_is_named_by_the_settings() {
    let configs = [
        KafkaConfig::new(BROKER.bootstrap()).with_tls(tls()),
        KafkaConfig::new(BROKER.tls()),
        KafkaConfig::new(BROKER.sasl_tls()).with_tls(tls()),
    ];
    for error in fail(configs).await {
        assert!(error.contains("bootstrap_servers, tls and sasl"), "{error}");
    }
}

/// The errors of the checks, which run side by side.
async fn fail<const N: usize>(configs: [KafkaConfig; N]) -> [String; N] {
    let checks = configs.map(|config| tokio::spawn(fails(config)));
    let mut errors = Vec::new();
    for check in checks {
        errors.push(check.await.unwrap());
    }
    errors.try_into().unwrap()
}

/// The check's error; a message meanwhile stays open.
async fn fails(config: KafkaConfig) -> String {
    let publisher = KafkaPublisher::new(&config).unwrap();
    let batch = Batch::new(numbered("t", "a", 1));
    let (error, ()) = tokio::join!(publisher.check(), async {
        let call = publisher.publish(batch.clone());
        assert!(tokio::time::timeout(Duration::from_secs(1), call).await.is_err());
    });
    assert_eq!(batch.open(), 1);
    error.unwrap_err().to_string()
}

/// Two topics under load, and one of them loses its right to be written: the other one flows, and the denied one flows again
/// when it has the right. B171, H045
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_denied_stops_no_other_topic() {
    let (good, denied) = (topic("good"), topic("denied"));
    let config = KafkaConfig::new(BROKER.sasl_tls())
        .with_tls(tls())
        .with_sasl(sasl(SaslMechanism::ScramSha512));
    let publisher = KafkaPublisher::new(&config).unwrap();
    let (mut sender, mut refused) = (Load::new(&publisher, &good, &denied), 0);
    sender.round().await;
    assert_eq!((sender.good.next, sender.denied.next), (100, 100), "both flow");

    BROKER.deny_write(&denied);
    let started = Instant::now();
    while refused < 50 {
        assert!(started.elapsed() < LIMIT, "the topic is not refused");
        refused += usize::from(sender.round().await == REFUSED);
    }
    // It broke the producer once. From now on the other topic is not held up: every message of every round is taken.
    let before = sender.good.next;
    let started = Instant::now();
    for _ in 0..200 {
        assert_eq!(sender.round().await, REFUSED);
    }
    assert_eq!(sender.good.next, before + 200 * 100, "not one message had to be sent again");
    assert!(started.elapsed() < LIMIT / 2, "at speed: {:?}", started.elapsed());
    let text = sender.last.take().unwrap();
    assert!(text.contains(&denied) && text.contains("grant this user Write"), "{text}");

    BROKER.allow_write(&denied);
    let flowing = sender.denied.next + 200;
    let deadline = Instant::now() + 2 * LIMIT;
    while sender.denied.next < flowing {
        assert!(Instant::now() < deadline, "the topic does not flow again");
        sender.round().await;
    }
    for flow in [&sender.good, &sender.denied] {
        let mut seen = std::collections::HashSet::new();
        let log = stored(&BROKER.bootstrap(), &flow.topic).await;
        let first: Vec<&str> =
            log.iter().map(common::Stored::text).filter(|text| seen.insert(*text)).collect();
        let expected: Vec<String> = (0..flow.next).map(|at| at.to_string()).collect();
        assert_eq!(first[..flow.next], expected, "first deliveries are in order");
    }
}

/// Sends to two topics in one call, as the relay does: what is not confirmed comes again, in order.
struct Load<'a> {
    publisher: &'a KafkaPublisher,
    good: Flow,
    denied: Flow,
    /// Why the denied topic was last refused.
    last: Option<String>,
}

/// One aggregate's messages to one topic.
struct Flow {
    topic: String,
    next: usize,
}

impl<'a> Load<'a> {
    fn new(publisher: &'a KafkaPublisher, good: &str, denied: &str) -> Self {
        let flow = |topic: &str| Flow { topic: topic.to_owned(), next: 0 };
        Self { publisher, good: flow(good), denied: flow(denied), last: None }
    }

    /// Sends the next hundred of each; returns the verdict on the first one for the denied topic.
    async fn round(&mut self) -> Option<FailureClass> {
        let mut messages = numbered_from(&self.denied, "denied");
        messages.extend(numbered_from(&self.good, "good"));
        let verdicts = publish(self.publisher, messages).await;
        let (denied, good) = verdicts.split_at(100);
        for (flow, verdicts) in [(&mut self.denied, denied), (&mut self.good, good)] {
            let confirmed = |verdict: &&Option<Verdict>| **verdict == Some(Verdict::Confirmed);
            let prefix = verdicts.iter().take_while(confirmed).count();
            assert_eq!(verdicts.iter().filter(confirmed).count(), prefix, "a prefix: {verdicts:?}");
            flow.next += prefix;
        }
        let first = class(&denied[0]);
        if first == REFUSED {
            self.last = Some(failure(&denied[0]).reason.to_string());
        }
        first
    }
}

fn numbered_from(flow: &Flow, key: &str) -> Vec<outbox_core::Message> {
    let message = |at: usize| {
        let payload = at.to_string();
        common::Row {
            aggregate_id: Some(key),
            payload: Some(payload.as_bytes()),
            ..common::Row::default()
        }
        .to(&flow.topic)
    };
    (flow.next..flow.next + 100).map(message).collect()
}

/// What all clients of this process log.
#[derive(Clone, Copy)]
struct Log;

static LINES: Mutex<Vec<u8>> = Mutex::new(Vec::new());

impl Log {
    fn capture() -> Self {
        let log = tracing_subscriber::fmt().with_writer(|| Self).with_ansi(false).finish();
        tracing::subscriber::set_global_default(log).expect("one test captures");
        Self
    }

    fn text(self) -> String {
        String::from_utf8(LINES.lock().unwrap().clone()).unwrap()
    }
}

impl io::Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        LINES.lock().unwrap().write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
