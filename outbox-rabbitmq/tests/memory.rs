//! What a publisher holds in memory. The only test of its process, which it measures.

#![allow(clippy::unwrap_used)] // A test.

mod common;

use std::time::{Duration, Instant};

use common::proxy::Proxy;
use common::{
    Broker, CONFIRMED, Row, address, classes, messages, publish, publisher, random, shared,
    through, to_queues, verdicts,
};
use outbox_core::{Batch, Publisher};

/// B190, B185: a slow line to the broker costs time and neither memory nor the connection: what waits, waits in the caller's
/// batch, and the heartbeat sees that the broker lives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_broker_costs_neither_memory_nor_the_connection() {
    let own = Broker::connect(&shared()).await;
    let queue = random("slow");
    own.queue(&queue, &[]).await;
    let proxy = Proxy::before(address(&shared()));
    let mut config = to_queues(&through(&shared(), &proxy.address()));
    config.window_bytes = 1_000_000;
    config.heartbeat = Duration::from_secs(1);
    let publisher = publisher(&config);
    assert_eq!(classes(&publish(&publisher, messages(&queue, 20)).await), [CONFIRMED; 20]);
    proxy.limit(Some(6_000_000));
    let payload = vec![b'x'; 10_000];
    let message = |at: usize| {
        let key = format!("key-{at}");
        Row { aggregate_id: Some(&key), payload: Some(&payload), ..Row::default() }.to(&queue)
    };
    let batch = Batch::new((0..4_000).map(message).collect());
    let before = resident_bytes();
    let watching = async {
        let mut most = 0;
        while batch.open() > 0 {
            most = most.max(resident_bytes());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        most
    };
    let started = Instant::now();
    let ((), most) = tokio::join!(publisher.publish(batch.clone()), watching);
    assert!(started.elapsed() > Duration::from_secs(4), "{:?}", started.elapsed());
    assert_eq!(classes(&verdicts(&batch)), [CONFIRMED; 4_000]);
    assert!(publisher.stats().contains(&("connections_opened", 1.0)));
    let grown = most.saturating_sub(before);
    assert!(grown < 20_000_000, "{grown} bytes of 40,000,000 are in the publisher");
}

/// What this process has in memory.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1_024
}
