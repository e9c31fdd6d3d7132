//! `kind = "kafka"`.

use std::collections::BTreeMap;
use std::sync::Arc;

use outbox::Publisher;
use outbox::kafka::{Compression, KafkaConfig, KafkaPublisher, Sasl, SaslMechanism, Tls};
use serde::Deserialize;

use super::{AdapterError, choices};
use crate::config::{Secret, Settings, Span};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Kafka {
    bootstrap_servers: String,
    linger: Option<Span>,
    compression: Option<Codec>,
    sasl: Option<Login>,
    tls: Option<Encryption>,
    #[serde(default)]
    insecure: bool,
    delivery_deadline: Option<Span>,
    window: Option<usize>,
    window_bytes: Option<usize>,
    max_message_bytes: Option<usize>,
    #[serde(default)]
    other_partitioner: bool,
    /// Some hold a secret.
    #[serde(default)]
    properties: BTreeMap<String, Secret>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Login {
    mechanism: Mechanism,
    username: String,
    password: Secret,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Encryption {
    ca_pem: Option<String>,
    certificate_pem: Option<String>,
    key_pem: Option<Secret>,
    key_password: Option<Secret>,
}

choices!(Codec of Compression: None, Gzip, Lz4, Snappy, Zstd);
choices!(Mechanism of SaslMechanism: Plain, ScramSha256, ScramSha512);

impl Kafka {
    pub(crate) fn config(self) -> Result<KafkaConfig, AdapterError> {
        let mut config = KafkaConfig::new(self.bootstrap_servers);
        if let Some(linger) = self.linger {
            config = config.with_linger(linger.into());
        }
        if let Some(codec) = self.compression {
            config = config.with_compression(codec.into());
        }
        if let Some(Login { mechanism, username, password }) = self.sasl {
            config = config.with_sasl(Sasl::new(mechanism.into(), username, password.reveal()));
        }
        if let Some(encryption) = self.tls {
            config = config.with_tls(encryption.tls()?);
        }
        if self.insecure {
            config = config.with_insecure_allowed();
        }
        if let Some(deadline) = self.delivery_deadline {
            config = config.with_delivery_deadline(deadline.into());
        }
        if let Some(messages) = self.window {
            config = config.with_window(messages);
        }
        if let Some(bytes) = self.window_bytes {
            config = config.with_window_bytes(bytes);
        }
        if let Some(bytes) = self.max_message_bytes {
            config = config.with_max_message_bytes(bytes);
        }
        if self.other_partitioner {
            config = config.with_other_partitioner_allowed();
        }
        Ok(self
            .properties
            .into_iter()
            .fold(config, |config, (name, value)| config.with_property(name, value.reveal())))
    }
}

impl Encryption {
    fn tls(self) -> Result<Tls, AdapterError> {
        let mut tls = Tls::new();
        if let Some(authorities) = self.ca_pem {
            tls = tls.with_ca_pem(authorities);
        }
        tls = match (self.certificate_pem, self.key_pem) {
            (Some(chain), Some(key)) => tls.with_certificate_pem(chain, key.reveal()),
            (None, None) => tls,
            _ => return Err("tls: give both of certificate_pem and key_pem, or none".into()),
        };
        Ok(match self.key_password {
            Some(password) => tls.with_key_password(password.reveal()),
            None => tls,
        })
    }
}

pub(super) async fn publisher(settings: Settings) -> Result<Arc<dyn Publisher>, AdapterError> {
    let config = settings.read::<Kafka>()?.config()?;
    Ok(Arc::new(KafkaPublisher::new(&config)?))
}
