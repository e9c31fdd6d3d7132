//! `demo`, `check`, and files that are refused.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::program::command;
use crate::shop::{Folder, HEAD};

#[test]
fn the_demo_shows_each_event_once_and_in_the_order_of_its_aggregate() {
    let output = command(&["demo"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut types: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let message: Value = serde_json::from_str(line).unwrap();
        assert_eq!(message["destination"], "outbox.event.order");
        let event_type = message["headers"]["eventType"].as_str().unwrap().to_owned();
        types.entry(message["key"].as_str().unwrap().to_owned()).or_default().push(event_type);
    }
    let both = || vec!["OrderPlaced.v1".to_owned(), "OrderPaid.v1".to_owned()];
    let orders = ["order-1", "order-2", "order-3"];
    assert_eq!(types, orders.map(|order| (order.to_owned(), both())).into());
}

#[test]
fn check_tells_of_both_ends_and_delivers_nothing() {
    let folder = Folder::new();
    let database = folder.database("shop");
    database.write("order-1", 0..3);
    let file = folder.file(&folder.pipeline("shop", ""));
    let output = command(&["check", "--config", file.to_str().unwrap()]);
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(told.contains("shop: source sqlite: well\nshop: publisher stdout: well\n"), "{told}");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(database.pending(), 3);
    assert_eq!(database.count("select count(*) from outbox_workers"), 0, "it has signed off");
}

#[test]
fn check_fails_and_says_why_when_an_end_is_not_there() {
    let folder = Folder::new();
    // Nobody listens at port 1.
    let broker = "kind = \"rabbitmq\"\nurl = \"amqp://guest:hunter2@127.0.0.1:1/%2f\"";
    let file = folder.file(&folder.pipeline_to("shop", "", broker));
    let output = command(&["check", "--config", file.to_str().unwrap()]);
    let told = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(
        !told.contains("well") && told.contains("shop.db") && !told.contains("hunter2"),
        "{told}"
    );
}

#[test]
fn a_mistake_in_the_file_ends_with_status_2_and_its_place() {
    let folder = Folder::new();
    let good = folder.pipeline("shop", "");
    for (text, place, reason) in [
        (good.replace("stdout", "stdoud"), ":7:1: ", "there is no kind stdoud, but"),
        (good.replace("file =", "fiel ="), ":6:1: ", "did you mean file?"),
        (
            good.replace("kind = \"stdout\"", "kind = \"sqs\"\nqueue_url = \"x\""),
            ":7:1: ",
            "queue_url",
        ),
        (good.replace("shop.db", "${SECRET}"), ":6:8: ", "SECRET"),
        ("[http]\nlisten = \"0.0.0.0:80\"".to_owned(), ": ", "set http.token"),
    ] {
        let file = folder.file(&text);
        for name in ["check", "run"] {
            let output = command(&[name, "--config", file.to_str().unwrap()]);
            let told = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{name}: {told}");
            assert!(told.contains(&format!("outbox-relay.toml{place}")), "{name}: {told}");
            assert!(told.contains(reason), "{name}: {told}");
        }
    }
}

#[test]
fn a_port_that_is_taken_ends_the_start_with_status_1() {
    let folder = Folder::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let file = folder.file(&HEAD.replace("127.0.0.1:0", &address));
    let output = command(&["run", "--config", file.to_str().unwrap()]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains(&format!("http.listen: {address} cannot be listened at")), "{told}");
}
