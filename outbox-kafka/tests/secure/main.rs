//! On a broker with certificates, logins and permissions.

#![allow(clippy::unwrap_used)] // A test.

#[path = "../common/mod.rs"]
mod common;
mod denied;

use std::io;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use common::{class, numbered, publish, random, stored};
use outbox_core::{Batch, FailureClass, Publisher, Verdict};
use outbox_kafka::{KafkaConfig, KafkaPublisher, Sasl, SaslMechanism, Tls};
use xtask::proxy::Proxy;
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

/// The certificate is for localhost and 127.0.0.1, and the broker is called otherwise.
#[tokio::test]
async fn a_certificate_for_another_name_is_named_by_its_setting() {
    let proxy = Proxy::start_at("127.0.0.2");
    proxy.lead_to(BROKER.tls());
    let [error] = fail([KafkaConfig::new(proxy.address()).with_tls(tls())]).await;
    assert!(error.contains("see the setting tls, and for which names"), "{error}");
    assert!(error.contains("certificate verify failed"), "{error}");
    assert!(error.contains(&proxy.address()), "{error}");
}

/// Who shows a certificate has the rights of its subject, and no others.
#[tokio::test]
async fn the_broker_knows_the_client_by_its_certificate() {
    let (mine, theirs) = (topic("mine"), topic("theirs"));
    let (certificate, key) = BROKER.client_identity();
    BROKER.allow_client_write(&mine);
    let tls = tls().with_certificate_pem(certificate, key);
    let publisher = KafkaPublisher::new(&KafkaConfig::new(BROKER.tls()).with_tls(tls)).unwrap();
    let verdicts = publish(&publisher, numbered(&mine, "a", 10)).await;
    assert_eq!(verdicts, vec![Some(Verdict::Confirmed); 10]);
    let verdicts = publish(&publisher, numbered(&theirs, "a", 1)).await;
    assert_eq!(class(&verdicts[0]), REFUSED, "{verdicts:?}");
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
