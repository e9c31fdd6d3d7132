//! `kind = "rabbitmq"`.

use std::sync::Arc;

use outbox::Publisher;
use outbox::rabbitmq::{
    Exchange, ExchangeType, Queue, RabbitMqConfig, RabbitMqPublisher, Routing, RoutingKey, Tls,
    Unroutable,
};
use serde::Deserialize;

use super::{AdapterError, choices, settings};
use crate::config::{Secret, Settings, Span};

settings!(RabbitMq of RabbitMqConfig: url: Secret, routing: Option<RoutingTable>, tls: Option<Encryption>,
    exchanges: Option<Vec<ExchangeTable>>, queues: Option<Vec<QueueTable>>;
    hosts: Vec<String>,
    insecure: bool,
    key_header: String,
    unroutable: WithoutQueue,
    channels: u16,
    window: usize,
    window_bytes: usize,
    max_message_bytes: usize,
    connect_timeout: Span,
    heartbeat: Span,
    delivery_deadline: Span,
);
choices!(WithoutQueue of Unroutable: Refused, Permanent);
choices!(Key of RoutingKey: Destination, EventType, AggregateId);

/// What the router's destination names.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RoutingTable {
    to: To,
    exchange: Option<String>,
    key: Option<Key>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum To {
    ExchangePerDestination,
    OneExchange,
    Queue,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Encryption {
    ca_pem: Option<String>,
    certificate_pem: Option<String>,
    key_pem: Option<Secret>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExchangeTable {
    name: String,
    /// `direct`, `fanout`, `topic`, `headers`, or one of a plugin.
    r#type: String,
    alternate: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct QueueTable {
    name: String,
    r#type: Option<QueueType>,
    max_length: Option<u32>,
    #[serde(default)]
    bindings: Vec<Binding>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum QueueType {
    Quorum,
    Classic,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Binding {
    exchange: String,
    key: String,
}

impl RabbitMq {
    pub(crate) fn config(mut self) -> Result<RabbitMqConfig, AdapterError> {
        let mut config = RabbitMqConfig::new(self.url.reveal());
        if let Some(routing) = self.routing.take() {
            config = config.with_routing(routing.routing()?);
        }
        if let Some(Encryption { ca_pem, certificate_pem, key_pem }) = self.tls.take() {
            let mut tls = Tls::default();
            tls.ca_pem = ca_pem;
            tls.certificate_pem = certificate_pem;
            tls.key_pem = key_pem.map(|key| key.reveal().to_owned());
            config = config.with_tls(tls);
        }
        for exchange in self.exchanges.take().unwrap_or_default() {
            config = config.with_exchange(exchange.exchange());
        }
        for queue in self.queues.take().unwrap_or_default() {
            config = config.with_queue(queue.queue());
        }
        self.fill(&mut config);
        Ok(config)
    }
}

impl RoutingTable {
    fn routing(self) -> Result<Routing, AdapterError> {
        let key = self.key.map(RoutingKey::from);
        Ok(match (self.to, self.exchange) {
            (To::ExchangePerDestination, None) => {
                Routing::ExchangePerDestination { key: key.unwrap_or(RoutingKey::EventType) }
            }
            (To::OneExchange, Some(exchange)) => {
                Routing::OneExchange { exchange, key: key.unwrap_or(RoutingKey::Destination) }
            }
            (To::OneExchange, None) => return Err("routing: one_exchange needs exchange".into()),
            (To::Queue, None) if key.is_none() => Routing::Queue,
            (To::Queue, None) => return Err("routing: a queue has no key".into()),
            (_, Some(_)) => return Err("routing: exchange is for one_exchange only".into()),
        })
    }
}

impl ExchangeTable {
    fn exchange(self) -> Exchange {
        let exchange_type = match self.r#type.as_str() {
            "direct" => ExchangeType::Direct,
            "fanout" => ExchangeType::Fanout,
            "topic" => ExchangeType::Topic,
            "headers" => ExchangeType::Headers,
            _ => ExchangeType::Other(self.r#type),
        };
        let exchange = Exchange::new(self.name, exchange_type);
        match self.alternate {
            Some(alternate) => exchange.with_alternate(alternate),
            None => exchange,
        }
    }
}

impl QueueTable {
    fn queue(self) -> Queue {
        let mut queue = match self.r#type {
            Some(QueueType::Classic) => Queue::classic(self.name),
            Some(QueueType::Quorum) | None => Queue::quorum(self.name),
        };
        queue.max_length = self.max_length;
        self.bindings
            .into_iter()
            .fold(queue, |queue, Binding { exchange, key }| queue.bound_to(exchange, key))
    }
}

pub(super) async fn publisher(settings: Settings) -> Result<Arc<dyn Publisher>, AdapterError> {
    let config = settings.read::<RabbitMq>()?.config()?;
    Ok(Arc::new(RabbitMqPublisher::new(&config)?))
}
