//! What the tests on real servers share.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::sync::{Mutex, PoisonError};

pub(crate) mod checker;
pub(crate) mod database;
pub(crate) mod event_maker;
pub(crate) mod job;
pub(crate) mod kafka;
pub(crate) mod listener;
pub(crate) mod process;
pub(crate) mod rabbitmq;
pub(crate) mod relay_process;
pub(crate) mod relay_task;
pub(crate) mod sqs;
pub(crate) mod workload;

/// Runs a test while no other of these runs: they measure times, and have two cores.
pub(crate) fn alone(test: impl Future<Output = ()>) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    beside_others(test);
}

/// Runs a test that does not look at the clock.
pub(crate) fn beside_others(test: impl Future<Output = ()>) {
    let _ = tracing_subscriber::fmt().with_test_writer().with_ansi(false).try_init();
    tokio::runtime::Runtime::new().unwrap().block_on(test);
}

/// The address of a shared test server.
#[track_caller]
pub(crate) fn server(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: run `cargo xtask test`, or `eval \"$(cargo xtask services start)\"` first")
    })
}

/// Now, in milliseconds since 1970.
pub(crate) fn now_ms() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.expect("it is later than 1970").as_millis().try_into().expect("it is not that late")
}
