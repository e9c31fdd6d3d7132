//! What a relay reports to whoever watches it in the same process.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outbox_core::memory::{Fault, FaultRule, MemoryPublisher, MemoryStore};
use outbox_core::{
    ClaimRequest, Claimed, Failure, FailureClass, LaneRead, Monitor, NewEvent, Relay, Report,
    Settled, Settlements, Store, StoreError, Worker, Writer as _, async_trait,
};

#[tokio::test(start_paused = true)]
async fn a_report_follows_the_relay_through_an_outage() {
    let (store, publisher, monitor) = (MemoryStore::new(), MemoryPublisher::new(), Monitor::new());
    assert_eq!(monitor.report(), Report::default(), "no relay reports yet");
    publisher.outage(true);
    publisher.script(FaultRule::on_type("Bad", refused()).times(1));
    write(&store, &["Created", "Bad"]).await;
    let relay = Relay::new(Arc::new(store.clone()), Arc::new(publisher.clone()));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running =
        tokio::spawn(relay.with_monitor(monitor.clone()).with_virtual_time().run(async {
            let _ = stopped.await;
        }));

    let outage = until(&monitor, |report| report.destination_down.is_some()).await;
    assert!(outage.joined && outage.lanes_owned > 0, "{outage:?}");
    assert_eq!((outage.window_events, outage.delivered, outage.failed), (2, 0, 0), "{outage:?}");
    let pending = until(&monitor, |report| report.backlog.is_some()).await.backlog;
    assert_eq!(pending.unwrap().pending, 2);

    publisher.outage(false);
    let over = until(&monitor, |report| report.delivered + report.failed == 2).await;
    assert_eq!((over.delivered, over.failed), (1, 1), "{over:?}");
    until(&monitor, |report| report.destination_down.is_none()).await;

    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
    let ended = monitor.report();
    assert_eq!((ended.joined, ended.lanes_owned, ended.window_events), (false, 0, 0), "{ended:?}");
    assert_eq!((ended.delivered, ended.failed, ended.backlog), (1, 1, None));
}

/// A store that fails says why until it works again, and so does a life that ended.
#[tokio::test(start_paused = true)]
async fn a_failure_is_told_until_the_store_works_again() {
    let (store, monitor) = (Arc::new(Troubled::default()), Monitor::new());
    let relay = Relay::new(store.clone(), Arc::new(MemoryPublisher::new()));
    let relay = relay.with_monitor(monitor.clone()).with_virtual_time();
    store.cannot_join.store(true, Ordering::Relaxed);
    store.cannot_claim.store(true, Ordering::Relaxed);
    let running = tokio::spawn(relay.run(std::future::pending()));

    let restarted = until(&monitor, |report| report.restarts > 0).await;
    assert_eq!(restarted.failure.as_deref(), Some("nobody may join"));
    assert!(!restarted.joined);
    store.cannot_join.store(false, Ordering::Relaxed);
    let told = until(&monitor, |report| report.failure.as_deref() == Some("claim: no rows")).await;
    assert!(told.joined, "{told:?}");
    store.cannot_claim.store(false, Ordering::Relaxed);
    until(&monitor, |report| report.failure.is_none()).await;
    running.abort();
}

fn refused() -> Fault {
    Fault::Refuse(Failure::new(FailureClass::Permanent, "too large"))
}

async fn write(store: &MemoryStore, types: &[&str]) {
    let mut transaction = store.begin();
    for event_type in types {
        let event = NewEvent::builder("order", *event_type, *event_type).build().unwrap();
        store.append(&mut transaction, &[event]).await.unwrap();
    }
    transaction.commit();
}

/// The first report of which `is` is true, within a minute of the relay's time.
async fn until(monitor: &Monitor, is: impl Fn(&Report) -> bool) -> Report {
    let looked = async {
        loop {
            let report = monitor.report();
            if is(&report) {
                return report;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let looked = tokio::time::timeout(Duration::from_secs(60), looked).await;
    looked.unwrap_or_else(|_| panic!("it stays at {:?}", monitor.report()))
}

/// An empty store that fails on demand.
#[derive(Debug, Default)]
struct Troubled {
    cannot_join: AtomicBool,
    cannot_claim: AtomicBool,
}

#[async_trait]
impl Store for Troubled {
    async fn join(&self, _: &Worker) -> Result<u16, StoreError> {
        match self.cannot_join.load(Ordering::Relaxed) {
            true => Err(StoreError::unavailable("nobody may join")),
            false => Ok(1),
        }
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, StoreError> {
        match self.cannot_claim.load(Ordering::Relaxed) {
            true => Err(StoreError::unavailable("no rows")),
            false => Ok(Claimed::new(Vec::new(), vec![LaneRead::ToEnd; request.lanes.len()])),
        }
    }

    async fn settle(&self, _: &Settlements) -> Result<Settled, StoreError> {
        Ok(Settled::default())
    }
}
