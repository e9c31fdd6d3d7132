//! Pipelines fail and start apart.

use crate::program::{Program, eventually};
use crate::shop::{Folder, HEAD};

#[test]
fn a_missing_table_and_a_broker_that_is_down_leave_the_others_delivering() {
    let folder = Folder::new();
    let (shop, unheard) = (folder.database("shop"), folder.database("unheard"));
    unheard.write("order-1", 0..1);
    let broker = "kind = \"rabbitmq\"\nurl = \"amqp://guest:hunter2@127.0.0.1:1/%2f\"";
    let file = folder.file(&format!(
        "{HEAD}{}{}{}",
        folder.pipeline("tableless", ""),
        folder.pipeline_to("unheard", "", broker),
        folder.pipeline("shop", ""),
    ));
    let daemon = Program::run(&file);
    daemon.wait_for_trouble("tableless", "cannot_start");
    daemon.wait_for_trouble("unheard", "destination_down");
    shop.write("order-1", 0..100);
    let payloads: Vec<u64> =
        daemon.messages(100).iter().map(|message| message["payload"].as_u64().unwrap()).collect();
    assert_eq!(payloads, (0..100).collect::<Vec<u64>>());
    eventually("settles", || (shop.pending() == 0).then_some(()));

    let reason =
        |name: &str| daemon.json(&format!("/api/v1/pipelines/{name}"))["reason"].to_string();
    assert!(reason("tableless").contains("tableless.db"), "{}", reason("tableless"));
    assert!(reason("unheard").contains("no connection to rabbitmq"), "{}", reason("unheard"));
    assert!(!reason("unheard").contains("hunter2"));
    assert_eq!(reason("shop"), "null");
    assert_eq!(unheard.pending(), 1, "an outage loses nothing");
}

#[test]
fn a_pipeline_that_could_not_start_starts_once_its_cause_is_mended() {
    let folder = Folder::new();
    let file = folder.file(&format!("{HEAD}{}", folder.pipeline("shop", "")));
    let daemon = Program::run(&file);
    daemon.wait_for_trouble("shop", "cannot_start");
    folder.database("shop").write("order-1", 0..1);
    daemon.messages(1);
    daemon.wait_until_ready();
}
