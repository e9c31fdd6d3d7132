//! The program `outbox-relay`, as an operator meets it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod apart;
mod commands;
mod http;
mod program;
mod reload;
mod servers;
mod shop;
mod stop;
