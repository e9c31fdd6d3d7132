//! A store of your own, with the two functions that a store must have: `claim` and `settle`. Here a list in memory stands
//! for your database.
//!
//! `cargo run --example custom_store` relays events from it; `cargo test --example custom_store` holds it against the
//! contract with the conformance kit. `docs/custom-adapters.md` walks through it.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, UNIX_EPOCH};

use outbox::memory::MemoryPublisher;
use outbox::{
    Capabilities, ClaimRequest, Claimed, EventRow, EventRows, NewEvent, Position, Receipt, Relay,
    Settled, Settlements, Store, StoreError, Writer, async_trait,
};

/// The table. Cloning gives another handle on it.
#[derive(Clone, Debug, Default)]
struct ListStore(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    drawn: Position,
    /// In position order, committed only.
    rows: Vec<Row>,
    dead: Vec<(Row, String)>,
}

#[derive(Clone, Debug)]
struct Row {
    position: Position,
    event: NewEvent,
    created_at_micros: i64,
    attempts: u32,
    due: Option<Due>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Due {
    At(Instant),
    /// When an operator says so.
    Never,
}

#[async_trait]
impl Store for ListStore {
    /// One lane, one owner, and no knowledge of open transactions: the default. No scheduled events either.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default().with_scheduled(false)
    }

    /// A read: nothing in the table changes.
    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, StoreError> {
        let [cursor] = request.lanes[..] else { return Ok(Claimed::default()) };
        let table = self.table();
        let wanted = || table.rows.iter().filter(|row| table.is_wanted(row, request));
        let due = wanted().filter(|row| row.is_due() && row.position <= cursor.read);
        let is_in_range = |row: &&Row| row.position > cursor.from && row.position <= cursor.to;
        let fresh = wanted().filter(|row| row.due.is_none()).filter(is_in_range);
        let due: Vec<&Row> = due.take(request.limit as usize).collect();
        let fresh: Vec<&Row> = fresh.take(request.limit.min(cursor.take) as usize).collect();

        let mut cut = fresh.len() == request.limit as usize;
        let mut rows = EventRows::default();
        for row in due.into_iter().chain(fresh) {
            if !rows.is_empty() && rows.bytes() + row.size() > request.bytes {
                cut = true;
                break;
            }
            rows.push(&row.read());
        }
        let events = rows.finish();
        let reads = Claimed::reads_of(request, &events, cut);
        Ok(Claimed::new(events, reads))
    }

    /// One write: all of it happens under the lock, as it would in one transaction.
    async fn settle(&self, settlements: &Settlements) -> Result<Settled, StoreError> {
        let mut table = self.table();
        let mut missing = 0;
        for delivered in &settlements.delivered {
            missing += u64::from(table.remove(&delivered.receipt).is_none());
        }
        for dead in &settlements.dead {
            match table.remove(&dead.receipt) {
                Some(row) => {
                    let row = Row { attempts: dead.attempts, ..row };
                    table.dead.push((row, dead.reason.clone()));
                }
                None => missing += 1,
            }
        }
        for retry in &settlements.retries {
            match table.rows.iter_mut().find(|row| row.is(&retry.receipt)) {
                Some(row) => {
                    row.attempts = retry.attempts;
                    row.due = Some(
                        retry.delay.map_or(Due::Never, |delay| Due::At(Instant::now() + delay)),
                    );
                }
                None => missing += 1,
            }
        }
        // There is one owner, and it holds its lane for ever.
        let held = settlements.lanes.iter().map(|(lane, _)| *lane).collect();
        Ok(Settled::new(held, missing))
    }
}

impl Table {
    /// Whether the pipeline wants this row, does not know it yet, and no earlier row of its aggregate waits for a retry.
    fn is_wanted(&self, row: &Row, request: &ClaimRequest) -> bool {
        let aggregate = |row: &Row| {
            let id = row.event.aggregate_id().map(str::to_owned);
            id.map(|id| (row.event.aggregate_type().to_owned(), id))
        };
        let mine = aggregate(row);
        let holds = |other: &Row| {
            other.attempts > 0 && other.due.is_some() && mine.is_some() && aggregate(other) == mine
        };
        request.pipeline.types().contains(row.event.aggregate_type())
            && !request.exclude.contains(&row.position)
            && !self.rows.iter().take_while(|it| it.position < row.position).any(holds)
    }

    fn remove(&mut self, receipt: &Receipt) -> Option<Row> {
        let at = self.rows.iter().position(|row| row.is(receipt))?;
        Some(self.rows.remove(at))
    }
}

impl Row {
    fn is(&self, receipt: &Receipt) -> bool {
        receipt.lane == 0 && receipt.position == self.position && receipt.id == *self.event.id()
    }

    fn is_due(&self) -> bool {
        matches!(self.due, Some(Due::At(time)) if time <= Instant::now())
    }

    fn size(&self) -> usize {
        let event = &self.event;
        let texts = event.aggregate_type().len()
            + event.aggregate_id().map_or(0, str::len)
            + event.event_type().len()
            + event.headers().map_or(0, str::len);
        texts + event.payload().map_or(0, <[u8]>::len)
    }

    fn read(&self) -> EventRow<'_> {
        let mut row = EventRow::new(self.position, 0, self.event.id().clone());
        row.aggregate_type = self.event.aggregate_type();
        row.aggregate_id = self.event.aggregate_id();
        row.event_type = self.event.event_type();
        row.payload = self.event.payload();
        row.headers = self.event.headers();
        row.created_at_micros = self.created_at_micros;
        row.attempts = self.attempts;
        row.waiting = self.due.is_some();
        row
    }
}

/// The application's side: events that wait for the commit. Dropping it rolls back.
#[derive(Debug)]
struct Transaction {
    store: ListStore,
    events: Vec<NewEvent>,
}

impl ListStore {
    fn begin(&self) -> Transaction {
        Transaction { store: self.clone(), events: Vec::new() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().expect("no panic while the table is locked")
    }
}

impl Transaction {
    fn commit(self) {
        let now = UNIX_EPOCH.elapsed().expect("it is past 1970").as_micros();
        let created_at_micros = i64::try_from(now).expect("it is before 294000");
        let mut table = self.store.table();
        for event in self.events {
            table.drawn += 1;
            let position = table.drawn;
            table.rows.push(Row { position, event, created_at_micros, attempts: 0, due: None });
        }
    }
}

#[async_trait]
impl Writer for ListStore {
    type Transaction = Transaction;

    async fn append(
        &self,
        transaction: &mut Transaction,
        events: &[NewEvent],
    ) -> Result<(), StoreError> {
        if events.iter().any(|event| event.due().is_some()) {
            return Err(StoreError::misconfigured("a ListStore has no scheduled events"));
        }
        transaction.events.extend_from_slice(events);
        Ok(())
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let store = ListStore::default();
    let mut transaction = store.begin();
    for total in [1250, 300] {
        let event = NewEvent::json("order", "order-1", "OrderChanged.v1", &total)?;
        store.append(&mut transaction, &[event]).await?;
    }
    transaction.commit();

    let publisher = MemoryPublisher::new();
    let both = async { drop(publisher.wait_for(2, Duration::from_secs(20)).await) };
    Relay::new(Arc::new(store.clone()), Arc::new(publisher.clone())).run(both).await?;
    for message in publisher.messages() {
        let payload = String::from_utf8_lossy(message.payload().unwrap_or_default()).into_owned();
        println!("{} got {} {payload}", message.destination(), message.event_type());
    }
    println!("{} events are left in the table", store.table().rows.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use outbox_conformance::{DeadLetter, StoreHarness, WriterTransaction, store_conformance};

    use super::*;

    async fn harness() -> ListStore {
        ListStore::default()
    }

    #[async_trait]
    impl StoreHarness for ListStore {
        fn store(&self) -> Arc<dyn Store> {
            Arc::new(self.clone())
        }

        async fn begin(&self) -> Box<dyn WriterTransaction> {
            Box::new(self.begin())
        }

        async fn dead(&self) -> Vec<DeadLetter> {
            let table = self.table();
            let letter = |(row, reason): &(Row, String)| DeadLetter {
                id: row.event.id().clone(),
                aggregate_type: row.event.aggregate_type().to_owned(),
                aggregate_id: row.event.aggregate_id().map(str::to_owned),
                event_type: row.event.event_type().to_owned(),
                payload: row.event.payload().map(<[u8]>::to_vec),
                headers: row.event.headers().map(str::to_owned),
                attempts: row.attempts,
                reason: reason.clone(),
            };
            table.dead.iter().map(letter).collect()
        }
    }

    #[async_trait]
    impl WriterTransaction for Transaction {
        async fn append(&mut self, events: &[NewEvent]) -> Result<(), StoreError> {
            let store = self.store.clone();
            store.append(self, events).await
        }

        async fn commit(self: Box<Self>) {
            Self::commit(*self);
        }

        async fn rollback(self: Box<Self>) {}
    }

    store_conformance!(harness);
}
