//! A Kafka broker of a test's own that wants certificates, logins and permissions.

use std::fs;
use std::path::Path;

use super::folders::{self, PrivateFolder};
use super::install::{self, Need};
use super::kafka::Kafka;
use super::kafka_wire;
use super::ports::ReservedPort;
use super::process::or_panic;
use super::tls;
use crate::Result;

/// A Kafka broker with an authorizer. Dropping it kills the broker and removes its data.
///
/// Who comes by [`bootstrap`](Self::bootstrap) or [`tls`](Self::tls) may do everything; who shows a certificate there may do
/// what [`allow_client_write`](Self::allow_client_write) says. [`USER`](Self::USER) comes by
/// [`sasl_tls`](Self::sasl_tls) or [`sasl_plain_text`](Self::sasl_plain_text), with PLAIN, SCRAM-SHA-256 or
/// SCRAM-SHA-512, and may write to all topics but those of [`deny_write`](Self::deny_write).
///
/// All methods panic when they fail: the test cannot go on.
#[derive(Debug)]
pub struct SecureKafka {
    kafka: Kafka,
    ports: [ReservedPort; 3],
    certificates: PrivateFolder,
    stranger: String,
}

impl SecureKafka {
    /// The one login.
    pub const USER: &str = "alice";
    /// Its password.
    pub const PASSWORD: &str = "alice-has-a-secret";

    /// Starts a new, empty broker and waits until it answers.
    #[track_caller]
    pub fn start() -> Self {
        or_panic(Self::try_start())
    }

    fn try_start() -> Result<Self> {
        {
            let _lock = folders::lock()?;
            install::install_for(&[Need::Kafka])?;
        }
        let certificates = PrivateFolder::new("kafka-certificates")?;
        let stranger = fs::read_to_string(tls::stranger(certificates.path())?)?;
        let keys = certificates.path().join("server.pem");
        fs::write(&keys, tls::server_pem()?)?;
        let ports = [ReservedPort::any()?, ReservedPort::any()?, ReservedPort::any()?];
        let numbers = [ports[0].number(), ports[1].number(), ports[2].number()];
        let kafka = Kafka::try_start(|node| {
            node.listeners =
                ["SSL", "SASL_SSL", "SASL_PLAINTEXT"].into_iter().zip(numbers).collect();
            node.scram = ["SCRAM-SHA-256", "SCRAM-SHA-512"]
                .map(|hash| format!("{hash}=[name={},password={}]", Self::USER, Self::PASSWORD))
                .into();
            node.settings = settings(&keys);
        })?;
        kafka_wire::change_acl(&kafka.bootstrap(), kafka_wire::Acl::ALLOW_WRITE, "*", Self::USER)?;
        Ok(Self { kafka, ports, certificates, stranger })
    }

    /// `host:port` without encryption and login.
    pub fn bootstrap(&self) -> String {
        self.kafka.bootstrap()
    }

    /// `host:port` with encryption and without a login.
    pub fn tls(&self) -> String {
        self.address(0)
    }

    /// `host:port` with encryption and a login.
    pub fn sasl_tls(&self) -> String {
        self.address(1)
    }

    /// `host:port` with a login and without encryption.
    pub fn sasl_plain_text(&self) -> String {
        self.address(2)
    }

    /// The certificate of the authority that signed the broker's, in PEM.
    pub fn ca_pem(&self) -> String {
        fs::read_to_string(tls::ca_certificate()).expect("it was made before the broker started")
    }

    /// The certificate of an authority that did not, in PEM.
    pub fn strangers_ca_pem(&self) -> &str {
        &self.stranger
    }

    /// Certificate and key of a client, in PEM, that the broker trusts.
    #[track_caller]
    pub fn client_identity(&self) -> (String, String) {
        or_panic(tls::client(self.certificates.path()))
    }

    /// Who shows the certificate of [`client_identity`](Self::client_identity) may write to the topic.
    #[track_caller]
    pub fn allow_client_write(&self, topic: &str) {
        let acl = kafka_wire::Acl::ALLOW_WRITE;
        or_panic(kafka_wire::change_acl(&self.bootstrap(), acl, topic, tls::CLIENT));
    }

    /// Creates a topic.
    #[track_caller]
    pub fn create_topic(&self, name: &str, partitions: u32) {
        self.kafka.create_topic(name, partitions);
    }

    /// [`USER`](Self::USER) may no longer write to the topic; it still sees it.
    #[track_caller]
    pub fn deny_write(&self, topic: &str) {
        let acl = kafka_wire::Acl::DENY_WRITE;
        or_panic(kafka_wire::change_acl(&self.bootstrap(), acl, topic, Self::USER));
    }

    /// Takes a [`deny_write`](Self::deny_write) back.
    #[track_caller]
    pub fn allow_write(&self, topic: &str) {
        let acl = kafka_wire::Acl::NO_LONGER_DENY_WRITE;
        or_panic(kafka_wire::change_acl(&self.bootstrap(), acl, topic, Self::USER));
    }

    fn address(&self, listener: usize) -> String {
        format!("127.0.0.1:{}", self.ports[listener].number())
    }
}

fn settings(keys: &Path) -> String {
    let login = |listener: &str, mechanism: &str, module: &str, users: &str| {
        let package = "org.apache.kafka.common.security";
        format!(
            "listener.name.{listener}.{mechanism}.sasl.jaas.config={package}.{module} required{users};\n"
        )
    };
    let plain_users = format!(" user_{}=\"{}\"", SecureKafka::USER, SecureKafka::PASSWORD);
    let logins: String = ["sasl_ssl", "sasl_plaintext"]
        .iter()
        .flat_map(|listener| {
            [
                login(listener, "plain", "plain.PlainLoginModule", &plain_users),
                login(listener, "scram-sha-256", "scram.ScramLoginModule", ""),
                login(listener, "scram-sha-512", "scram.ScramLoginModule", ""),
            ]
        })
        .collect();
    format!(
        "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512\n\
         {logins}\
         ssl.keystore.type=PEM\n\
         ssl.keystore.location={keys}\n\
         ssl.truststore.type=PEM\n\
         ssl.truststore.location={authority}\n\
         listener.name.ssl.ssl.client.auth=requested\n\
         authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n\
         super.users=User:ANONYMOUS\n\
         allow.everyone.if.no.acl.found=false\n",
        keys = keys.display(),
        authority = tls::ca_certificate().display(),
    )
}
