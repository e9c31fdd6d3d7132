//! The bench: loads events, drains them by the real relay, and measures.
//!
//! `cargo run --release -p outbox-bench -- drain --events 1000000`. What is measured, and what the figures mean, is in
//! `docs/performance.md`.
//!
//! | file | what is there |
//! |---|---|
//! | `drain.rs` | the command: rounds of raw producer and relay, each a process of its own |
//! | `relay.rs` | one drain by the real [`Relay`](outbox_core::Relay) |
//! | `raw.rs` | the same messages by the producer alone |
//! | `counted.rs` | a store that counts what is asked of it |
//! | `events.rs` | the events, made from their numbers |
//! | `table.rs` | a database with a loaded outbox table |
//! | `topic.rs` | a topic: created, counted, read back |
//! | `usage.rs` | CPU, memory and WAL of everybody involved |
//! | `report.rs` | the table and the JSON |

pub mod counted;
pub mod drain;
pub mod events;
pub mod raw;
pub mod relay;
pub mod report;
pub mod table;
pub mod topic;
pub mod usage;
