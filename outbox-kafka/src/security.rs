//! The login and the encryption, and which of them would be none.

use std::fmt;

use rdkafka::ClientConfig;

/// A login by name and password. Its `Debug` has no password.
#[derive(Clone)]
pub struct Sasl {
    mechanism: SaslMechanism,
    username: String,
    password: String,
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
    /// It is sent: refused without [`Tls`].
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

/// Encryption of the connections. A broker's certificate is checked, and that it is for the name or address that is
/// connected to. The `Debug` has no key.
#[derive(Clone, Default)]
pub struct Tls {
    ca_pem: Option<String>,
    certificate_pem: Option<(String, String)>,
    key_password: Option<String>,
}

impl Tls {
    /// The system's authorities are trusted, and the client has no certificate.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Certificates, in PEM, of the authorities that are trusted; the system's by default.
    #[must_use]
    pub fn with_ca_pem(self, authorities: impl Into<String>) -> Self {
        Self { ca_pem: Some(authorities.into()), ..self }
    }

    /// The client's own certificate chain and its key, in PEM; none by default.
    #[must_use]
    pub fn with_certificate_pem(self, chain: impl Into<String>, key: impl Into<String>) -> Self {
        Self { certificate_pem: Some((chain.into(), key.into())), ..self }
    }

    /// The password of that key; none by default.
    #[must_use]
    pub fn with_key_password(self, password: impl Into<String>) -> Self {
        Self { key_password: Some(password.into()), ..self }
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

/// Tells librdkafka about them.
pub(crate) fn apply(sasl: Option<&Sasl>, tls: Option<&Tls>, client: &mut ClientConfig) {
    let protocol = match (sasl, tls) {
        (None, None) => "plaintext",
        (None, Some(_)) => "ssl",
        (Some(_), None) => "sasl_plaintext",
        (Some(_), Some(_)) => "sasl_ssl",
    };
    client.set("security.protocol", protocol);
    if let Some(sasl) = sasl {
        client.set("sasl.mechanism", sasl.mechanism.name());
        client.set("sasl.username", &sasl.username);
        client.set("sasl.password", &sasl.password);
    }
    let Some(tls) = tls else { return };
    if let Some(authorities) = &tls.ca_pem {
        client.set("ssl.ca.pem", authorities);
    }
    if let Some((chain, key)) = &tls.certificate_pem {
        client.set("ssl.certificate.pem", chain);
        client.set("ssl.key.pem", key);
    }
    if let Some(password) = &tls.key_password {
        client.set("ssl.key.password", password);
    }
}

/// The setting that a property `security.protocol` would leave without effect, and how.
pub(crate) fn contradiction(
    sasl: Option<&Sasl>,
    tls: Option<&Tls>,
    client: &ClientConfig,
) -> Option<(&'static str, &'static str)> {
    let protocol = client.get("security.protocol").unwrap_or_default().to_ascii_lowercase();
    if tls.is_some() && !protocol.ends_with("ssl") {
        return Some(("tls", "the property security.protocol has no encryption; leave it out"));
    }
    if sasl.is_some() && !protocol.starts_with("sasl_") {
        return Some(("sasl", "the property security.protocol has no login; leave it out"));
    }
    None
}

/// The setting that lets a stranger on the network read a secret or pose as a broker, and how.
pub(crate) fn weakness(client: &ClientConfig) -> Option<(&'static str, &'static str)> {
    let is = |name, values: &[&str]| {
        client
            .get(name)
            .is_some_and(|set| values.iter().any(|value| set.eq_ignore_ascii_case(value)))
    };
    let sends_secret = ["sasl.mechanism", "sasl.mechanisms"]
        .iter()
        .any(|name| is(name, &["PLAIN", "OAUTHBEARER"]));
    if sends_secret && is("security.protocol", &["sasl_plaintext"]) {
        return Some(("sasl", "the password or token would be sent without encryption; set tls"));
    }
    // librdkafka's spellings of a boolean.
    const NO: &[&str] = &["false", "f", "0"];
    const YES: &[&str] = &["true", "t", "1"];
    for (name, values, reason) in [
        ("enable.ssl.certificate.verification", NO, "anybody could pose as a broker"),
        (
            "ssl.endpoint.identification.algorithm",
            &["none"],
            "any holder of a certificate could pose as a broker",
        ),
        ("enable.sasl.oauthbearer.unsecure.jwt", YES, "its tokens are not signed"),
    ] {
        if is(name, values) {
            return Some((name, reason));
        }
    }
    None
}
