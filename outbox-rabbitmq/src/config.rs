//! Every setting: its unit and its default.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use lapin::uri::{AMQPScheme, AMQPUri, SASLMechanism};
use outbox_core::{PublishError, Timing};

use crate::topology::{Exchange, Queue};

/// The default of [`RabbitMqConfig::key_header`].
pub(crate) const KEY_HEADER: &str = "aggregateId";

/// Settings of a [`RabbitMqPublisher`](crate::RabbitMqPublisher). Secrets are not in its `Debug`.
#[derive(Clone)]
#[non_exhaustive]
pub struct RabbitMqConfig {
    /// `amqp://user:password@host:port/vhost`, or `amqps://…` for TLS. The virtual host is percent-encoded: `/` is `%2f`.
    pub url: String,
    /// Further nodes of the same cluster: `host`, or `host:port`, with everything else as in `url`; none by default. When a node
    /// gives no connection, the next one is tried, each for [`connect_timeout`](Self::connect_timeout).
    pub hosts: Vec<String>,
    /// Whom to trust and who we are, for `amqps://`; the system's authorities and no certificate when absent.
    pub tls: Option<Tls>,
    /// Whether the password may be sent without encryption to another machine, over `amqp://`; refused by default. For trials,
    /// and for networks that nobody else can listen to.
    pub insecure: bool,
    /// What the router's destination names; an exchange by default.
    pub routing: Routing,
    /// The header that carries the aggregate id; `aggregateId` by default. An event with a header of that name and another
    /// value, or without an aggregate id, is refused for good: choose another name then.
    pub key_header: String,
    /// What a message means that no queue takes; [`Unroutable::Refused`] by default.
    pub unroutable: Unroutable,
    /// Exchanges to be declared on each new connection; none by default.
    pub exchanges: Vec<Exchange>,
    /// Queues to be declared on each new connection, with their bindings; none by default.
    pub queues: Vec<Queue>,
    /// Channels that share the messages by their key; 4 by default.
    pub channels: u16,
    /// Messages that a channel may have sent and not confirmed; 1,000 by default. More gains nothing: lapin looks through
    /// all of them at each confirm.
    pub window: usize,
    /// Bytes of payload that all channels together may have sent and not confirmed; 64 MiB by default.
    pub window_bytes: usize,
    /// The largest payload in bytes; 16 MiB by default, which is what RabbitMQ 4 takes (`max_message_size`). A larger one
    /// is refused for good before it is sent: the broker would close the channel.
    pub max_message_bytes: usize,
    /// Time for a new connection to one node until it can be used; 5 s by default.
    pub connect_timeout: Duration,
    /// A connection on which nothing came for twice this time is dead; 10 s by default, in whole seconds.
    pub heartbeat: Duration,
    /// A publish call returns after this time even if the broker has not answered; what is open then stays open. 60 s by
    /// default: a safety net, the relay's own deadline is shorter.
    pub delivery_deadline: Duration,
}

impl RabbitMqConfig {
    /// The defaults, with this broker.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            hosts: Vec::new(),
            tls: None,
            insecure: false,
            routing: Routing::default(),
            key_header: KEY_HEADER.to_owned(),
            unroutable: Unroutable::Refused,
            exchanges: Vec::new(),
            queues: Vec::new(),
            channels: 4,
            window: 1_000,
            window_bytes: 64 << 20,
            max_message_bytes: 16 << 20,
            connect_timeout: Duration::from_secs(5),
            heartbeat: Duration::from_secs(10),
            delivery_deadline: Duration::from_secs(60),
        }
    }

    /// The same with a further node: `host` or `host:port`.
    #[must_use]
    pub fn with_host(mut self, host: impl Into<String>) -> Self {
        self.hosts.push(host.into());
        self
    }

    /// The same with another routing.
    #[must_use]
    pub fn with_routing(mut self, routing: Routing) -> Self {
        self.routing = routing;
        self
    }

    /// The same with this TLS.
    #[must_use]
    pub fn with_tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// The same with a password that may be sent without encryption; see [`insecure`](Self::insecure).
    #[must_use]
    pub fn with_insecure_allowed(mut self) -> Self {
        self.insecure = true;
        self
    }

    /// The same with an exchange to be declared.
    #[must_use]
    pub fn with_exchange(mut self, exchange: Exchange) -> Self {
        self.exchanges.push(exchange);
        self
    }

    /// The same with a queue to be declared and bound.
    #[must_use]
    pub fn with_queue(mut self, queue: Queue) -> Self {
        self.queues.push(queue);
        self
    }

    /// Where to connect, one for each node, after all settings have been looked at.
    pub(crate) fn uris(&self) -> Result<Vec<AMQPUri>, PublishError> {
        let refuse = |setting: &str, reason: &str| {
            Err(PublishError::misconfigured(format!(
                "rabbitmq setting {setting} is refused: {reason}"
            )))
        };
        // The parser's own text may repeat a part of the URL, and so of a password.
        let Ok(mut uri) = self.url.parse::<AMQPUri>() else {
            return refuse("url", "it is no amqp://user:password@host:port/vhost");
        };
        if uri.authority.host.is_empty() {
            return refuse("url", "it names no host");
        }
        if self.tls.is_some() && uri.scheme != AMQPScheme::AMQPS {
            return refuse("tls", "the url is amqp://, which is not encrypted; write amqps://");
        }
        if let Some(tls) = &self.tls
            && tls.certificate_pem.is_some() != tls.key_pem.is_some()
        {
            return refuse("tls", "certificate_pem and key_pem are given together or not at all");
        }
        if let Routing::OneExchange { exchange, .. } = &self.routing
            && (exchange.is_empty() || exchange.len() > 255)
        {
            return refuse("routing", "the exchange's name must have 1 to 255 bytes");
        }
        if self.key_header.is_empty()
            || self.key_header.len() > 255
            || outbox_core::headers::RESERVED.contains(&self.key_header.as_str())
        {
            return refuse(
                "key_header",
                "it must have 1 to 255 bytes and be neither id nor eventType",
            );
        }
        if self.channels == 0 || self.channels > 1_000 {
            return refuse("channels", "it must be 1 to 1,000");
        }
        if self.window == 0 || self.window > 100_000 {
            return refuse("window", "it must be 1 to 100,000 messages");
        }
        if self.window_bytes == 0 || self.window_bytes > 1 << 40 {
            return refuse("window_bytes", "it must be 1 byte to 1 TiB");
        }
        if self.max_message_bytes == 0 || self.max_message_bytes > 512 << 20 {
            return refuse("max_message_bytes", "it must be 1 byte to 512 MiB");
        }
        if self.connect_timeout.is_zero() || self.connect_timeout > Duration::from_secs(60) {
            return refuse("connect_timeout", "it must be more than 0 and at most 60 s");
        }
        if !(Duration::from_millis(1)..=Timing::MAX).contains(&self.delivery_deadline) {
            return refuse("delivery_deadline", "it must be 1 ms to 1 day");
        }
        let Ok(heartbeat @ 1..=600) = u16::try_from(self.heartbeat.as_secs()) else {
            return refuse("heartbeat", "it must be 1 to 600 s");
        };
        uri.query.heartbeat = Some(heartbeat);
        let mut uris = vec![uri];
        for (index, host) in self.hosts.iter().enumerate() {
            let Some((host, port)) = self.host_and_port(host) else {
                let setting = format!("hosts[{index}]");
                return refuse(
                    &setting,
                    "it is neither host nor host:port; all else stands in url",
                );
            };
            let mut uri = uris[0].clone();
            (uri.authority.host, uri.authority.port) = (host, port);
            uris.push(uri);
        }
        if !self.insecure && uris.iter().any(sends_password_in_clear) {
            return refuse(
                "url",
                "the password would be sent to another machine without encryption; write amqps://, or \
                 with_insecure_allowed permits it",
            );
        }
        Ok(uris)
    }

    fn host_and_port(&self, host: &str) -> Option<(String, u16)> {
        // Whatever else a URL may hold is in the setting url.
        let plain = !host.is_empty() && !host.contains(['/', '@', '?', '#']);
        let scheme = self.url.split("://").next().filter(|_| plain)?;
        let uri = format!("{scheme}://{host}").parse::<AMQPUri>().ok()?;
        Some((uri.authority.host, uri.authority.port))
    }
}

fn sends_password_in_clear(uri: &AMQPUri) -> bool {
    let host = uri.authority.host.trim_matches(['[', ']']);
    let is_here = host == "localhost" || host.parse().is_ok_and(|host: IpAddr| host.is_loopback());
    let sends_none = matches!(uri.query.auth_mechanism, Some(SASLMechanism::External));
    uri.scheme == AMQPScheme::AMQP && !is_here && !sends_none
}

impl fmt::Debug for RabbitMqConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let uri = self.url.parse::<AMQPUri>().ok();
        let uri = uri.map(|uri| (uri.authority.host, uri.authority.port, uri.vhost));
        let hosts: Vec<_> = self.hosts.iter().map(|host| self.host_and_port(host)).collect();
        f.debug_struct("RabbitMqConfig")
            .field("host, port, vhost", &uri)
            .field("hosts", &hosts)
            .field("tls", &self.tls)
            .field("insecure", &self.insecure)
            .field("routing", &self.routing)
            .field("key_header", &self.key_header)
            .field("unroutable", &self.unroutable)
            .field("exchanges", &self.exchanges)
            .field("queues", &self.queues)
            .field("channels", &self.channels)
            .field("window", &self.window)
            .field("window_bytes", &self.window_bytes)
            .field("max_message_bytes", &self.max_message_bytes)
            .field("connect_timeout", &self.connect_timeout)
            .field("heartbeat", &self.heartbeat)
            .field("delivery_deadline", &self.delivery_deadline)
            .finish()
    }
}

/// What the router's destination names.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Routing {
    /// An exchange: with the default router one for each aggregate type, `outbox.event.<aggregate type>`.
    ExchangePerDestination {
        /// The routing key.
        key: RoutingKey,
    },
    /// All messages go to one exchange; with a topic exchange, let the router make the routing key
    /// (`{aggregate_type}.{event_type}`).
    OneExchange {
        /// The exchange's name.
        exchange: String,
        /// The routing key.
        key: RoutingKey,
    },
    /// A queue, through the default exchange.
    Queue,
}

impl Routing {
    /// All messages to `exchange`, with the router's destination as the routing key.
    #[must_use]
    pub fn one_exchange(exchange: impl Into<String>) -> Self {
        Self::OneExchange { exchange: exchange.into(), key: RoutingKey::Destination }
    }
}

impl Default for Routing {
    /// An exchange for each destination, with the event type as the routing key.
    fn default() -> Self {
        Self::ExchangePerDestination { key: RoutingKey::EventType }
    }
}

/// What the routing key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RoutingKey {
    /// The router's destination.
    Destination,
    /// The event's type.
    EventType,
    /// The aggregate id, for exchanges that hash it; empty for an event without one.
    AggregateId,
}

/// What a message means that no queue takes. The broker hands it back with the text `NO_ROUTE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unroutable {
    /// A queue or a binding is missing: the event waits until there is one, and holds its aggregate.
    Refused,
    /// Nobody wants the event: it is dead-lettered at once, with the broker's text.
    Permanent,
}

/// Encryption of the connection. Its `Debug` has no key.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct Tls {
    /// Certificates, in PEM, of the authorities that are trusted instead of the system's.
    pub ca_pem: Option<String>,
    /// The client's own certificate chain, in PEM.
    pub certificate_pem: Option<String>,
    /// The key of the client's certificate, in PEM.
    pub key_pem: Option<String>,
}

impl Tls {
    /// Trusts these authorities, given in PEM, instead of the system's.
    #[must_use]
    pub fn with_ca_pem(mut self, pem: impl Into<String>) -> Self {
        self.ca_pem = Some(pem.into());
        self
    }

    /// Shows the broker this certificate, given in PEM with its key.
    #[must_use]
    pub fn with_identity_pem(
        mut self,
        certificate: impl Into<String>,
        key: impl Into<String>,
    ) -> Self {
        self.certificate_pem = Some(certificate.into());
        self.key_pem = Some(key.into());
        self
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

    fn config() -> RabbitMqConfig {
        RabbitMqConfig::new("amqp://alice:hush-1@127.0.0.1:1/%2f")
    }

    #[test]
    fn a_setting_that_cannot_work_is_refused_by_name_and_reason() {
        type Change = fn(&mut RabbitMqConfig);
        let changes: [(&str, Change); 18] = [
            ("url", |config| config.url = "http://alice:hush-1@x".into()),
            ("url", |config| config.url = "amqp://alice:hush-1@".into()),
            ("hosts[0]", |config| config.hosts.push("b:x".into())),
            ("hosts[0]", |config| config.hosts.push("b/c".into())),
            ("hosts[1]", |config| {
                config.hosts.extend(["b".into(), "amqp://alice:hush-1@c".into()]);
            }),
            ("tls", |config| config.tls = Some(Tls::default())),
            ("tls", |config| {
                config.url = "amqps://x".into();
                config.tls = Some(Tls { key_pem: Some("hush-2".into()), ..Tls::default() });
            }),
            ("routing", |config| config.routing = Routing::one_exchange("")),
            ("key_header", |config| config.key_header = "eventType".into()),
            ("channels", |config| config.channels = 0),
            ("window", |config| config.window = 0),
            ("window_bytes", |config| config.window_bytes = 0),
            ("max_message_bytes", |config| config.max_message_bytes = 0),
            ("connect_timeout", |config| config.connect_timeout = Duration::ZERO),
            ("delivery_deadline", |config| config.delivery_deadline = Duration::ZERO),
            ("delivery_deadline", |config| config.delivery_deadline = Duration::MAX),
            ("heartbeat", |config| config.heartbeat = Duration::from_millis(900)),
            ("heartbeat", |config| config.heartbeat = Duration::from_secs(601)),
        ];
        for (setting, change) in changes {
            let mut config = config();
            change(&mut config);
            let error = config.uris().unwrap_err().to_string();
            let expected = format!("rabbitmq setting {setting} is refused: ");
            assert!(error.starts_with(&expected) && !error.contains("hush"), "{error}");
        }
    }

    #[test]
    fn the_url_names_all_but_the_further_hosts() {
        for (url, port) in [("amqp://u:p@h:7/a%2fb", 5_672), ("amqps://u:p@h:7/a%2fb", 5_671)] {
            let config = RabbitMqConfig::new(url).with_host("i").with_host("j:8");
            let config = config.with_insecure_allowed();
            let uris = config.uris().unwrap();
            let nodes: Vec<(&str, u16)> =
                uris.iter().map(|uri| (uri.authority.host.as_str(), uri.authority.port)).collect();
            assert_eq!(nodes, [("h", 7), ("i", port), ("j", 8)]);
            for uri in &uris {
                assert_eq!((uri.vhost.as_str(), uri.query.heartbeat), ("a/b", Some(10)));
                assert_eq!(uri.authority.userinfo.username, "u");
            }
        }
    }

    #[test]
    fn a_password_goes_to_another_machine_by_tls_only_unless_allowed() {
        let here = || RabbitMqConfig::new("amqp://alice:hush@localhost");
        for config in [
            RabbitMqConfig::new("amqp://alice:hush@broker"),
            RabbitMqConfig::new("amqp://10.0.0.1"),
            here().with_host("broker-2"),
        ] {
            let error = config.uris().unwrap_err().to_string();
            assert!(error.starts_with("rabbitmq setting url is refused: "), "{error}");
            assert!(error.contains("with_insecure_allowed") && !error.contains("hush"), "{error}");
            config.with_insecure_allowed().uris().unwrap();
        }
        for url in ["amqp://127.9.0.1", "amqp://[::1]:5672", "amqps://broker"] {
            RabbitMqConfig::new(url).uris().unwrap();
        }
        here().with_host("127.0.0.1:2").uris().unwrap();
        RabbitMqConfig::new("amqp://broker?auth_mechanism=external").uris().unwrap();
    }

    #[test]
    fn secrets_are_not_in_debug() {
        let mut config = config();
        config.tls = Some(Tls::default().with_identity_pem("hush-2", "hush-3"));
        config.hosts.extend(["b".into(), "amqp://alice:hush-4@c".into()]);
        let text = format!("{config:?}");
        assert!(text.contains("127.0.0.1") && !text.contains("hush"), "{text}");
        assert!(text.contains(r#"[Some(("b", 5672)), None]"#), "{text}");
    }
}
