//! Lanes whose owners died one after another: what is sent is counted before, and nothing else is.

use outbox_core::memory::FaultRule;
use outbox_core::{Batch, KeyOrder, Publisher, async_trait};
use tokio::sync::Notify;

use super::*;
use crate::script::At;

/// Covers H030.
#[tokio::test(start_paused = true)]
async fn in_a_lane_whose_owners_died_the_attempt_is_written_before_the_call() {
    let stage = Stage::new();
    stage.script.crashes(3);
    stage.write("a", &["1"]).await;
    stage.write("b", &["2"]).await;
    stage.broker.script(FaultRule::always(Fault::Slow(Duration::from_secs(1))));
    stage
        .run(async {
            stage.script.close("settle", At::Snapshot);
            stage.script.reached("settle", At::Snapshot).await;
            stage.after(1000).await;
            assert_eq!(stage.broker.calls(), 0, "sent before it was counted");
            stage.script.open("settle", At::Snapshot);
            stage.after(500).await;
            assert_eq!(stage.broker.calls(), 1, "not sent alone");
            let attempts: Vec<u32> =
                stage.table.pending().iter().map(outbox_core::Event::attempts).collect();
            assert_eq!(attempts, [1, 0], "only what is sent is counted");
            stage.until_settled().await;
            stage.after(1000).await;
        })
        .await;
    let recovered = stage.script.settles().iter().any(|settle| !settle.recovered.is_empty());
    assert!(recovered, "what was there at the take-over is settled");
}

/// There is always something new, and nothing tells what was there at the take-over.
#[tokio::test(start_paused = true)]
async fn without_a_watermark_too_a_lane_recovers_while_events_keep_coming() {
    let stage = Stage::with_watermark(1, Watermark::None);
    stage.script.crashes(3);
    stage
        .run(async {
            for n in 0..200 {
                stage.write(&format!("a{n}"), &["x"]).await;
                stage.write(&format!("b{n}"), &["x"]).await;
                stage.after(20).await;
            }
            let settles = stage.script.settles();
            assert!(settles.iter().any(|settle| !settle.recovered.is_empty()));
            stage.until_settled().await;
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn an_event_that_killed_its_senders_often_enough_is_given_up_unsent() {
    let mut stage = Stage::new();
    stage.retry = stage.retry.with_max_attempts(2);
    stage.script.crashes(3);
    stage.write("a", &["killer", "behind"]).await;
    stage.broker.script(FaultRule::on_type("killer", Fault::Silent));
    for calls in 1..=2 {
        let relay = tokio::spawn(stage.relay().run(std::future::pending::<()>()));
        stage.after(2000).await;
        relay.abort();
        assert_eq!(stage.broker.calls(), calls);
        stage.after(31_000).await;
    }
    stage.broker.clear_script();
    stage.run(stage.until_settled()).await;
    assert_eq!(stage.table.dead()[0].event.event_type(), "killer");
    assert_eq!(stage.arrived(), ["behind"]);
}

/// Whoever sends the killer dies before anything of its call is taken; ten of the thirteen know it, and count.
#[tokio::test(start_paused = true)]
async fn a_killer_takes_none_of_fifty_innocents_with_it() {
    let stage = Stage::new();
    let broker = Arc::new(Deadly { inner: stage.broker.clone(), met: Notify::new() });
    stage.write("k", &["killer"]).await;
    for n in 0..50 {
        stage.write(&format!("a{n}"), &["innocent"]).await;
    }
    for _ in 0..13 {
        let relay = stage.relay_to(broker.clone());
        let life = tokio::spawn(relay.run(std::future::pending::<()>()));
        tokio::time::timeout(LONG, broker.met.notified()).await.unwrap();
        life.abort();
        stage.after(31_000).await;
    }
    stage.relay_to(broker).run(stage.until_settled()).await.unwrap();
    let dead: Vec<String> =
        stage.table.dead().iter().map(|letter| letter.event.event_type().to_owned()).collect();
    assert_eq!(dead, ["killer"]);
    assert_eq!(stage.arrived(), ["innocent"; 50]);
    let most = stage.broker.messages().iter().map(outbox_core::Message::attempts).max();
    assert!(most <= Some(1), "an innocent was counted {most:?} times");
}

/// Relays die of something else: what they had counted and not sent, or sent, is one event at each death.
#[tokio::test(start_paused = true)]
async fn a_death_costs_one_event_an_attempt() {
    let stage = Stage::new();
    stage.script.crashes(3);
    for n in 0..50 {
        stage.write(&format!("a{n}"), &["innocent"]).await;
    }
    stage.broker.script(FaultRule::always(Fault::Silent));
    for deaths in 1..=5 {
        let life = tokio::spawn(stage.relay().run(std::future::pending::<()>()));
        stage.after(2000).await;
        life.abort();
        stage.after(31_000).await;
        let counted: u32 = stage.table.pending().iter().map(outbox_core::Event::attempts).sum();
        assert!(counted <= deaths, "{counted} attempts after {deaths} deaths");
    }
}

/// It stops between the write and the call.
#[tokio::test(start_paused = true)]
async fn a_stop_takes_back_what_was_counted_and_not_sent() {
    let stage = Stage::new();
    stage.script.crashes(3);
    stage.write("a", &["1"]).await;
    for _ in 0..5 {
        stage.script.close("settle", At::Reply);
        let answer = async {
            stage.script.reached("settle", At::Reply).await;
            stage.after(1000).await;
            stage.script.open("settle", At::Reply);
        };
        tokio::join!(answer, stage.run(stage.script.reached("settle", At::Reply)));
    }
    assert_eq!(stage.broker.calls(), 0);
    assert_eq!(stage.table.pending()[0].attempts(), 1, "the one that holds its aggregate");
}

/// A publisher that kills its relay when it is given the killer; the test buries the relay.
#[derive(Debug)]
struct Deadly {
    inner: MemoryPublisher,
    met: Notify,
}

#[async_trait]
impl Publisher for Deadly {
    async fn publish(&self, batch: Batch) {
        if batch.messages().iter().any(|message| message.event_type() == "killer") {
            self.met.notify_one();
            std::future::pending::<()>().await;
        }
        self.inner.publish(batch).await;
    }

    async fn abandon(&self) {
        self.inner.abandon().await;
    }

    fn key_order(&self) -> KeyOrder {
        self.inner.key_order()
    }
}
