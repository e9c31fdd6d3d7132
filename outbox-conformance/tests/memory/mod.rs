//! Harnesses around the memory backend of `outbox-core`.
#![allow(dead_code, reason = "each test binary uses a part")]

mod publisher;
mod store;

pub(crate) use publisher::MemoryBroker;
pub(crate) use store::Memory;
