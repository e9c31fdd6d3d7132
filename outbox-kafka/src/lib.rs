//! Kafka as the outbox's publisher, on librdkafka.
//!
//! A message on the wire is what Debezium's `EventRouter` writes: topic from the router, key = aggregate id, value = the
//! payload and nothing else, headers `id`, `eventType`, then the event's own; the partition is the one the Java client
//! would choose.
//!
//! [`KafkaConfig`] holds every setting with its unit, its default and what may not be changed; [`KafkaPublisher`] says
//! what its verdicts mean. A consumer reads records by [`received`].

mod call;
mod config;
mod context;
mod error;
mod live;
mod order;
mod producers;
mod publisher;
mod received;
mod refusals;
mod security;
mod slots;
mod wire;

pub use config::{Compression, KafkaConfig};
pub use publisher::KafkaPublisher;
/// The client in the version whose messages [`received`] takes.
pub use rdkafka;
pub use received::received;
pub use security::{Sasl, SaslMechanism, Tls};
