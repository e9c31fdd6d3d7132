//! The adapter on real servers: one file for each subject, one binary for all.

mod common;
mod store;
