//! One store with one publisher, through one fault of each kind.

use std::time::Duration;

use tokio::task::block_in_place;

use crate::ledger::{Ledger, MySqlLedger, PostgresLedger, SqliteLedger};
use crate::servers::{Broker, BrokerKind, StoreKind, StoreServer};
use crate::support::checker::Report;
use crate::support::job::Job;
use crate::support::relay_process::RelaySettings;
use crate::writer;

const LEASE: Duration = Duration::from_secs(6);
/// Events that one relay holds at most between claim and settle.
const WINDOW: usize = 500;
const BOTH_WINDOWS: usize = 2 * WINDOW;
/// Messages that the reader of a queue has taken and not acknowledged, and that come to it again when its broker goes.
const OF_THE_READER: usize = 1;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) store: StoreKind,
    pub(crate) broker: BrokerKind,
}

impl Pair {
    /// On servers of its own, with at least this many events.
    pub(crate) async fn run(self, events: usize) -> Report {
        let begin = std::time::Instant::now();
        println!("{self:?}");
        let (server, broker) = block_in_place(|| {
            std::thread::scope(|scope| {
                let broker = scope.spawn(|| Broker::start(self.broker));
                (StoreServer::start(self.store), broker.join().expect("the broker starts"))
            })
        });
        println!("servers: {:.1} s", begin.elapsed().as_secs_f64());
        let report = match self.store {
            StoreKind::Postgres => run::<PostgresLedger>(&server, &broker, events).await,
            StoreKind::MySql | StoreKind::MariaDb => {
                run::<MySqlLedger>(&server, &broker, events).await
            }
            StoreKind::Sqlite => run::<SqliteLedger>(&server, &broker, events).await,
        };
        println!("{self:?}: {:.1} s", begin.elapsed().as_secs_f64());
        report
    }
}

async fn run<L: Ledger>(server: &StoreServer, broker: &Broker, events: usize) -> Report {
    let ledger = L::create(&server.url()).await;
    let at = broker.at();
    let account_type = format!("account-{:08x}", fastrand::u32(..));
    let reader = broker.listen(&at.router().destination(&account_type, "")).await;
    let (workload, outages) = writer::start(&ledger, &account_type, &at.router());
    let settings =
        RelaySettings { store: ledger.at(), broker: at, window_events: WINDOW, lease: LEASE };
    let mut job = Job::start(ledger, workload, &settings);
    // A transaction has 1.8 events on average, of which none or all commit.
    let portion = (events as f64 / 1.5 / 5.0).ceil() as usize;

    // What is written while the broker stands still is still there when a relay is killed.
    job.write_through("kill", BOTH_WINDOWS, portion, async |job| {
        broker.freeze();
        job.write(portion).await;
        job.relays[0].kill9();
        broker.thaw();
        job.relays[0].start_again();
    })
    .await;
    // SQLite has no server: whoever is frozen while it holds the file's lock stops the others too.
    let has_server = !matches!(server, StoreServer::Sqlite(_));
    let frozen_windows = if has_server { WINDOW } else { BOTH_WINDOWS };
    job.write_through("freeze", frozen_windows, portion, async |job| {
        let _outage = (!has_server).then(|| outages.begin());
        job.relays[1].freeze();
        tokio::time::sleep(LEASE + LEASE / 2).await;
        job.relays[1].thaw();
    })
    .await;
    job.write_through("broker restart", BOTH_WINDOWS + OF_THE_READER, portion, async |_| {
        match broker {
            Broker::Kafka(broker) => block_in_place(|| broker.restart()),
            Broker::RabbitMq(broker) => block_in_place(|| broker.restart()),
            // Its queues would be gone: it stands still for longer than a publish call waits.
            Broker::Sqs(_) => {
                broker.freeze();
                tokio::time::sleep(LEASE / 2 + LEASE / 6).await;
                broker.thaw();
            }
        }
    })
    .await;
    // Where there is no server, none can crash: `kill` has ended a process in the middle of its statements.
    if has_server {
        // What stands at the broker is confirmed when nobody can write that down.
        job.write_through("database crash", BOTH_WINDOWS, portion / 2, async |job| {
            broker.freeze();
            job.write(portion / 2).await;
            broker.thaw();
            let _outage = outages.begin();
            server.crash();
        })
        .await;
    } else {
        job.write(portion).await;
    }
    let report = job.finish(async || reader.finish().await).await;
    assert!(report.delivered >= events, "{} events are less than {events}", report.delivered);
    report
}
