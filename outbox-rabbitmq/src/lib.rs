//! RabbitMQ as the outbox's publisher, on lapin.
//!
//! A message is persistent and `mandatory`, and is delivered once the broker has confirmed it. It carries the event's id
//! as `message_id` and its type as `type`, the payload as its body and nothing else, and in its headers `id`, `eventType`,
//! `aggregateId` and the event's own. Exchange and routing key come from the router's destination: see [`Routing`].
//!
//! [`RabbitMqConfig`] holds every setting with its unit and its default; [`RabbitMqPublisher`] says what its verdicts mean.
//! A consumer reads deliveries by [`received`].
//!
//! lapin logs through `tracing` by itself. It logs each returned message with its whole body at level `WARN`: where
//! payloads must not be in logs, filter the target `lapin::returned_messages`.

mod channel;
mod config;
mod confirms;
mod error;
mod publisher;
mod received;
mod session;
mod socket;
mod topology;
mod wire;

pub use config::{RabbitMqConfig, Routing, RoutingKey, Tls, Unroutable};
/// The client in the version whose deliveries [`received`] takes.
pub use lapin;
pub use publisher::RabbitMqPublisher;
pub use received::{received, received_with_key_header};
pub use topology::{Exchange, ExchangeType, Queue};
