//! Hand-made histories, good and bad: each break is reported under its own promise and no other.

use super::*;

/// Two aggregates: `a` with versions 1 to 3, `b` with version 1; and `a4`, which was rolled back. All arrived once.
fn good() -> History {
    let intents = vec![
        intent("a1", "a", 1, true),
        intent("a2", "a", 2, true),
        intent("a3", "a", 3, true),
        intent("a4", "a", 4, false),
        intent("b1", "b", 1, true),
    ];
    let committed = intents.iter().filter(|intent| intent.committed);
    let arrivals = committed
        .zip(0..)
        .map(|(intent, offset)| Arrival {
            partition: 0,
            offset,
            at_ms: 1000 + offset,
            content: intent.content.clone(),
        })
        .collect();
    History { intents, arrivals, reach_ms: 50, ..History::default() }
}

fn intent(id: &str, aggregate_id: &str, version: i64, committed: bool) -> Intent {
    Intent {
        id: id.to_owned(),
        aggregate: ("order".to_owned(), aggregate_id.to_owned()),
        version,
        committed,
        content: Content {
            topic: "orders".to_owned(),
            key: Some(aggregate_id.into()),
            payload: Some(format!(r#"{{"version":{version}}}"#).into()),
            headers: vec![
                ("id".to_owned(), Some(id.into())),
                ("eventType".to_owned(), Some("Changed".into())),
            ],
        },
    }
}

/// The event arrives once more at this time.
fn repeat(history: &mut History, id: &str, at_ms: i64) {
    let first = history.arrivals.iter().find(|a| a.content.id() == Some(id)).unwrap();
    let offset = history.arrivals.len() as i64;
    let again = Arrival { offset, at_ms, ..first.clone() };
    history.arrivals.push(again);
}

fn without(history: &mut History, id: &str) {
    history.arrivals.retain(|a| a.content.id() != Some(id));
}

fn kill(window: usize) -> Fault {
    Fault { name: "kill", from_ms: 1010, until_ms: 1020, window }
}

/// The promises broken, each with the event.
fn broken(history: &History) -> Vec<(Promise, String)> {
    check(history).violations.into_iter().map(|v| (v.promise, v.event)).collect()
}

#[track_caller]
fn assert_broken(history: &History, promise: Promise, event: &str) {
    assert_eq!(broken(history), [(promise, event.to_owned())]);
}

#[test]
fn a_good_history_passes() {
    let report = check(&good());
    report.assert_clean();
    assert_eq!(report.delivered, 4);
}

#[test]
fn arrivals_may_come_in_any_order_across_aggregates_and_partitions() {
    let mut history = good();
    history.arrivals[3].partition = 1;
    history.arrivals[3].offset = 0;
    history.arrivals.reverse();
    check(&history).assert_clean();
}

#[test]
fn a_committed_event_that_is_nowhere_is_lost() {
    let mut history = good();
    without(&mut history, "a2");
    assert_broken(&history, Promise::NoLoss, "a2");
}

#[test]
fn a_dead_letter_is_accounted_for_and_its_aggregate_goes_on() {
    let mut history = good();
    without(&mut history, "a2");
    history.dead.push("a2".to_owned());
    check(&history).assert_clean();
}

#[test]
fn what_is_left_in_the_outbox_is_not_done() {
    let mut history = good();
    without(&mut history, "a3");
    history.open.push("a3".to_owned());
    assert_broken(&history, Promise::Progress, "a3");
}

#[test]
fn a_message_that_nobody_wrote_is_a_phantom() {
    let mut history = good();
    let stranger = intent("x", "a", 9, true).content;
    history.arrivals.push(Arrival { partition: 0, offset: 9, at_ms: 1009, content: stranger });
    assert_broken(&history, Promise::NoPhantom, "x");
}

#[test]
fn a_message_without_an_id_is_a_phantom() {
    let mut history = good();
    let mut content = history.arrivals[0].content.clone();
    content.headers.remove(0);
    history.arrivals.push(Arrival { partition: 0, offset: 9, at_ms: 1009, content });
    assert_broken(&history, Promise::NoPhantom, "?");
}

#[test]
fn a_rolled_back_event_that_arrives_is_a_phantom() {
    let mut history = good();
    let content = history.intents[3].content.clone();
    history.arrivals.push(Arrival { partition: 0, offset: 9, at_ms: 1009, content });
    assert_broken(&history, Promise::NoPhantom, "a4");
}

#[test]
fn a_rolled_back_event_in_a_table_is_a_phantom() {
    let mut history = good();
    history.dead.push("a4".to_owned());
    assert_broken(&history, Promise::NoPhantom, "a4");
    history.open = std::mem::take(&mut history.dead);
    assert_broken(&history, Promise::NoPhantom, "a4");
}

#[test]
fn one_other_byte_anywhere_is_a_change() {
    type Change = fn(&mut Content);
    let changes: [Change; 8] = [
        |content| content.topic.push('s'),
        |content| content.key.as_mut().unwrap()[0] ^= 1,
        |content| content.key = None,
        |content| content.payload.as_mut().unwrap()[3] ^= 1,
        |content| content.payload = None,
        |content| content.headers[1].1 = None,
        |content| content.headers.swap(0, 1),
        |content| content.headers.push(("x".to_owned(), Some(Vec::new()))),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut history = good();
        change(&mut history.arrivals[3].content);
        let found = broken(&history);
        assert_eq!(found, [(Promise::ByteExact, "b1".to_owned())], "change {number}");
    }
}

#[test]
fn empty_and_missing_payloads_are_not_the_same() {
    let mut history = good();
    history.intents[4].content.payload = None;
    history.arrivals[3].content.payload = Some(Vec::new());
    assert_broken(&history, Promise::ByteExact, "b1");
}

#[test]
fn swapped_first_appearances_break_the_order() {
    let mut history = good();
    history.arrivals[1].offset = 2;
    history.arrivals[2].offset = 1;
    assert_broken(&history, Promise::KeyOrder, "a2");
}

#[test]
fn an_event_that_first_appears_among_repeats_of_its_successors_breaks_the_order() {
    let mut history = good();
    history.faults.push(kill(9));
    history.arrivals[1].offset = 10;
    repeat(&mut history, "a3", 1015);
    assert_broken(&history, Promise::KeyOrder, "a2");
}

#[test]
fn an_aggregate_in_two_partitions_has_no_order() {
    let mut history = good();
    history.arrivals[2].partition = 1;
    assert_broken(&history, Promise::KeyOrder, "a3");
}

#[test]
fn a_repeat_of_earlier_events_behind_a_fault_keeps_the_order() {
    let mut history = good();
    history.faults.push(kill(3));
    for id in ["a1", "a2", "a3"] {
        repeat(&mut history, id, 1030);
    }
    let report = check(&history);
    report.assert_clean();
    assert_eq!(report.repeats, [("kill", 3)]);
}

#[test]
fn a_repeat_without_a_fault_is_unexplained() {
    let mut history = good();
    repeat(&mut history, "b1", 1030);
    assert_broken(&history, Promise::Repeats, "b1");
}

#[test]
fn a_repeat_before_the_fault_or_a_lease_after_it_is_unexplained() {
    for at_ms in [1009, 1071] {
        let mut history = good();
        history.faults.push(kill(9));
        repeat(&mut history, "b1", at_ms);
        assert_broken(&history, Promise::Repeats, "b1");
    }
}

#[test]
fn a_repeat_of_an_event_that_was_settled_long_before_the_fault_is_unexplained() {
    let mut history = good();
    history.faults.push(Fault { from_ms: 1100, until_ms: 1110, ..kill(9) });
    repeat(&mut history, "b1", 1105);
    assert_broken(&history, Promise::Repeats, "b1");
}

#[test]
fn more_repeats_than_were_in_flight_are_too_many() {
    let mut history = good();
    history.faults.push(kill(1));
    repeat(&mut history, "a3", 1030);
    repeat(&mut history, "b1", 1031);
    assert_broken(&history, Promise::Repeats, "b1");
}

#[test]
fn two_faults_explain_as_many_repeats_as_both_had_in_flight() {
    let mut history = good();
    history.faults = vec![kill(1), Fault { name: "freeze", ..kill(1) }];
    repeat(&mut history, "a3", 1030);
    repeat(&mut history, "b1", 1031);
    let report = check(&history);
    report.assert_clean();
    assert_eq!(report.repeats, [("kill", 1), ("freeze", 1)]);
}

#[test]
fn dead_and_published_is_in_two_places() {
    let mut history = good();
    history.dead.push("a2".to_owned());
    assert_broken(&history, Promise::Accounting, "a2");
}

#[test]
fn published_and_still_open_is_in_two_places() {
    let mut history = good();
    history.open.push("a2".to_owned());
    assert_broken(&history, Promise::Accounting, "a2");
}

#[test]
fn dead_twice_is_in_two_places() {
    let mut history = good();
    without(&mut history, "b1");
    history.dead = vec!["b1".to_owned(); 2];
    assert_broken(&history, Promise::Accounting, "b1");
}

#[test]
#[should_panic(expected = "have gaps or repeats")]
fn a_history_with_a_gap_in_the_versions_is_no_history() {
    let mut history = good();
    history.intents[1].committed = false;
    check(&history);
}

#[test]
#[should_panic(expected = "given twice")]
fn a_history_that_gives_an_id_twice_is_no_history() {
    let mut history = good();
    history.intents[4].id = "a1".to_owned();
    check(&history);
}
