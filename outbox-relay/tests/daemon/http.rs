//! The port.

use crate::program::{Program, eventually};
use crate::shop::{Folder, HEAD};

#[test]
fn a_daemon_whose_pipelines_are_well_is_live_and_ready() {
    let folder = Folder::new();
    let _database = folder.database("shop");
    let file = folder.file(&format!("{HEAD}{}", folder.pipeline("shop", "")));
    let daemon = Program::run(&file);
    daemon.wait_until_ready();
    assert_eq!(daemon.get("/livez"), (200, "ok\n".to_owned()));
    assert_eq!(daemon.json("/readyz"), serde_json::json!({ "ready": true, "troubles": {} }));
}

/// Nobody reads the pipe.
#[test]
fn a_daemon_with_due_events_that_do_not_move_is_live_and_not_ready() {
    let folder = Folder::new();
    let database = folder.database("shop");
    let lines =
        "timing.lease = \"1s\"\ntiming.heartbeat = \"300ms\"\ntiming.publish_deadline = \"300ms\"";
    let file = folder.file(&format!("{HEAD}{}", folder.pipeline("shop", lines)));
    let daemon = Program::run_unread(&file);
    daemon.wait_until_ready();
    database.write_payload("order-1", &"x".repeat(100_000));
    daemon.wait_for_trouble("shop", "destination_down");
    assert_eq!(daemon.get("/livez").0, 200);
}

#[test]
fn metrics_are_prometheus_text_with_types_and_the_pipelines_as_labels() {
    let folder = Folder::new();
    let (one, two) = (folder.database("one"), folder.database("two"));
    let pipelines = [folder.pipeline("one", ""), folder.pipeline("two", "")].concat();
    let daemon = Program::run(&folder.file(&format!("{HEAD}{pipelines}")));
    one.write("order-1", 0..3);
    two.write("order-1", 0..2);
    daemon.messages(5);
    for line in [
        "# TYPE outbox_attempts_total counter",
        "# TYPE outbox_lanes_owned gauge",
        "# TYPE outbox_publish_duration_seconds histogram",
        "# TYPE outbox_publish_batch_events histogram",
        "outbox_attempts_total{pipeline=\"one\",outcome=\"delivered\"} 3",
        "outbox_attempts_total{pipeline=\"two\",outcome=\"delivered\"} 2",
        "outbox_lanes_owned{pipeline=\"one\"} 16",
        "outbox_created_to_ack_seconds_count{pipeline=\"two\"} 2",
    ] {
        eventually(line, || daemon.get("/metrics").1.lines().find(|told| *told == line).map(drop));
    }
}

#[test]
fn the_api_needs_the_token_and_health_and_metrics_do_not() {
    let folder = Folder::new();
    let _database = folder.database("shop");
    let head = HEAD.replace("[log]", "token = \"hunter2\"\n[log]");
    let daemon = Program::run(&folder.file(&format!("{head}{}", folder.pipeline("shop", ""))));
    for path in ["/api/v1/status", "/api/v1/pipelines", "/api/v1/pipelines/shop", "/api/v1/none"] {
        for answer in
            [daemon.get(path), daemon.get_with(path, "hunter3"), daemon.get_with(path, "")]
        {
            assert_eq!(answer.0, 401, "{path}");
            assert!(!answer.1.contains("shop"), "{path}: {}", answer.1);
        }
    }
    daemon.wait_until_ready();
    assert_eq!(daemon.get("/metrics").0, 200);
    let (status, body) = daemon.get_with("/api/v1/pipelines", "hunter2");
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &body["pipelines"][0]["name"]), (200, &"shop".into()));
    assert_eq!(body["pipelines"][0]["state"], "running");
    assert_eq!(daemon.get_with("/api/v1/pipelines/none", "hunter2").0, 404);
}
