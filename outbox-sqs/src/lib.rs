//! Amazon SQS as the outbox's publisher: standard and FIFO queues, by the AWS SDK.
//!
//! A message on the wire: the body is the payload and nothing else; `id`, `eventType` and the event's own headers are message
//! attributes. On a FIFO queue the group is the event's key and the deduplication id is the event's id.
//!
//! | what | where |
//! |---|---|
//! | payload | the body; with [`BodyEncoding`] also as base64, which the attribute `outbox-encoding` then says |
//! | event id, event type | attributes `id`, `eventType` |
//! | key (aggregate id) | FIFO: `MessageGroupId`. Standard, and whenever a group cannot be spelled like the key: attribute `aggregateId` |
//! | own headers | an attribute each, while there are at most ten; the others together in `outbox-headers`, see [`HeaderOverflow`] |
//!
//! A consumer reads messages by [`received`]. Without it, a reader finds the key so: the attribute `aggregateId` if it is
//! there; else, on a FIFO queue, the group unless it is the one that the event's id has; else there is none.
//!
//! Queues are named with letters, digits, `-` and `_`, so the default route `outbox.event.{aggregate_type}` names none: give the
//! relay `Router::new("outbox-event-{aggregate_type}.fifo")`. [`SqsConfig`] holds every setting with its unit and default,
//! [`SqsPublisher`] says what its verdicts mean.

mod call;
mod config;
mod error;
mod publisher;
mod queue;
mod received;
mod turns;
mod wire;

pub use aws_config::SdkConfig;
/// The client in the version whose messages [`received`] takes.
pub use aws_sdk_sqs;
pub use config::{BodyEncoding, HeaderOverflow, SqsConfig};
pub use publisher::SqsPublisher;
pub use received::received;
