//! Exchanges and queues: declared where the settings say so, else only looked at.

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, ExchangeKind};
use outbox_core::PublishError;

use crate::error;

/// An exchange to be declared: durable, and not deleted by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exchange {
    /// The name.
    pub name: String,
    /// How it routes.
    pub exchange_type: ExchangeType,
    /// Where messages go that no binding takes: the argument `alternate-exchange`. With one, nothing comes back as
    /// unroutable.
    pub alternate: Option<String>,
}

impl Exchange {
    /// An exchange of this type.
    #[must_use]
    pub fn new(name: impl Into<String>, exchange_type: ExchangeType) -> Self {
        Self { name: name.into(), exchange_type, alternate: None }
    }

    /// The same with an exchange for what no binding takes.
    #[must_use]
    pub fn with_alternate(mut self, exchange: impl Into<String>) -> Self {
        self.alternate = Some(exchange.into());
        self
    }
}

/// How an exchange routes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExchangeType {
    /// To the bindings whose key is the routing key.
    Direct,
    /// To all bindings.
    Fanout,
    /// To the bindings whose pattern fits the routing key.
    Topic,
    /// By the headers.
    Headers,
    /// One of a plugin, such as `x-consistent-hash`.
    Other(String),
}

/// A queue to be declared: durable, not exclusive, and not deleted by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Queue {
    /// The name.
    pub name: String,
    /// The argument `x-queue-type`.
    pub queue_type: String,
    /// Messages after which it is full. It then refuses new ones (`reject-publish`): RabbitMQ's own default is to confirm
    /// them and to throw the oldest away.
    pub max_length: Option<u32>,
    /// Exchanges that it is bound to, each with its routing key or pattern.
    pub bindings: Vec<(String, String)>,
}

impl Queue {
    /// A quorum queue: replicated, and the one to use.
    #[must_use]
    pub fn quorum(name: impl Into<String>) -> Self {
        Self::of_type(name, "quorum")
    }

    /// A classic queue: on one node, lost with it.
    #[must_use]
    pub fn classic(name: impl Into<String>) -> Self {
        Self::of_type(name, "classic")
    }

    fn of_type(name: impl Into<String>, queue_type: &str) -> Self {
        Self {
            name: name.into(),
            queue_type: queue_type.to_owned(),
            max_length: None,
            bindings: Vec::new(),
        }
    }

    /// The same, bound to `exchange` by `key`.
    #[must_use]
    pub fn bound_to(mut self, exchange: impl Into<String>, key: impl Into<String>) -> Self {
        self.bindings.push((exchange.into(), key.into()));
        self
    }

    /// The same, full after this many messages.
    #[must_use]
    pub fn with_max_length(mut self, messages: u32) -> Self {
        self.max_length = Some(messages);
        self
    }

    fn arguments(&self) -> FieldTable {
        let text = |text: &str| AMQPValue::LongString(text.into());
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), text(&self.queue_type));
        if let Some(messages) = self.max_length {
            arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(messages.into()));
            arguments.insert("x-overflow".into(), text("reject-publish"));
        }
        arguments
    }
}

/// Declares all of them; what is there already stays as it is.
pub(crate) async fn declare(
    channel: &Channel,
    exchanges: &[Exchange],
    queues: &[Queue],
) -> Result<(), PublishError> {
    for exchange in exchanges {
        let kind = match &exchange.exchange_type {
            ExchangeType::Direct => ExchangeKind::Direct,
            ExchangeType::Fanout => ExchangeKind::Fanout,
            ExchangeType::Topic => ExchangeKind::Topic,
            ExchangeType::Headers => ExchangeKind::Headers,
            ExchangeType::Other(name) => ExchangeKind::Custom(name.clone()),
        };
        let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
        let mut arguments = FieldTable::default();
        if let Some(alternate) = &exchange.alternate {
            let alternate = AMQPValue::LongString(alternate.as_str().into());
            arguments.insert("alternate-exchange".into(), alternate);
        }
        let name = short(&exchange.name)?;
        let declared = channel.exchange_declare(name, kind, options, arguments).await;
        declared.map_err(|error| error::connecting(&error))?;
    }
    for queue in queues {
        let options = QueueDeclareOptions { durable: true, ..Default::default() };
        let declared = channel.queue_declare(short(&queue.name)?, options, queue.arguments()).await;
        declared.map_err(|error| error::connecting(&error))?;
        for (exchange, key) in &queue.bindings {
            let bound = channel.queue_bind(
                short(&queue.name)?,
                short(exchange)?,
                short(key)?,
                QueueBindOptions::default(),
                FieldTable::default(),
            );
            bound.await.map_err(|error| error::connecting(&error))?;
        }
    }
    Ok(())
}

/// Looks whether `exchange` is there. The channel is closed by the broker when it is not.
pub(crate) async fn look_at_exchange(
    channel: &Channel,
    exchange: ShortString,
) -> lapin::Result<()> {
    let options = ExchangeDeclareOptions { passive: true, ..Default::default() };
    // A passive declaration does not look at the type.
    let kind = ExchangeKind::Direct;
    channel.exchange_declare(exchange, kind, options, FieldTable::default()).await
}

fn short(name: &str) -> Result<ShortString, PublishError> {
    ShortString::try_new(name).map_err(|_| {
        PublishError::misconfigured(format!(
            "rabbitmq settings exchanges and queues: a name has {} bytes, amqp allows 255",
            name.len()
        ))
    })
}
