//! The adapter on real servers: one file for each subject, one binary for all.
#![allow(clippy::unwrap_used, reason = "tests")]

mod archive;
mod claim;
mod common;
mod connection;
mod dead;
mod dead_link;
mod deadline;
mod inbox;
#[path = "../../../tests/support/outage.rs"]
mod job;
mod leases;
mod outage;
mod probe;
mod schema;
mod sequence;
mod settle;
mod sweep;
mod writer;
