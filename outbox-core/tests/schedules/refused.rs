//! Schedules of settles that the database refuses, and of rows that nobody can read.

use outbox_core::memory::FaultRule;
use outbox_core::{EventId, EventRow, Exhausted, Store as _, Worker};

use super::*;
use crate::script::At;

#[tokio::test(start_paused = true)]
async fn a_settle_that_is_refused_is_narrowed_to_the_one_bad_row() {
    let stage = Stage::new();
    for n in 0..20 {
        stage.write(&format!("a{n}"), &["x"]).await;
    }
    let bad = stage.table.pending()[7].id().clone();
    stage.script.refuse(&bad);
    stage
        .run(async {
            stage.after(3000).await;
            let left: Vec<_> =
                stage.table.pending().iter().map(|event| event.id().clone()).collect();
            assert_eq!(left, std::slice::from_ref(&bad));
        })
        .await;
    assert_eq!(stage.arrived().len(), 20);
}

/// A detached partition, a trigger with a mistake: no row is to blame, and none is looked for.
#[tokio::test(start_paused = true)]
async fn a_database_that_refuses_every_row_is_asked_now_and_then() {
    let stage = Stage::with_lanes(16);
    stage.script.refuse_delivered(true);
    for n in 0..2000 {
        stage.write(&format!("a{n}"), &["x"]).await;
    }
    stage
        .run(async {
            stage.after(60_000).await;
            let first = stage.script.settles().len();
            stage.after(180_000).await;
            let later = stage.script.settles().len() - first;
            assert!(first <= 60 && later <= 20, "{first} settles in a minute, {later} in three");
            assert_eq!(stage.table.pending().len(), 2000);
            stage.script.refuse_delivered(false);
            stage.after(20_000).await;
            stage.table.assert_nothing_pending();
        })
        .await;
    assert_eq!(stage.arrived().len(), 2000, "each was published once");
}

/// Only "delivered" is refused (the archive is full, say): what fails is written as ever.
#[tokio::test(start_paused = true)]
async fn one_kind_of_verdict_that_is_refused_does_not_stop_the_others() {
    let stage = Stage::new();
    stage.script.refuse_delivered(true);
    for n in 0..100 {
        stage.write(&format!("a{n}"), &["good"]).await;
    }
    stage.broker.script(FaultRule::on_type("bad", refuse(FailureClass::Permanent)));
    stage
        .run(async {
            stage.after(30_000).await;
            stage.write("b", &["bad"]).await;
            stage.after(2000).await;
            assert_eq!(stage.table.dead().len(), 1);
            stage.script.refuse_delivered(false);
            stage.until_settled().await;
        })
        .await;
}

/// A colleague joins while the database refuses verdicts of the lanes that are meant for it.
#[tokio::test(start_paused = true)]
async fn a_lane_with_verdicts_that_are_refused_is_handed_over() {
    for all in [false, true] {
        let mut stage = Stage::with_lanes(2);
        stage.timing.heartbeat = Duration::from_millis(500);
        stage.script.refuse_delivered(all);
        for n in 0..40 {
            stage.write(&format!("a{n}"), &["x"]).await;
        }
        if !all {
            for event in stage.table.pending().iter().filter(|event| event.position() % 4 == 0) {
                stage.script.refuse(event.id());
            }
        }
        stage
            .run(async {
                stage.after(10_000).await;
                let mine = stage.script.worker();
                let other = Worker::new(mine.pipeline.clone(), "other");
                stage.table.heartbeat(&other, LONG).await.unwrap();
                stage.after(3000).await;
                stage.table.acquire(&other, 2).await.unwrap();
                let leases = stage.table.heartbeat(&other, LONG).await.unwrap();
                assert_eq!(leases.lanes.len(), 1, "a lane is free for the other (all: {all})");
            })
            .await;
    }
}

/// One lane is empty, but for a verdict that is refused: what happened to its owners before is over.
#[tokio::test(start_paused = true)]
async fn a_careful_lane_recovers_beside_a_verdict_that_is_refused() {
    let stage = Stage::new();
    stage.script.crashes(3);
    stage.write("a", &["1"]).await;
    stage.script.refuse(stage.table.pending()[0].id());
    stage.write("b", &["2"]).await;
    stage.run(stage.after(5000)).await;
    assert!(stage.script.settles().iter().any(|settle| !settle.recovered.is_empty()));
}

/// What nobody can read will not get better by waiting, and might not even be marked: a key too long for an index.
#[tokio::test(start_paused = true)]
async fn an_event_that_cannot_be_read_is_a_dead_letter_even_under_hold() {
    let mut stage = Stage::new();
    stage.retry = stage.retry.with_exhausted(Exhausted::Hold);
    let mut row = EventRow::new(0, 0, EventId::from_text("unreadable").unwrap());
    row.aggregate_type = "order";
    row.aggregate_id = Some("a");
    row.event_type = "x";
    row.fault = Some("the key is too long");
    stage.table.insert_raw(&row);
    stage.write("a", &["behind"]).await;
    stage.run(stage.until_settled()).await;
    assert_eq!(stage.table.dead()[0].reason, "the key is too long");
    assert_eq!(stage.arrived(), ["behind"]);
}

/// Two lanes leave, and two seconds before their patience ends a third one does.
#[tokio::test(start_paused = true)]
async fn each_lane_that_leaves_has_its_own_time_for_open_messages() {
    let mut stage = Stage::with_lanes(4);
    stage.timing.heartbeat = Duration::from_millis(500);
    stage.broker.script(FaultRule::on_type("14 s", Fault::Slow(Duration::from_secs(14))));
    stage.broker.script(FaultRule::on_type("8 s", Fault::Slow(Duration::from_secs(8))));
    for n in 0..20 {
        stage.write(&format!("a{n}"), &["14 s"]).await;
    }
    stage
        .run(async {
            stage.after(1000).await;
            let mine = stage.script.worker();
            let join = async |name: &str| {
                let other = Worker::new(mine.pipeline.clone(), name);
                stage.table.heartbeat(&other, LONG).await.unwrap();
            };
            join("second").await;
            stage.after(11_000).await;
            for n in 20..40 {
                stage.write(&format!("a{n}"), &["8 s"]).await;
            }
            stage.after(1000).await;
            join("third").await;
            join("fourth").await;
            stage.after(20_000).await;
            assert_eq!(stage.script.count("release", At::Snapshot), 2, "in two steps");
            assert_eq!(stage.broker.abandoned(), 1, "only the start abandons");
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_settle_names_no_more_events_than_its_limit() {
    let mut stage = Stage::new();
    stage.limits.settle_events = 10;
    for n in 0..50 {
        stage.write(&format!("a{n}"), &["x"]).await;
    }
    stage.broker.script(FaultRule::always(refuse(FailureClass::Transient)).times(50));
    stage.run(stage.until_settled()).await;
    let most = stage.script.settles().iter().map(outbox_core::Settlements::len).max();
    assert_eq!(most, Some(10));
}
