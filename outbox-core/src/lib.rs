//! A transactional outbox: events leave with the transaction that wrote them, in order per aggregate, at least once.
//!
//! This crate holds what every part shares: the [event](NewEvent), the contracts of a [`Store`] (an outbox table) and of a
//! [`Publisher`] (a broker), and the relay between them. It knows no driver, reads no file and no environment.

mod admin;
mod archive;
mod batch;
mod dead;
mod error;
mod event;
pub mod headers;
mod hint;
mod id;
mod inbox;
pub mod memory;
mod new_event;
mod numbers;
mod publisher;
mod received_event;
mod record;
mod relay;
mod retry;
mod router;
mod schema;
mod store;
pub mod telemetry;
#[cfg(test)]
mod testing;
#[cfg(feature = "opentelemetry")]
mod trace;
mod writer;

pub use admin::{Administration, MAX_RECORDS};
pub use archive::{Period, Retention, Upkeep};
pub use async_trait::async_trait;
pub use batch::{Batch, Message, Verdict};
pub use dead::{BlockedHead, DeadLetter, DeadLetterFilter, Page};
pub use error::{PublishError, PublishErrorKind, StoreError, StoreErrorKind};
pub use event::{Event, EventRow, EventRows, Receipt};
pub use hint::Hint;
pub use id::{EventId, InvalidId};
pub use inbox::{
    Arrival, Consumers, Inbox, InboxTable, MAX_MARK_BYTES, Marks, PURGE_BATCH, Purged, Seen,
};
pub use new_event::{
    Due, InvalidEvent, MAX_HEADER_NAME_BYTES, MAX_HEADERS_BYTES, MAX_NAME_BYTES, MAX_PAYLOAD_BYTES,
    NewEvent, NewEventBuilder,
};
pub use numbers::Numbers;
pub use publisher::{Failure, FailureClass, KeyOrder, Publisher};
pub use received_event::{InvalidMessage, ReceivedEvent};
pub use record::{EventRecord, EventState};
pub use relay::{Limits, Monitor, Relay, Report, Timing};
pub use retry::{Exhausted, RetryPolicies, RetryPolicy};
pub use router::{InvalidTemplate, Router};
pub use schema::{Drift, is_finish_marker};
pub use store::{
    Backlog, Capabilities, ClaimRequest, Claimed, Dead, Delivered, Epoch, LaneCursor, LaneId,
    LaneRead, Leases, MAX_REASON_BYTES, OpenWriter, OwnedLane, Pipeline, Position, Probe, Retry,
    Settled, Settlements, Snapshot, Store, TypeFilter, Watermark, Worker, cut_reason,
};
pub use writer::Writer;
