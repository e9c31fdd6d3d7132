//! SIGTERM and what follows.

use std::time::Instant;

use crate::program::{Program, eventually};
use crate::shop::{Database, Folder, HEAD};

const OWNED: &str = "select count(*) from outbox_lanes where owner is not null";

#[test]
fn sigterm_ends_what_is_open_and_gives_the_lanes_back() {
    let folder = Folder::new();
    let database = folder.database("shop");
    let file = folder.file(&format!("{HEAD}{}", folder.pipeline("shop", "")));
    let mut daemon = Program::run(&file);
    eventually("lanes", || (database.count(OWNED) == 16).then_some(()));
    database.write("order-1", 0..50);
    daemon.messages(1);
    daemon.signal("TERM");
    assert_eq!(daemon.ended().code(), Some(0));
    assert_eq!(database.count(OWNED), 0);
    assert_eq!(database.count("select count(*) from outbox_workers"), 0);
    let delivered = daemon.messages(0).len();
    assert_eq!(
        database.pending() + i64::try_from(delivered).unwrap(),
        50,
        "each row that is gone was delivered"
    );
}

#[test]
fn a_second_signal_ends_at_once() {
    let folder = Folder::new();
    let (mut daemon, database) = stuck(&folder, "timing.shutdown_deadline = \"5m\"");
    daemon.signal("TERM");
    daemon.log_line("stopping: open events");
    assert_eq!(daemon.get("/livez").0, 200, "it still waits");
    daemon.signal("TERM");
    assert_eq!(daemon.ended().code(), Some(1));
    assert_eq!(database.pending(), 2, "nothing is lost");
}

#[test]
fn a_stop_waits_for_open_calls_and_is_bounded() {
    let folder = Folder::new();
    let lines = "timing.shutdown_deadline = \"1s\"\ntiming.statement_deadline = \"1s\"";
    let (mut daemon, database) = stuck(&folder, lines);
    let begin = Instant::now();
    daemon.signal("TERM");
    assert_eq!(daemon.ended().code(), Some(0));
    let took = begin.elapsed().as_secs_f64();
    assert!((1.0..5.0).contains(&took), "shutdown_deadline and two statement_deadlines: {took} s");
    assert_eq!(database.pending(), 2, "nothing is lost");
}

/// A daemon with a call that does not end: nobody reads the pipe that it writes to.
fn stuck<'a>(folder: &'a Folder, lines: &str) -> (Program, Database<'a>) {
    let database = folder.database("shop");
    database.write_payload("order-1", &"x".repeat(100_000));
    database.write_payload("order-2", "small");
    let file = folder.file(&format!("{HEAD}{}", folder.pipeline("shop", lines)));
    let daemon = Program::run_unread(&file);
    eventually("an open call", || {
        (daemon.json("/api/v1/pipelines/shop")["window_events"] == 2).then_some(())
    });
    (daemon, database)
}
