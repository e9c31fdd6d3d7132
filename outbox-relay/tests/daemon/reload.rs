//! SIGHUP.

use crate::program::{Program, eventually};
use crate::shop::{Database, Folder, HEAD};

const STARTS: &str = "the pipeline starts";

#[test]
fn sighup_starts_stops_and_changes_what_the_file_changed_and_nothing_else() {
    let folder = Folder::new();
    let names = ["same", "changed", "removed", "added"];
    let databases = names.map(|name| folder.database(name));
    let first = ["same", "changed", "removed"].map(|name| folder.pipeline(name, "")).concat();
    let file = folder.file(&format!("{HEAD}{first}"));
    let daemon = Program::run(&file);
    daemon.wait_until_ready();

    let second = [
        folder.pipeline("added", ""),
        folder.pipeline("changed", "routing.default = \"changed\""),
        format!("# A comment, and another place.\n{}", folder.pipeline("same", "")),
    ];
    folder.file(&format!("{HEAD}{}", second.concat()));
    daemon.signal("HUP");
    daemon.log_line("the file is applied");
    daemon.wait_until_ready();
    for database in &databases {
        database.write("order-1", 0..1);
    }
    let mut destinations: Vec<String> = daemon
        .messages(3)
        .iter()
        .map(|message| message["destination"].as_str().unwrap().to_owned())
        .collect();
    destinations.sort();
    assert_eq!(destinations, ["changed", "outbox.event.order", "outbox.event.order"]);
    eventually("settles", || {
        (databases.iter().map(Database::pending).sum::<i64>() == 1).then_some(())
    });
    assert_eq!(databases[2].pending(), 1, "the removed one relays no more");
    let starts = names.map(|name| daemon.log_lines_of(name, STARTS));
    assert_eq!(starts, [1, 2, 1, 1]);
    assert_eq!(daemon.get("/api/v1/pipelines/removed").0, 404);
}

#[test]
fn a_file_with_a_mistake_changes_nothing() {
    let folder = Folder::new();
    let database = folder.database("shop");
    let file = folder.file(&format!("{HEAD}{}", folder.pipeline("shop", "")));
    let daemon = Program::run(&file);
    daemon.wait_until_ready();
    let adapter = folder.pipeline("shop", "").replace("file =", "fiel =");
    folder.file(&format!("{HEAD}{}{adapter}", folder.pipeline("other", "")));
    daemon.signal("HUP");
    let reason = daemon.log_line("the file is not applied")["reason"].to_string();
    assert!(reason.contains("did you mean file?"), "{reason}");
    database.write("order-1", 0..1);
    daemon.messages(1);
    assert_eq!(daemon.log_lines_of("shop", STARTS), 1);
    assert_eq!(daemon.json("/api/v1/status")["pipelines"], 1, "not even the good half is applied");
}

/// Under load, five times: each hand-over is a clean one, so nothing comes twice either.
#[test]
fn a_changed_pipeline_hands_over_without_loss_repeats_or_disorder() {
    let folder = Folder::new();
    let database = folder.database("shop");
    let text = |calls: u32| {
        format!("{HEAD}{}", folder.pipeline("shop", &format!("limits.calls = {calls}")))
    };
    let file = folder.file(&text(1));
    let daemon = Program::run(&file);
    daemon.wait_until_ready();
    for round in 0..5 {
        let numbers = round * 60..(round + 1) * 60;
        database.write("order-1", numbers.start..numbers.start + 30);
        folder.file(&text(round + 2));
        daemon.signal("HUP");
        database.write("order-1", numbers.start + 30..numbers.end);
        eventually("another start", || {
            (daemon.log_lines_of("shop", STARTS) > round as usize + 1).then_some(())
        });
    }
    daemon.messages(300);
    eventually("settles", || (database.pending() == 0).then_some(()));
    let numbers: Vec<u64> =
        daemon.messages(300).iter().map(|message| message["payload"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..300).collect::<Vec<u64>>());
}
