//! Schedules of verdicts, silence, deaths and refusals.

use outbox_core::memory::FaultRule;

use super::*;
use crate::script::At;

#[tokio::test(start_paused = true)]
async fn an_open_message_at_the_deadline_is_not_sent_again_and_its_late_confirmation_counts() {
    let stage = Stage::new();
    let late = Fault::Slow(stage.timing.publish_deadline * 2);
    stage.broker.script(FaultRule::on_type("slow", late).times(1));
    stage.write("a", &["slow", "behind"]).await;
    stage.run(stage.until_settled()).await;
    assert_eq!(stage.arrived(), ["slow", "behind"]);
    assert_eq!(stage.broker.abandoned(), 1, "only the start abandons");
    assert!(stage.table.dead().is_empty());
}

/// The publisher has let go of the message, so that nothing will be heard of it any more.
#[tokio::test(start_paused = true)]
async fn a_message_that_nobody_answers_for_is_abandoned_before_it_is_sent_again() {
    let stage = Stage::new();
    stage.broker.script(FaultRule::on_type("lost", Fault::Silent).times(1));
    stage.write("a", &["lost", "behind"]).await;
    stage.run(stage.until_settled()).await;
    assert_eq!(stage.arrived(), ["lost", "behind"]);
    assert_eq!(stage.broker.abandoned(), 2, "at the start, and then");
}

#[tokio::test(start_paused = true)]
async fn only_the_first_undelivered_event_of_an_aggregate_is_charged() {
    let stage = Stage::new();
    stage.broker.script(FaultRule::on_type("bad", refuse(FailureClass::Transient)).times(1));
    stage.write("a", &["bad", "2", "3"]).await;
    stage.run(stage.until_settled()).await;
    let attempts: Vec<u32> =
        stage.broker.messages().iter().map(outbox_core::Message::attempts).collect();
    assert_eq!(attempts, [1, 0, 0]);
}

/// It kills the connection whenever it is sent: among others that pass it is found and counted, and no other is.
#[tokio::test(start_paused = true)]
async fn poison_that_looks_like_an_outage_is_counted_while_others_pass() {
    let mut stage = Stage::new();
    stage.retry = stage.retry.with_max_attempts(2);
    stage.broker.script(FaultRule::on_type("poison", refuse(FailureClass::Unavailable)));
    stage.write("p", &["poison"]).await;
    stage
        .run(async {
            for n in 0..200 {
                stage.write(&format!("a{n}"), &["good"]).await;
                stage.after(300).await;
            }
            stage.until_settled().await;
        })
        .await;
    assert_eq!(stage.arrived().len(), 200);
    assert!(stage.broker.messages().iter().all(|message| message.attempts() == 0));
    assert_eq!(stage.table.dead()[0].event.event_type(), "poison");
}

#[tokio::test(start_paused = true)]
async fn during_an_outage_one_event_probes_with_back_off_and_nothing_is_written() {
    let stage = Stage::new();
    stage.broker.outage(true);
    for n in 0..50 {
        stage.write(&format!("a{n}"), &["x"]).await;
    }
    stage
        .run(async {
            stage.after(60_000).await;
            let calls = stage.broker.calls();
            assert!((5..=12).contains(&calls), "{calls} probes in a minute, at most 15 s apart");
            assert!(stage.script.settles().is_empty());
            stage.broker.outage(false);
            stage.until_settled().await;
        })
        .await;
}

/// Its calls end at once, so nothing but the relay slows them down.
#[tokio::test(start_paused = true)]
async fn a_publisher_that_always_panics_is_asked_as_rarely_as_one_that_is_down() {
    let stage = Stage::new();
    for n in 0..50 {
        stage.write(&format!("a{n}"), &["x"]).await;
    }
    stage.broker.script(FaultRule::always(Fault::Panic));
    stage
        .run(async {
            stage.after(60_000).await;
            let calls = stage.broker.calls();
            assert!((5..=12).contains(&calls), "{calls} calls in a minute");
            assert!(stage.script.settles().is_empty());
            stage.broker.clear_script();
            stage.until_settled().await;
        })
        .await;
}

/// Each end of open messages cuts off what others have on their way.
#[tokio::test(start_paused = true)]
async fn calls_that_end_without_an_answer_while_others_pass_cut_others_off_twice_a_second_at_most()
{
    let stage = Stage::new();
    stage.broker.script(FaultRule::on_type("lost", Fault::Panic));
    stage.write("l", &["lost"]).await;
    stage
        .run(async {
            for n in 0..1000 {
                stage.write(&format!("a{n}"), &["good"]).await;
                stage.after(10).await;
            }
            let abandoned = stage.broker.abandoned();
            assert!((2..=21).contains(&abandoned), "{abandoned} times in 10 seconds");
            stage.broker.clear_script();
            stage.until_settled().await;
        })
        .await;
    assert_eq!(stage.arrived().len(), 1001);
}

#[tokio::test(start_paused = true)]
async fn calls_that_fail_together_pause_no_longer_than_one() {
    let mut stage = Stage::new();
    stage.limits.call_events = 10;
    for n in 0..40 {
        stage.write(&format!("a{n}"), &["x"]).await;
    }
    stage.broker.outage(true);
    stage
        .run(async {
            stage.after(100).await;
            assert_eq!(stage.broker.calls(), 4, "in flight together");
            stage.broker.outage(false);
            stage.after(1000).await;
            assert_eq!(stage.arrived().len(), 40);
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_topic_that_appears_after_a_second_is_served_soon() {
    let stage = Stage::new();
    for n in 0..10 {
        stage.write(&format!("a{n}"), &["x"]).await;
    }
    stage.broker.script(FaultRule::always(refuse(FailureClass::Refused)));
    stage
        .run(async {
            stage.after(1500).await;
            stage.broker.clear_script();
            stage.after(4000).await;
            assert_eq!(stage.arrived().len(), 10);
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn no_call_starts_that_the_lease_may_not_outlive() {
    let stage = Stage::new();
    stage
        .run(async {
            stage.after(1000).await;
            stage.script.close("heartbeat", At::Reply);
            // The last answer is at most 10 s old; 20 s later what is left is below 15 s and the margin.
            stage.after(19_000).await;
            stage.write("a", &["x"]).await;
            stage.after(3000).await;
            assert_eq!(stage.broker.calls(), 0);
            stage.script.open("heartbeat", At::Reply);
            stage.until_settled().await;
        })
        .await;
}

/// Covers H024.
#[tokio::test(start_paused = true)]
async fn a_lane_lost_with_open_messages_abandons_them() {
    let stage = Stage::new();
    stage.broker.script(FaultRule::on_type("x", Fault::Slow(LONG)).times(1));
    stage.write("a", &["x"]).await;
    stage
        .run(async {
            stage.after(2000).await;
            assert_eq!(stage.broker.abandoned(), 1);
            stage.script.close("heartbeat", At::Reply);
            stage.after(40_000).await;
            assert_eq!(stage.broker.abandoned(), 2);
            stage.script.open("heartbeat", At::Reply);
            stage.until_settled().await;
        })
        .await;
    assert_eq!(stage.arrived(), ["x"]);
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_what_is_open_and_settles_it() {
    let stage = Stage::new();
    stage.broker.script(FaultRule::always(Fault::Slow(Duration::from_secs(5))));
    stage.write("a", &["x"]).await;
    stage.run(stage.after(1000)).await;
    assert_eq!(stage.arrived(), ["x"]);
    stage.table.assert_nothing_pending();
}

#[tokio::test(start_paused = true)]
async fn under_hold_a_blocked_head_stands_until_an_operator_decides_and_a_discard_frees_in_order() {
    let mut stage = Stage::new();
    stage.retry = stage.retry.with_exhausted(outbox_core::Exhausted::Hold);
    stage.broker.script(FaultRule::on_type("bad", refuse(FailureClass::Permanent)));
    stage.write("a", &["bad", "2"]).await;
    stage
        .run(async {
            stage.after(5000).await;
            assert_eq!(stage.arrived(), [""; 0]);
            let blocked = stage.table.pending()[0].id().clone();
            assert!(stage.table.discard(&blocked));
            stage.write("a", &["3"]).await;
            stage.until_settled().await;
        })
        .await;
    assert_eq!(stage.arrived(), ["2", "3"]);
}

/// Each call holds all its messages until the last of them is confirmed.
#[tokio::test(start_paused = true)]
async fn calls_that_are_confirmed_in_part_hold_no_more_than_the_window_before_others_wait() {
    let mut stage = Stage::new();
    stage.limits = Limits::default().with_bytes(6_000, 1_500);
    stage.broker.script(FaultRule::on_type("slow", Fault::Slow(Duration::from_secs(10))));
    let long = "x".repeat(200);
    for n in 0..20 {
        stage.write(&format!("slow {n} {long}"), &["slow"]).await;
        for m in 0..5 {
            stage.write(&format!("{n} {m} {long}"), &["quick"]).await;
        }
    }
    stage
        .run(async {
            stage.after(9_000).await;
            let passed = stage.arrived().len();
            assert!((10..=50).contains(&passed), "{passed} of 100 events have passed");
            stage.until_settled().await;
        })
        .await;
    assert_eq!(stage.arrived().len(), 120);
}

/// What is not settled comes again: waiting for a database that is down gains nothing.
#[tokio::test(start_paused = true)]
async fn a_stop_ends_in_time_though_the_database_is_down() {
    let stage = Stage::new();
    stage.write("a", &["x"]).await;
    let stop = async {
        stage.until_arrived(1).await;
        stage.script.close("settle", At::Snapshot);
        stage.script.close("heartbeat", At::Snapshot);
        stage.write("a", &["y"]).await;
        stage.until_arrived(2).await;
        tokio::time::Instant::now()
    };
    let begin = std::sync::Mutex::new(None);
    stage.run(async { *begin.lock().unwrap() = Some(stop.await) }).await;
    let took = begin.into_inner().unwrap().unwrap().elapsed();
    let bound = stage.timing.shutdown_deadline + stage.timing.statement_deadline;
    assert!(took <= bound + Duration::from_secs(1), "{took:?}");
}
