//! Schedules of lanes that change hands.

use outbox_core::memory::FaultRule;
use outbox_core::{Store as _, Worker};

use super::*;
use crate::script::At;

#[tokio::test(start_paused = true)]
async fn a_relay_that_finds_no_free_lane_does_not_hammer_the_database() {
    let (first, second) = (Stage::new(), Stage::new());
    let second = Stage { script: Script::new(&first.table), table: first.table.clone(), ..second };
    first
        .run(async {
            first.after(1000).await;
            let other = Box::pin(second.run(async {
                second.after(10_000).await;
                let asked = second.script.count("heartbeat", At::Snapshot);
                assert!(asked <= 30, "{asked} heartbeats in ten seconds");
            }));
            other.await;
        })
        .await;
}

/// Its snapshot was taken before the lane was given back.
#[tokio::test(start_paused = true)]
async fn a_lane_that_was_given_away_is_not_taken_back_from_an_older_heartbeat() {
    let mut stage = Stage::with_lanes(2);
    stage.timing.heartbeat = Duration::from_millis(500);
    stage.broker.script(FaultRule::always(Fault::Slow(Duration::from_secs(3))).times(8));
    stage
        .run(async {
            stage.after(100).await;
            for n in 0..8 {
                stage.write(&format!("a{n}"), &["x"]).await;
            }
            stage.after(300).await;
            let mine = stage.script.worker();
            let other = Worker::new(mine.pipeline.clone(), "other");
            stage.table.heartbeat(&other, stage.timing.lease).await.unwrap();
            // With messages open in both lanes, one of them is about to leave.
            stage.after(2000).await;
            stage.script.close("heartbeat", At::Reply);
            stage.script.reached("heartbeat", At::Reply).await;
            stage.script.reached("release", At::Snapshot).await;
            stage.after(10).await;
            stage.table.acquire(&other, 1).await.unwrap();
            let before = stage.script.claims().len();
            stage.script.open("heartbeat", At::Reply);
            stage.after(1000).await;
            let claims = stage.script.claims();
            assert!(claims.len() > before);
            assert!(claims[before..].iter().all(|claim| claim.lanes.len() == 1));
        })
        .await;
}

/// The next heartbeat would tell, but it is far away.
#[tokio::test(start_paused = true)]
async fn a_settle_that_is_refused_as_another_owners_stops_the_lane_at_once() {
    let stage = Stage::new();
    stage
        .run(async {
            stage.after(1000).await;
            let mine = stage.script.worker();
            let other = Worker::new(mine.pipeline.clone(), "other");
            stage.table.heartbeat(&other, stage.timing.lease).await.unwrap();
            stage.table.release(&mine, &[0]).await.unwrap();
            stage.table.acquire(&other, 1).await.unwrap();
            stage.write("a", &["1"]).await;
            stage.until_arrived(1).await;
            stage.after(1000).await;
            stage.write("a", &["2"]).await;
            stage.after(2000).await;
            assert_eq!(stage.arrived(), ["1"]);
            stage.table.leave(&other).await.unwrap();
            stage.until_settled().await;
        })
        .await;
}

/// A settle was narrowed by lane, and while the first part is written the lane of the second is lost.
#[tokio::test(start_paused = true)]
async fn a_part_of_which_nothing_is_left_does_not_hold_up_the_next() {
    let mut stage = Stage::with_lanes(3);
    stage.timing = stage.timing.with_poll(LONG, LONG);
    stage.timing.heartbeat = Duration::from_millis(500);
    for n in 0..12 {
        stage.write(&format!("a{n}"), &["x"]).await;
    }
    let pending = stage.table.pending();
    stage.script.refuse(pending.iter().find(|event| event.lane() == 2).unwrap().id());
    stage.script.close("settle", At::Reply);
    stage
        .run(async {
            stage.script.reached("settle", At::Reply).await;
            let mine = stage.script.worker();
            let other = Worker::new(mine.pipeline.clone(), "other");
            stage.table.heartbeat(&other, LONG).await.unwrap();
            stage.table.release(&mine, &[1]).await.unwrap();
            stage.table.acquire(&other, 1).await.unwrap();
            stage.after(1100).await;
            stage.script.open("settle", At::Reply);
            stage.after(3).await;
            let last = stage.script.settles().last().unwrap().lanes[0].0;
            assert_eq!(last, 2, "the lane of the last settle");
        })
        .await;
}

/// The future that tells to stop is ready once, and asked no more after that.
#[tokio::test(start_paused = true)]
async fn a_relay_that_fails_while_it_stops_does_not_start_anew() {
    let mut stage = Stage::new();
    stage.timing.heartbeat = Duration::from_millis(500);
    stage.broker.script(FaultRule::always(Fault::Slow(Duration::from_secs(5))));
    stage.write("a", &["x"]).await;
    let burial = async {
        stage.after(1200).await;
        stage.script.bury();
    };
    let run = stage.run(stage.after(1000));
    tokio::time::timeout(LONG, async { tokio::join!(run, burial) }).await.unwrap();
    assert_eq!(stage.broker.abandoned(), 1, "one life");
}
