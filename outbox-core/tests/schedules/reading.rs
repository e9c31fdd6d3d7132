//! Schedules of claims, commits, settles and sweeps.

use outbox_core::memory::FaultRule;
use outbox_core::{Delivered, EventRow, Position, Settlements, Store as _, Worker};

use super::*;
use crate::script::At;

#[tokio::test(start_paused = true)]
async fn a_late_commit_below_what_was_read_comes_with_the_next_claim() {
    let stage = Stage::new();
    let late = stage.begin("a", &["late"]).await;
    stage.write("b", &["first"]).await;
    stage
        .run(async {
            stage.until_arrived(1).await;
            stage.after(400).await;
            late.commit();
            stage.broker.wait_for(2, Duration::from_millis(600)).await;
            stage.until_settled().await;
        })
        .await;
    assert_eq!(stage.arrived(), ["first", "late"]);
}

/// Its writer saw the late event: it must not come before it.
#[tokio::test(start_paused = true)]
async fn what_is_written_after_a_late_commit_comes_after_it() {
    let mut stage = Stage::new();
    stage.limits = Limits::default().with_batch(1);
    let late = stage.begin("a", &["late"]).await;
    stage.write("b", &["1", "2", "3"]).await;
    stage
        .run(async {
            stage.until_arrived(3).await;
            stage.after(300).await;
            stage.script.close("claim", At::Snapshot);
            stage.script.reached("claim", At::Snapshot).await;
            late.commit();
            stage.write("a", &["later"]).await;
            stage.script.open("claim", At::Snapshot);
            stage.until_settled().await;
        })
        .await;
    assert_eq!(stage.arrived(), ["1", "2", "3", "late", "later"]);
}

#[tokio::test(start_paused = true)]
async fn a_settled_event_that_an_older_snapshot_shows_is_not_sent_again() {
    let stage = Stage::new();
    // An open writer keeps claims starting below what follows.
    let open = stage.begin("z", &["open"]).await;
    stage
        .run(async {
            stage.after(300).await;
            stage.script.close("settle", At::Snapshot);
            stage.write("a", &["1"]).await;
            stage.script.reached("settle", At::Snapshot).await;
            stage.script.close("claim", At::Reply);
            stage.script.reached("claim", At::Reply).await;
            stage.script.open("settle", At::Snapshot);
            stage.script.reached("settle", At::Reply).await;
            stage.after(100).await;
            stage.script.open("claim", At::Reply);
            stage.after(500).await;
            open.commit();
            stage.until_settled().await;
        })
        .await;
    assert_eq!(stage.arrived(), ["1", "open"]);
}

#[tokio::test(start_paused = true)]
async fn what_is_known_does_not_count_against_the_limit_of_a_claim() {
    let mut stage = Stage::new();
    stage.limits = Limits::default().with_window(8).with_batch(2);
    let open = stage.begin("z", &["open"]).await;
    stage.broker.script(FaultRule::on_type("stuck", Fault::Slow(LONG)));
    stage
        .run(async {
            stage.after(300).await;
            for aggregate in ["a", "b"] {
                stage.write(aggregate, &["stuck"]).await;
            }
            stage.after(300).await;
            stage.write("c", &["behind"]).await;
            stage.broker.wait_for(1, Duration::from_secs(2)).await;
            open.commit();
        })
        .await;
    assert_eq!(stage.arrived()[0], "behind");
}

/// The claim saw the row before the retry was written, and its successors as free.
#[tokio::test(start_paused = true)]
async fn no_claim_is_out_while_a_wait_begins() {
    let stage = Stage::new();
    stage.broker.script(FaultRule::on_type("bad", refuse(FailureClass::Transient)).times(1));
    stage
        .run(async {
            stage.after(300).await;
            stage.script.close("claim", At::Reply);
            stage.script.reached("claim", At::Reply).await;
            stage.script.open("claim", At::Reply);
            stage.write("a", &["bad"]).await;
            stage.script.reached("claim", At::Reply).await;
            stage.script.close("claim", At::Reply);
            stage.write("a", &["behind"]).await;
            stage.after(2000).await;
            stage.script.open("claim", At::Reply);
            stage.until_settled().await;
        })
        .await;
    assert_eq!(stage.arrived(), ["bad", "behind"]);
}

#[tokio::test(start_paused = true)]
async fn successors_in_memory_leave_it_when_their_predecessor_must_wait() {
    let mut stage = Stage::new();
    stage.limits = Limits::default().with_batch(1);
    stage.limits.claim_events = 10;
    stage.broker.script(FaultRule::on_type("bad", refuse(FailureClass::Transient)).times(2));
    stage.write("a", &["bad", "2", "3"]).await;
    stage.write("b", &["other"]).await;
    stage.run(stage.until_settled()).await;
    assert_eq!(stage.arrived(), ["other", "bad", "2", "3"]);
}

/// The claims of the meantime have left the successors out.
#[tokio::test(start_paused = true)]
async fn when_a_wait_has_ended_reading_goes_back_to_its_successors() {
    let stage = Stage::new();
    stage.broker.script(FaultRule::on_type("bad", refuse(FailureClass::Transient)).times(1));
    stage
        .run(async {
            stage.write("a", &["bad"]).await;
            stage.after(500).await;
            stage.write("a", &["held"]).await;
            stage.write("b", &["1"]).await;
            stage.after(300).await;
            stage.write("b", &["2"]).await;
            stage.until_settled().await;
        })
        .await;
    assert_eq!(stage.arrived(), ["1", "2", "bad", "held"]);
}

/// Its repetition is refused and put aside: the table holds nobody back any more, and claims bring what is behind those that
/// it had held back.
#[tokio::test(start_paused = true)]
async fn a_settle_that_ended_a_wait_without_an_answer_lets_nobody_pass_who_was_held_back() {
    let stage = Stage::new();
    stage.broker.script(FaultRule::on_type("bad", refuse(FailureClass::Transient)).times(1));
    stage
        .run(async {
            stage.write("a", &["bad"]).await;
            stage.script.reached("settle", At::Reply).await;
            stage.write("a", &["held"]).await;
            stage.write("b", &["1"]).await;
            stage.until_arrived(1).await;
            stage.script.reached("settle", At::Reply).await;
            stage.script.close("settle", At::Reply);
            stage.until_arrived(2).await;
            stage.script.reached("settle", At::Reply).await;
            stage.script.refuse_delivered(true);
            stage.script.reached("settle", At::Snapshot).await;
            stage.script.open("settle", At::Reply);
            stage.write("a", &["next"]).await;
            stage.after(10_000).await;
            stage.script.refuse_delivered(false);
            stage.until_settled().await;
        })
        .await;
    assert_eq!(stage.arrived(), ["1", "bad", "held", "next"]);
}

/// Both commit late, below what is read, and only one fits the claim.
#[tokio::test(start_paused = true)]
async fn a_scheduled_event_does_not_pass_a_predecessor_that_did_not_fit() {
    let mut stage = Stage::new();
    stage.limits = Limits::default().with_batch(1);
    let late = stage.begin("a", &["1", "2", "due 0"]).await;
    stage.write("b", &["other"]).await;
    stage
        .run(async {
            stage.until_arrived(1).await;
            stage.after(300).await;
            late.commit();
            stage.until_settled().await;
        })
        .await;
    assert_eq!(stage.arrived(), ["other", "1", "2", "due 0"]);
}

#[tokio::test(start_paused = true)]
async fn a_due_event_is_not_claimed_beyond_what_was_read() {
    let mut stage = Stage::new();
    stage.limits = Limits::default().with_batch(1);
    stage.write("a", &["1", "2", "3", "due 0"]).await;
    stage.run(stage.until_settled()).await;
    assert_eq!(stage.arrived(), ["1", "2", "3", "due 0"]);
    let beyond = stage.script.claims().into_iter().flat_map(|claim| claim.lanes);
    assert!(beyond.into_iter().all(|cursor| cursor.read <= 4));
}

/// A position that was not drawn from the sequence.
#[tokio::test(start_paused = true)]
async fn a_sweep_finds_a_row_below_what_is_covered_and_reading_goes_back() {
    let mut stage = Stage::new();
    stage.timing.sweep = Duration::from_secs(5);
    stage.limits = Limits::default().with_batch(1);
    let hidden = stage.begin("a", &["1", "2", "3"]).await;
    stage.script.hide_writers();
    stage.write("b", &["other"]).await;
    stage
        .run(async {
            stage.until_arrived(1).await;
            stage.after(500).await;
            hidden.commit();
            stage.after(1000).await;
            assert_eq!(stage.arrived(), ["other"], "covered by mistake");
            stage.broker.wait_for(2, Duration::from_secs(40)).await;
            stage.broker.wait_for(4, Duration::from_secs(1)).await;
            stage.until_settled().await;
        })
        .await;
    assert_eq!(stage.arrived(), ["other", "1", "2", "3"]);
}

/// What it saw, another worker has delivered in the meantime.
#[tokio::test(start_paused = true)]
async fn a_claim_of_a_lane_that_was_lost_and_regained_meanwhile_counts_for_nothing() {
    let mut stage = Stage::new();
    stage.timing.heartbeat = Duration::from_millis(200);
    stage
        .run(async {
            stage.after(500).await;
            stage.script.close("claim", At::Reply);
            stage.write("a", &["1"]).await;
            stage.script.reached("claim", At::Reply).await;
            stage.after(500).await;
            let (mine, lease) = (stage.script.worker(), stage.timing.lease);
            let other = Worker::new(mine.pipeline.clone(), "other");
            stage.table.heartbeat(&other, lease).await.unwrap();
            stage.table.release(&mine, &[0]).await.unwrap();
            stage.table.acquire(&other, 1).await.unwrap();
            let epoch = stage.table.heartbeat(&other, lease).await.unwrap().lanes[0].epoch;
            let mut settlements = Settlements::new(other.clone());
            settlements.lanes = vec![(0, epoch)];
            let receipt = stage.table.pending()[0].receipt();
            settlements.delivered.push(Delivered::new(receipt, "x"));
            stage.table.settle(&settlements).await.unwrap();
            stage.after(300).await;
            stage.table.leave(&other).await.unwrap();
            stage.after(2500).await;
            stage.script.open("claim", At::Reply);
            stage.write("a", &["2"]).await;
            stage.until_settled().await;
        })
        .await;
    assert_eq!(stage.arrived(), ["2"]);
}

/// The lease ran out unnoticed by others, so the epoch is the same; but what was in memory is forgotten, and the claim left it
/// out.
#[tokio::test(start_paused = true)]
async fn a_claim_of_a_lane_that_was_lost_and_regained_under_one_epoch_counts_for_nothing() {
    let stage = Stage::new();
    stage.broker.script(FaultRule::on_type("1", Fault::Slow(LONG)).times(1));
    stage.write("a", &["1"]).await;
    stage
        .run(async {
            stage.after(1000).await;
            stage.script.close("heartbeat", At::Snapshot);
            stage.script.reached("heartbeat", At::Snapshot).await;
            // The lease ends 30 s after the last heartbeat, which was 10 s ago.
            stage.after(17_500).await;
            stage.script.close("claim", At::Reply);
            stage.script.reached("claim", At::Reply).await;
            while stage.broker.abandoned() < 2 {
                stage.after(10).await;
            }
            stage.script.open("heartbeat", At::Snapshot);
            stage.script.reached("heartbeat", At::Reply).await;
            stage.after(1).await;
            stage.script.open("claim", At::Reply);
            stage.write("a", &["2"]).await;
            stage.until_settled().await;
        })
        .await;
    assert_eq!(stage.arrived(), ["1", "2"]);
}

#[tokio::test(start_paused = true)]
async fn another_server_voids_what_was_read() {
    let stage = Stage::new();
    stage.script.answer_as("one");
    stage.write("a", &["1"]).await;
    stage
        .run(async {
            stage.until_arrived(1).await;
            stage.after(500).await;
            stage.script.answer_as("two");
            stage.after(3000).await;
        })
        .await;
    let claims = stage.script.claims();
    let first = claims.iter().position(|claim| claim.lanes[0].from > 0).unwrap();
    assert!(claims[first..].iter().any(|claim| claim.lanes[0].from == Position::MIN));
}

#[tokio::test(start_paused = true)]
async fn a_long_writer_is_set_aside_and_its_rows_come_in_order_when_it_ends() {
    let stage = Stage::new();
    let mut long = stage.begin("a", &["long 1"]).await;
    stage
        .run(async {
            stage.write("b", &["1"]).await;
            stage.after(3000).await;
            stage.append(&mut long, "a", &["long 2"]).await;
            stage.write("b", &["2"]).await;
            stage.after(500).await;
            let from = stage.script.claims().last().unwrap().lanes[0].from;
            assert!(from >= 2, "claims start at {from}, below a writer that is set aside");
            long.commit();
            stage.write("a", &["after"]).await;
            stage.until_settled().await;
        })
        .await;
    assert_eq!(stage.arrived(), ["1", "2", "long 1", "long 2", "after"]);
}

/// The lane that was read past where the writer stood is full, and the claim that shows the writer's end asks one that was
/// taken over just now.
#[tokio::test(start_paused = true)]
async fn a_lane_that_was_not_asked_reads_back_too_when_a_long_writer_ends() {
    let mut stage = Stage::with_lanes(2);
    stage.limits = Limits::default().with_window(8).with_batch(4);
    stage.timing.heartbeat = Duration::from_millis(500);
    stage.broker.script(FaultRule::on_type("stuck", Fault::Slow(Duration::from_secs(10))));
    let other = Worker::new(outbox_core::Pipeline::new("default").unwrap(), "other");
    stage.table.join(&other).await.unwrap();
    stage.table.heartbeat(&other, LONG).await.unwrap();
    stage.table.acquire(&other, 1).await.unwrap();
    let names = names_in_lane(1, 6).await;
    let long = stage.begin(&names[0], &["long"]).await;
    stage
        .run(async {
            for _ in 0..6 {
                stage.after(700).await;
                stage.write(&names[1], &["free"]).await;
            }
            for name in &names[2..] {
                stage.write(name, &["stuck"]).await;
            }
            stage.after(700).await;
            // The last claim that asks it does not see the end.
            stage.script.close("claim", At::Reply);
            stage.script.reached("claim", At::Reply).await;
            long.commit();
            stage.table.leave(&other).await.unwrap();
            stage.after(2000).await;
            stage.script.open("claim", At::Reply);
            stage.broker.wait_for(11, Duration::from_secs(60)).await;
            stage.until_settled().await;
        })
        .await;
}

/// Aggregates whose events are in this of two lanes.
async fn names_in_lane(lane: u16, count: usize) -> Vec<String> {
    let scratch = Stage::with_lanes(2);
    for n in 0..20 {
        scratch.write(&format!("a{n}"), &["x"]).await;
    }
    let pending = scratch.table.pending();
    let names = pending
        .iter()
        .filter(|event| event.lane() == lane)
        .filter_map(|event| event.aggregate_id());
    names.map(str::to_owned).take(count).collect()
}

#[tokio::test(start_paused = true)]
async fn a_row_that_no_program_of_ours_wrote_is_read_like_any_other() {
    let stage = Stage::new();
    let mut row = EventRow::new(0, 0, outbox_core::EventId::from_text("raw").unwrap());
    row.aggregate_type = "order";
    row.aggregate_id = Some("a");
    row.event_type = "raw";
    row.headers = Some("no json");
    stage.table.insert_raw(&row);
    stage.write("a", &["behind"]).await;
    stage.run(stage.until_settled()).await;
    assert_eq!(stage.arrived(), ["behind"]);
    assert_eq!(stage.table.dead()[0].event.attempts(), 1);
}

/// A sweep may take longer than a statement may: claims go on between two tries.
#[tokio::test(start_paused = true)]
async fn a_sweep_that_fails_stops_no_claim_and_does_not_come_again_at_once() {
    let mut stage = Stage::new();
    stage.timing.sweep = Duration::from_secs(5);
    let names: Vec<String> = (0..60).map(|n| n.to_string()).collect();
    stage
        .run(async {
            stage.write("a", &["first"]).await;
            stage.until_arrived(1).await;
            stage.after(1000).await;
            stage.script.fail_claims(is_from_the_beginning);
            for name in &names {
                stage.write("a", &[name]).await;
                stage.after(1000).await;
                assert_eq!(stage.arrived().last(), Some(name));
            }
        })
        .await;
    let claims = stage.script.claims();
    let failed = claims[2..].iter().filter(|claim| is_from_the_beginning(claim)).count();
    assert!((2..=14).contains(&failed), "{failed} sweeps in a minute, one every five seconds");
}

fn is_from_the_beginning(claim: &ClaimRequest) -> bool {
    claim.lanes.iter().all(|cursor| cursor.from == Position::MIN)
}

/// Rows that a claim goes through and cannot give: here those of another pipeline, whose broker is down.
#[tokio::test(start_paused = true)]
async fn a_claim_that_would_look_at_too_many_rows_asks_for_fewer_and_makes_progress() {
    let stage = Stage::new();
    write_foreign(&stage, 1000).await;
    stage.write("a", &["mine"]).await;
    write_foreign(&stage, 1000).await;
    stage.script.look_at_most(100);
    let mine = async {
        stage.broker.wait_for(1, Duration::from_secs(60)).await;
        stage.write("a", &["more"]).await;
        stage.broker.wait_for(2, Duration::from_secs(60)).await;
    };
    stage.relay().with_pipeline(orders()).run(mine).await.unwrap();
    assert_eq!(stage.arrived(), ["mine", "more"]);
    assert_eq!(stage.table.pending().len(), 2000);
}

/// The row is one that no claim would find, and the table one that no sweep gets through in one go.
#[tokio::test(start_paused = true)]
async fn a_sweep_goes_through_a_large_table_in_parts() {
    let mut stage = Stage::new();
    stage.timing.sweep = Duration::from_secs(5);
    write_foreign(&stage, 500).await;
    let hidden = stage.begin("a", &["1", "2"]).await;
    stage.script.hide_writers();
    write_foreign(&stage, 500).await;
    stage.write("b", &["other"]).await;
    let mine = async {
        stage.until_arrived(1).await;
        stage.after(500).await;
        stage.script.look_at_most(100);
        hidden.commit();
        stage.after(2000).await;
        assert_eq!(stage.arrived(), ["other"], "covered by mistake");
        stage.broker.wait_for(3, LONG).await;
    };
    stage.relay().with_pipeline(orders()).run(mine).await.unwrap();
    assert_eq!(stage.arrived(), ["other", "1", "2"]);
    let claims = stage.script.claims();
    let is_later_part = |claim: &ClaimRequest| {
        claim.lanes.iter().all(|cursor| cursor.read == Position::MIN && cursor.from > 0)
    };
    assert!(claims.iter().filter(|claim| is_later_part(claim)).count() > 2, "it came in parts");
    let in_a_row = claims.windows(2).any(|two| two.iter().all(is_later_part));
    assert!(!in_a_row, "between two parts a claim has its turn");
}

async fn write_foreign(stage: &Stage, count: usize) {
    let mut transaction = stage.table.begin();
    for _ in 0..count {
        let event = NewEvent::builder("foreign", "f", "x").build().unwrap();
        stage.table.append(&mut transaction, &[event]).await.unwrap();
    }
    transaction.commit();
}

fn orders() -> outbox_core::Pipeline {
    let types = outbox_core::TypeFilter::Except(["foreign".to_owned()].into());
    outbox_core::Pipeline::with_types("orders", types).unwrap()
}

/// A probe that answers is no sign that claims do.
#[tokio::test(start_paused = true)]
async fn claims_that_fail_come_ever_more_rarely() {
    let stage = Stage::new();
    stage.script.fail_claims(|_| true);
    let hint = Hint::new();
    let minute = async {
        for _ in 0..60 {
            stage.after(1000).await;
            hint.fire();
        }
    };
    stage.relay().with_hint(hint.clone()).run(minute).await.unwrap();
    let claims = stage.script.claims().len();
    assert!((5..=40).contains(&claims), "{claims} claims failed in a minute");
}

/// Due rows come beside the fresh ones. Nothing is settled here, so what was published is what the window holds.
#[tokio::test(start_paused = true)]
async fn a_claim_brings_no_more_than_the_window_holds() {
    let mut stage = Stage::new();
    stage.limits = Limits::default().with_window(8).with_batch(8);
    stage.script.close("settle", At::Snapshot);
    for n in 0..10 {
        stage.write(&format!("due {n}"), &["due 300"]).await;
    }
    stage.write("a", &["1"]).await;
    stage.write("b", &["2"]).await;
    stage
        .run(async {
            stage.after(100).await;
            stage.script.close("claim", At::Snapshot);
            stage.script.reached("claim", At::Snapshot).await;
            for n in 0..20 {
                stage.write(&format!("fresh {n}"), &["x"]).await;
            }
            stage.after(300).await;
            stage.script.open("claim", At::Snapshot);
            stage.after(3000).await;
        })
        .await;
    let published = stage.broker.messages().len();
    assert!((7..=8).contains(&published), "{published} events in a window of 8");
}

/// An append arms the hint before its commit: the relay polls fast, but it does not run in circles.
#[tokio::test(start_paused = true)]
async fn appends_under_load_do_not_make_the_relay_claim_without_a_pause() {
    let mut stage = Stage::new();
    stage.timing = stage.timing.with_poll(Duration::from_millis(20), Duration::from_millis(500));
    let hint = Hint::new();
    let second = async {
        for _ in 0..1000 {
            hint.arm();
            stage.after(1).await;
        }
    };
    stage.relay().with_hint(hint.clone()).run(second).await.unwrap();
    let claims = stage.script.claims().len();
    assert!((20..=60).contains(&claims), "{claims} claims in a second");
}
