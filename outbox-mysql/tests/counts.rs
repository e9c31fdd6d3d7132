//! What a settled event costs in the server's logs. A file of its own, because those count for the whole server: no other test
//! may write to it meanwhile.
#![allow(clippy::unwrap_used, reason = "also in helpers")]

mod common;

use common::{Harness, MARIADB, MYSQL, shared};
use outbox_core::{
    ClaimRequest, Delivered, LaneCursor, NewEvent, Pipeline, Position, Settlements, Store as _,
    Worker,
};
use outbox_mysql::PayloadType;
use sqlx::{AssertSqlSafe, Row as _};

const EVENTS: usize = 2_000;

/// A delivered event is deleted for less than half of what marking it would cost, in the redo log and in the binary log.
#[tokio::test]
async fn a_settled_event_costs_less_than_half_of_a_marking_update() {
    for (name, server) in [("MySQL", MYSQL), ("MariaDB", MARIADB)] {
        let outbox = Harness::new(&shared(server), PayloadType::LongText).await;
        outbox
            .execute("alter table outbox add published_on datetime(6), add index (published_on, position)")
            .await;
        append(&outbox).await;
        let before = logs(&outbox).await;
        outbox.execute("update outbox set published_on = utc_timestamp(6)").await;
        let marked = logs(&outbox).await.since(&before);
        outbox.execute("truncate table outbox; alter table outbox drop published_on").await;

        append(&outbox).await;
        let worker = Worker::new(Pipeline::new("test").unwrap(), "test");
        outbox.store.join(&worker).await.unwrap();
        outbox.store.acquire(&worker, u16::MAX).await.unwrap();
        let leases =
            outbox.store.heartbeat(&worker, std::time::Duration::from_secs(30)).await.unwrap();
        let cursor = |lane| LaneCursor::new(lane, 0, Position::MAX, 1_000);
        let lanes = (0..16).map(cursor).collect();
        let request = ClaimRequest::new(worker.pipeline.clone(), lanes, 1_000, 64 << 20);
        let mut settled = Logs::default();
        for _ in 0..EVENTS / 1_000 {
            let events = outbox.store.claim(&request).await.unwrap().events;
            let mut settlements = Settlements::new(worker.clone());
            settlements.lanes = leases.lanes.iter().map(|it| (it.lane, it.epoch)).collect();
            settlements.delivered =
                events.iter().map(|event| Delivered::new(event.receipt(), "t")).collect();
            let before = logs(&outbox).await;
            assert_eq!(outbox.store.settle(&settlements).await.unwrap().missing, 0);
            settled = settled.plus(&logs(&outbox).await.since(&before));
        }
        println!("{name}: an event settled {}, marked {}", settled.each(), marked.each());
        assert_eq!(outbox.number("select count(*) from outbox").await, 0);
        assert!(settled.redo * 2 < marked.redo, "{name}: {settled:?} against {marked:?}");
        assert!(settled.binary * 10 < marked.binary * 6, "{name}: {settled:?} against {marked:?}");
    }
}

async fn append(outbox: &Harness) {
    let event = |n| {
        let builder = NewEvent::builder("order", format!("order-{}", n % 500), "OrderPaid.v1");
        let payload = format!("\"{}\"", "x".repeat(253));
        builder.payload(payload).header("tenant", "0123456789".repeat(5)).build().unwrap()
    };
    let events: Vec<NewEvent> = (0..EVENTS).map(event).collect();
    let mut transaction = outbox.transaction().await;
    transaction.outbox.append(&mut transaction.transaction, &events).await.unwrap();
    transaction.transaction.commit().await.unwrap();
}

/// How far the server has written, in bytes.
#[derive(Debug, Default)]
struct Logs {
    redo: u64,
    binary: u64,
}

impl Logs {
    fn since(&self, before: &Self) -> Self {
        Self { redo: self.redo - before.redo, binary: self.binary - before.binary }
    }

    fn plus(&self, other: &Self) -> Self {
        Self { redo: self.redo + other.redo, binary: self.binary + other.binary }
    }

    fn each(&self) -> String {
        let events = EVENTS as u64;
        format!("{} B redo and {} B binary log", self.redo / events, self.binary / events)
    }
}

async fn logs(outbox: &Harness) -> Logs {
    let rows = |sql: &'static str| async move {
        sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&outbox.pool).await
    };
    let status = rows("show engine innodb status").await.unwrap();
    let status: String = status[0].get_unchecked(2);
    let line = status.lines().find(|line| line.starts_with("Log sequence number")).unwrap();
    let redo = line.split_whitespace().last().unwrap().parse().unwrap();
    // All files together: a new one may begin meanwhile.
    let files = rows("show binary logs").await.unwrap();
    let binary = files.iter().map(|file| file.get_unchecked::<i64, _>(1).cast_unsigned()).sum();
    Logs { redo, binary }
}
