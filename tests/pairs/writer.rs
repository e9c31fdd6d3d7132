//! Services that book on accounts and append an event about each booking, and remember what they meant.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outbox::{Router, Writer as _, async_trait};

use crate::ledger::{ACCOUNTS, Ledger, account};
use crate::support::checker::Intent;
use crate::support::event_maker::{EventMaker, new_event};
use crate::support::workload::{Workload, Writer};

const WRITERS: u64 = 4;
/// One transaction in this many is rolled back.
const ROLLED_BACK: f64 = 0.1;
/// The pause of a service before it tries again, in an outage of its database.
const PAUSE: Duration = Duration::from_millis(50);

/// Starts writers on the accounts of this ledger, which call them by this aggregate type.
pub(crate) fn start<L: Ledger>(
    ledger: &L,
    account_type: &str,
    router: &Router,
) -> (Workload, Outages) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let aggregates: Arc<[(String, String)]> =
        (0..ACCOUNTS).map(|number| (account_type.to_owned(), account(number))).collect();
    let outages = Outages::default();
    let writers = (0..WRITERS).map(|number| -> Box<dyn Writer> {
        // Not every broker takes an event without a payload.
        let maker = EventMaker::new(seed, number, aggregates.clone(), router.clone(), 0.0);
        Box::new(Service { ledger: ledger.clone(), maker, outages: outages.clone() })
    });
    (Workload::start(writers), outages)
}

/// The times when the database does not work, which excuse a failed transaction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outages(Arc<AtomicU64>);

impl Outages {
    /// Begins one, which lasts as long as its value.
    pub(crate) fn begin(&self) -> Outage {
        self.0.fetch_add(1, Ordering::SeqCst);
        Outage(self.clone())
    }

    /// Odd during an outage.
    fn now(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// An outage under way.
#[derive(Debug)]
pub(crate) struct Outage(Outages);

impl Drop for Outage {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Ordering::SeqCst);
    }
}

struct Service<L> {
    ledger: L,
    maker: EventMaker,
    outages: Outages,
}

#[async_trait]
impl<L: Ledger> Writer for Service<L> {
    async fn transaction(&mut self) -> Vec<Intent> {
        let aggregate = self.maker.aggregates(1).remove(0);
        loop {
            let before = self.outages.now();
            match self.book(&aggregate).await {
                Ok(intents) => return intents,
                Err(error) => {
                    let excused = !before.is_multiple_of(2) || self.outages.now() != before;
                    assert!(excused, "a booking fails without a reason: {error:?}");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

impl<L: Ledger> Service<L> {
    /// One to three bookings on an account, which the first of them locks.
    async fn book(&mut self, aggregate: &(String, String)) -> anyhow::Result<Vec<Intent>> {
        let mut tx = self.ledger.begin().await?;
        let mut intents = Vec::new();
        for _ in 0..self.maker.random.usize(1..=3) {
            let version = L::next_version(&mut tx, &aggregate.1).await?;
            let intent = self.maker.event(aggregate, version);
            // The version is the amount: another one each time, so that a balance tells which booking it lacks.
            L::book(&mut tx, &aggregate.1, version, &intent.id).await?;
            self.ledger.outbox().append(&mut tx, &[new_event(&intent)]).await?;
            intents.push(intent);
        }
        let committed = if self.maker.chance(ROLLED_BACK) {
            tx.rollback().await?;
            false
        } else if let Err(error) = tx.commit().await {
            // Nobody knows, but the database that comes back.
            println!("a commit has no answer: {error}");
            self.has_booked(&intents[0].id).await
        } else {
            true
        };
        for intent in &mut intents {
            intent.committed = committed;
        }
        Ok(intents)
    }

    async fn has_booked(&self, id: &str) -> bool {
        loop {
            match self.ledger.has_booked(id).await {
                Ok(has_booked) => return has_booked,
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }
}
