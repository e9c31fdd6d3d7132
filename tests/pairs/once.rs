//! From a service's commit to a consumer's effect: exactly once, whatever is killed in between.

use std::time::{Duration, Instant};

use crate::consumer::Consumer;
use crate::ledger::Ledger;
use crate::support::process::Process;
use crate::support::relay_process::{BrokerAt, RelayProcess, RelaySettings};
use crate::support::{kafka, rabbitmq};
use crate::writer;

/// Short, since the lanes of a killed relay wait for its end.
const LEASE: Duration = Duration::from_secs(2);
const WINDOW: usize = 200;
/// Transactions, of one to three events each, that are written for each kill; one in ten rolls back.
const TRANSACTIONS: usize = 60;
/// Events that are booked before a kill, at most: fewer than are written for it.
const BOOKED: usize = 40;
const LIMIT: Duration = Duration::from_secs(120);

/// Writes, relays and books on this server through this broker, and kills one of two relays or the consumer again and again,
/// at random.
pub(crate) async fn run<L: Ledger>(server_url: &str, broker: BrokerAt, kills: usize) {
    let seed = fastrand::u64(..);
    println!("{broker:?}, seed of the kills {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let committed = L::create(server_url).await;
    let effects = L::create(server_url).await;
    let account_type = format!("account-{:08x}", fastrand::u32(..));
    let destination = broker.router().destination(&account_type, "");
    create(&broker, &destination).await;
    let (workload, _) = writer::start(&committed, &account_type, &broker.router());
    let logs = tempfile::Builder::new().prefix("outbox-once-").tempdir().unwrap().keep();
    println!("logs of the processes are in {}", logs.display());
    let settings = RelaySettings {
        store: committed.at(),
        broker: broker.clone(),
        window_events: WINDOW,
        lease: LEASE,
    };
    let mut relays =
        ["first", "second"].map(|name| RelayProcess::start(&settings, &logs.join(name)));
    let consumer = Consumer { broker, source: destination, ledger: effects.at() };
    let mut consumer = Process::start(&consumer, &logs.join("consumer"));

    for _ in 0..kills {
        let booked = effects.bookings().await.len();
        workload.release(TRANSACTIONS);
        until_booked(&effects, booked + random.usize(..BOOKED)).await;
        match random.usize(..4) {
            relay @ (0 | 1) => {
                relays[relay].kill9();
                relays[relay].start_again();
            }
            _ => {
                consumer.kill9();
                consumer.start_again();
            }
        }
    }

    workload.finish().await;
    assert!(committed.drained(LIMIT).await, "the relays do not work");
    tokio::task::block_in_place(|| {
        relays.iter_mut().for_each(RelayProcess::stop);
        consumer.stop();
    });
    let (expected, booked) = (committed.bookings().await, effects.bookings().await);
    println!("{} events, {} effects, {kills} kills", expected.len(), booked.len());
    assert!(booked == expected, "the effects are others than what was committed");
    assert_eq!(effects.balances().await, committed.balances().await);
    std::fs::remove_dir_all(logs).unwrap();
}

async fn create(broker: &BrokerAt, destination: &str) {
    match broker {
        BrokerAt::Kafka(bootstrap) => {
            kafka::create_topics(bootstrap, &[destination.to_owned()]).await;
        }
        BrokerAt::RabbitMq(url) => rabbitmq::create_queue(url, destination).await,
        BrokerAt::Sqs(_) => unimplemented!("no test consumes from SQS this way"),
    }
}

async fn until_booked(effects: &impl Ledger, events: usize) {
    let start = Instant::now();
    while effects.bookings().await.len() < events {
        assert!(start.elapsed() < LIMIT, "less than {events} events are booked");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
