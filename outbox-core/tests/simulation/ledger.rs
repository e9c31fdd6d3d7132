//! What should be: every event that was committed, where it stands, where it has appeared. Every step is checked against it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use outbox_core::memory::MemoryStore;
use outbox_core::{
    Epoch, Event, EventId, Exhausted, FailureClass, KeyOrder, LaneId, Message, Position, Receipt,
    Settled, Settlements,
};
use uuid::Uuid;

use super::scenario::{Faults, Scenario};

#[derive(Debug)]
pub(crate) struct Ledger {
    faults: Faults,
    key_order: KeyOrder,
    exhausted: Exhausted,
    max_attempts: u32,
    pub(crate) records: Vec<Record>,
    by_aggregate: BTreeMap<(String, String), Vec<usize>>,
    /// Who has settled a lane of a pipeline under an epoch.
    settlers: BTreeMap<(String, LaneId, Epoch), Uuid>,
    /// Messages without a verdict that their process has not abandoned: process, call, event.
    open: Vec<(usize, u64, usize)>,
    /// When something last went wrong that may make a confirmed message come again.
    disrupted: Option<Duration>,
    disruptions: usize,
    pub(crate) duplicates: usize,
    outages: u32,
    /// The event that each process has charged last: its attempt was written before its call.
    charges: BTreeMap<usize, usize>,
    /// Processes that have ended.
    over: BTreeSet<usize>,
    /// Charges whose process ended, or lost the lane, before their event had a verdict.
    died_with: usize,
    /// Whether the database refuses every verdict now.
    pub(crate) refuses_all: bool,
}

/// One event.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) id: EventId,
    pub(crate) position: Position,
    aggregate: Option<(String, String)>,
    pub(crate) written: Written,
    /// Not before this, since the run began.
    due: Option<Duration>,
    pub(crate) place: Place,
    attempts: u32,
    waits: bool,
    blocked: bool,
    /// When it appeared at the broker, and whether the relay was told so.
    pub(crate) appeared: Vec<(Duration, bool)>,
    /// An operator gave it another turn: it may come after later ones, and again.
    requeued: bool,
    transient: u32,
    permanent: u32,
    refused: bool,
    /// Whether it has its first attempt from a head that was discarded.
    inherited: bool,
    /// Who has charged it, under which epoch, and has not written a verdict since.
    charge: Option<(usize, Epoch)>,
    charged: bool,
    /// Charges of it that no verdict followed.
    died_with: u32,
}

/// What the writer wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) aggregate_type: String,
    pub(crate) aggregate_id: Option<String>,
    pub(crate) event_type: String,
    pub(crate) payload: Option<Vec<u8>>,
    pub(crate) headers: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Written in a transaction that is open, or was rolled back.
    Nowhere,
    Table,
    Dead,
    Settled,
    Discarded,
}

/// The number of an event in the ledger.
pub(crate) fn number(id: &EventId) -> usize {
    id.to_string().trim_start_matches('e').parse().unwrap()
}

/// Whether the database cannot store the verdict on this event while it is in that mood.
pub(crate) fn is_refused_by_the_database(number: usize) -> bool {
    number % 11 == 5
}

pub(crate) fn id(number: usize) -> EventId {
    EventId::from_text(&format!("e{number}")).unwrap()
}

/// How the reason of an attempt begins that is written before its call.
const CHARGE: &str = "sent alone since relays died";

impl Ledger {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self {
            faults: scenario.faults,
            key_order: scenario.key_order,
            exhausted: scenario.exhausted,
            max_attempts: scenario.max_attempts,
            records: Vec::new(),
            by_aggregate: BTreeMap::new(),
            settlers: BTreeMap::new(),
            open: Vec::new(),
            disrupted: None,
            disruptions: 0,
            duplicates: 0,
            outages: 0,
            charges: BTreeMap::new(),
            over: BTreeSet::new(),
            died_with: 0,
            refuses_all: false,
        }
    }

    /// A writer has written an event and not committed it. Returns its id.
    pub(crate) fn written(&mut self, written: Written, due: Option<Duration>) -> EventId {
        let number = self.records.len();
        let aggregate = written.aggregate_id.clone().map(|id| (written.aggregate_type.clone(), id));
        self.records.push(Record {
            id: id(number),
            position: 0,
            aggregate,
            written,
            due,
            place: Place::Nowhere,
            attempts: 0,
            waits: due.is_some(),
            blocked: false,
            appeared: Vec::new(),
            requeued: false,
            transient: 0,
            permanent: 0,
            refused: false,
            inherited: false,
            charge: None,
            charged: false,
            died_with: 0,
        });
        id(number)
    }

    /// The event has become visible in the table.
    pub(crate) fn committed(&mut self, event: &Event) {
        let number = number(event.id());
        let record = &mut self.records[number];
        record.position = event.position();
        record.place = Place::Table;
        if let Some(aggregate) = record.aggregate.clone() {
            self.by_aggregate.entry(aggregate).or_default().push(number);
        }
    }

    pub(crate) fn requeued(&mut self, number: usize) {
        let record = &mut self.records[number];
        record.place = Place::Table;
        (record.waits, record.blocked, record.requeued) = (true, false, true);
        (record.attempts, record.charge) = (1, None);
    }

    /// An operator has removed the event. The hold of a blocked head passes to the one behind it.
    pub(crate) fn discarded(&mut self, number: usize) {
        let record = &mut self.records[number];
        let was_blocked = record.place == Place::Table;
        record.place = Place::Discarded;
        let (position, aggregate) = (record.position, record.aggregate.clone());
        let Some(aggregate) = aggregate.filter(|_| was_blocked) else { return };
        let behind = self.by_aggregate[&aggregate].iter().copied().filter(|other| {
            let other = &self.records[*other];
            let holds = other.waits && other.attempts > 0;
            other.position > position && other.place == Place::Table && (!other.waits || holds)
        });
        let next = behind.min_by_key(|other| self.records[*other].position);
        if let Some(next) = next.filter(|next| !self.records[*next].waits) {
            let next = &mut self.records[next];
            (next.attempts, next.waits, next.inherited) = (1, true, true);
        }
    }

    /// From now on, for a while, confirmed messages may come again.
    pub(crate) fn disrupted(&mut self, until: Duration) {
        self.disrupted = self.disrupted.max(Some(until));
        self.disruptions += 1;
    }

    pub(crate) fn outage(&mut self) {
        self.outages += 1;
    }

    /// Messages are handed to the publisher.
    pub(crate) fn call(
        &mut self,
        process: usize,
        call: u64,
        messages: &[Message],
        now: Duration,
    ) -> Result<(), String> {
        let numbers: Vec<usize> = messages.iter().map(|message| number(message.id())).collect();
        for (at, number) in numbers.iter().enumerate() {
            let record = &self.records[*number];
            let mine = |open: &&(usize, u64, usize)| open.0 == process;
            for open in self.open.iter().filter(mine) {
                if open.2 == *number {
                    return Err(format!(
                        "{} is sent while an earlier message of it is open",
                        record.id
                    ));
                }
                let other = &self.records[open.2];
                if record.aggregate.is_some() && other.aggregate == record.aggregate {
                    return Err(format!(
                        "{} is sent while {} is open elsewhere",
                        record.id, other.id
                    ));
                }
            }
            let before = numbers[..at].iter().map(|number| &self.records[*number]);
            let mut before = before
                .filter(|other| record.aggregate.is_some() && other.aggregate == record.aggregate);
            if before.clone().any(|other| other.position >= record.position) {
                return Err(format!("{} stands behind a later event in its call", record.id));
            }
            let single = self.key_order == KeyOrder::Unordered || self.exhausted == Exhausted::Hold;
            if single && before.next().is_some() {
                return Err(format!("{} shares its call with one of its aggregate", record.id));
            }
            if record.due.is_some_and(|due| now < due) {
                return Err(format!("{} is sent before it is due", record.id));
            }
            if self.faults.none() && record.place != Place::Table {
                return Err(format!("{} is sent, but it stands at {:?}", record.id, record.place));
            }
        }
        self.open.extend(numbers.into_iter().map(|number| (process, call, number)));
        Ok(())
    }

    /// The broker has taken a message. `again` says that it is the broker itself that doubles it.
    pub(crate) fn appeared(
        &mut self,
        message: &Message,
        again: bool,
        now: Duration,
    ) -> Result<(), String> {
        let number = number(message.id());
        let Some(record) = self.records.get(number) else {
            return Err(format!("{} was never written", message.id()));
        };
        if record.place == Place::Nowhere {
            return Err(format!("{} is published but was not committed", record.id));
        }
        let mut headers = Vec::new();
        message.for_each_header(|name, value| headers.push((name.to_owned(), value.to_owned())));
        let sent = Written {
            aggregate_type: message.event().aggregate_type().to_owned(),
            aggregate_id: message.key().map(|key| String::from_utf8(key.to_vec()).unwrap()),
            event_type: message.event_type().to_owned(),
            payload: message.payload().map(<[u8]>::to_vec),
            headers,
        };
        if sent != record.written {
            return Err(format!("{} changed on its way: {sent:?}", record.id));
        }
        if **message.destination() != format!("outbox.event.{}", sent.aggregate_type) {
            return Err(format!("{} went to {}", record.id, message.destination()));
        }
        if record.appeared.is_empty() {
            self.check_order(number)?;
        } else if !again {
            self.check_duplicate(number, now)?;
        }
        self.records[number].appeared.push((now, false));
        Ok(())
    }

    /// First appearances of an aggregate are in position order, but for what was scheduled, refused for good or requeued.
    fn check_order(&self, number: usize) -> Result<(), String> {
        let record = &self.records[number];
        let Some(aggregate) = &record.aggregate else { return Ok(()) };
        let jumped =
            self.by_aggregate[aggregate].iter().map(|other| &self.records[*other]).find(|other| {
                other.position < record.position
                    && other.appeared.is_empty()
                    && other.place == Place::Table
                    && !other.requeued
                    && other.permanent == 0
                    && (other.due.is_none() || other.attempts > 0)
            });
        match jumped {
            Some(other) if !record.requeued => {
                Err(format!("{} appears before {} of its aggregate", record.id, other.id))
            }
            _ => Ok(()),
        }
    }

    /// A message comes again only if the relay was not told that it had come, or if something went wrong since.
    fn check_duplicate(&mut self, number: usize, now: Duration) -> Result<(), String> {
        self.duplicates += 1;
        let record = &self.records[number];
        if record.requeued
            || self.refuses_all
            || (self.faults.rejects && is_refused_by_the_database(number))
        {
            return Ok(());
        }
        let confirmed =
            record.appeared.iter().filter(|(_, confirmed)| *confirmed).map(|it| it.0).max();
        let excused = match (confirmed, self.disrupted) {
            (None, _) => !self.faults.none(),
            (Some(confirmed), Some(disrupted)) => confirmed <= disrupted,
            (Some(_), None) => false,
        };
        if excused {
            return Ok(());
        }
        Err(format!("{} appears again at {now:?}, after {:?}", record.id, record.appeared))
    }

    /// The relay was told that the broker has taken the message.
    pub(crate) fn confirmed(&mut self, process: usize, call: u64, number: usize) {
        if let Some(last) = self.records[number].appeared.last_mut() {
            last.1 = true;
        }
        self.close(process, call, number);
    }

    /// The relay was told that the message has failed; `charged` says that it is the first of its aggregate that did.
    pub(crate) fn refused(
        &mut self,
        process: usize,
        call: u64,
        number: usize,
        class: FailureClass,
        charged: bool,
    ) {
        let record = &mut self.records[number];
        if charged {
            match class {
                FailureClass::Transient => record.transient += 1,
                FailureClass::Permanent => record.permanent += 1,
                FailureClass::Refused => record.refused = true,
                _ => {}
            }
        }
        self.close(process, call, number);
    }

    fn close(&mut self, process: usize, call: u64, number: usize) {
        self.open.retain(|open| *open != (process, call, number));
    }

    /// The process can send nothing of what was open any more.
    pub(crate) fn abandoned(&mut self, process: usize) {
        self.open.retain(|open| open.0 != process);
    }

    /// The process has ended, by itself or by force.
    pub(crate) fn over(&mut self, process: usize) {
        self.over.insert(process);
    }

    /// A settle was applied to the table.
    pub(crate) fn settled(
        &mut self,
        process: usize,
        settlements: &Settlements,
        settled: &Settled,
    ) -> Result<(), String> {
        let worker = &settlements.worker;
        for (lane, epoch) in &settlements.lanes {
            if !settled.held.contains(lane) {
                continue;
            }
            let key = (worker.pipeline.name().to_owned(), *lane, *epoch);
            let owner = *self.settlers.entry(key).or_insert(worker.id);
            if owner != worker.id {
                return Err(format!("two workers settle lane {lane} under epoch {epoch}"));
            }
        }
        let held = |receipt: &Receipt| settled.held.contains(&receipt.lane);
        for delivered in settlements.delivered.iter().filter(|it| held(&it.receipt)) {
            let record = &mut self.records[number(&delivered.receipt.id)];
            if !record.appeared.iter().any(|(_, confirmed)| *confirmed) {
                return Err(format!(
                    "{} is settled as delivered without a confirmation",
                    record.id
                ));
            }
            record.leave(Place::Settled);
        }
        for retry in settlements.retries.iter().filter(|it| held(&it.receipt)) {
            let number = number(&retry.receipt.id);
            if retry.reason.starts_with(CHARGE) {
                let lane = settlements.lanes.iter().find(|it| it.0 == retry.receipt.lane);
                self.charged(number, process, lane.map_or(0, |it| it.1))?;
            } else {
                self.records[number].charge = None;
            }
            self.check_attempts(&self.records[number], retry.attempts)?;
            let record = &mut self.records[number];
            if record.place == Place::Table {
                record.attempts = retry.attempts;
                (record.waits, record.blocked) = (true, retry.delay.is_none());
            }
        }
        for dead in settlements.dead.iter().filter(|it| held(&it.receipt)) {
            let record = &self.records[number(&dead.receipt.id)];
            self.check_attempts(record, dead.attempts)?;
            let exhausted = dead.attempts >= self.max_attempts;
            if !exhausted && record.permanent == 0 {
                return Err(format!("{} is given up after {} attempts", record.id, dead.attempts));
            }
            if self.exhausted == Exhausted::Hold {
                return Err(format!("{} is given up under hold", record.id));
            }
            let record = &mut self.records[number(&dead.receipt.id)];
            if record.place == Place::Table {
                record.attempts = dead.attempts;
            }
            record.leave(Place::Dead);
        }
        Ok(())
    }

    /// An attempt was written before its call. A process has one such event at a time; another process charges it again
    /// only when the first one is gone.
    fn charged(&mut self, number: usize, process: usize, epoch: Epoch) -> Result<(), String> {
        // Frozen for a while, or without an answer, a process loses lanes, and may have them back. A verdict that is refused
        // stays unwritten when its lane is handed over.
        let sure = !self.faults.freezes && !self.faults.statements && !self.faults.rejects;
        if let Some((other, under)) = self.records[number].charge.replace((process, epoch))
            && (other, under) != (process, epoch)
        {
            self.died_with += 1;
            self.records[number].died_with += 1;
            if sure && !self.over.contains(&other) {
                return Err(format!("e{number} is charged again though r{other} is alive"));
            }
        }
        self.records[number].charged = true;
        if !self.faults.rejects && self.died_with > self.disruptions {
            return Err(format!("{} charges by {} deaths", self.died_with, self.disruptions));
        }
        let Some(before) = self.charges.insert(process, number) else { return Ok(()) };
        let before = &self.records[before];
        let open = before.place == Place::Table && before.charge.is_some_and(|it| it.0 == process);
        if sure && open && before.id != id(number) {
            return Err(format!("e{number} is charged while {} is not over", before.id));
        }
        Ok(())
    }

    /// An attempt stands for a verdict that counts, or for a charge that no verdict followed; outages count nothing.
    fn check_attempts(&self, record: &Record, attempts: u32) -> Result<(), String> {
        let held = record.refused || record.inherited || record.charged;
        let counted = record.transient + record.permanent + u32::from(held);
        let charged = if record.charged { record.died_with + 1 } else { 0 };
        let counted = counted + charged;
        let bracketed =
            if self.faults.unavailable || self.faults.broker { u32::MAX } else { self.outages / 2 };
        let excused = attempts <= counted.saturating_add(bracketed);
        if attempts == 0 || !excused {
            return Err(format!("{} has {attempts} attempts after {counted} failures", record.id));
        }
        Ok(())
    }

    /// Blocked heads and dead letters: what an operator can decide on.
    pub(crate) fn undecided(&self) -> Vec<usize> {
        let undecided = |record: &Record| {
            record.place == Place::Dead || (record.place == Place::Table && record.blocked)
        };
        (0..self.records.len()).filter(|number| undecided(&self.records[*number])).collect()
    }

    /// Whether some aggregate stands still until an operator decides.
    pub(crate) fn blocked(&self) -> bool {
        self.records.iter().any(|record| record.place == Place::Table && record.blocked)
    }

    pub(crate) fn pending(&self) -> usize {
        self.records.iter().filter(|record| record.place == Place::Table).count()
    }

    /// Every event is in exactly one place, and it is where the ledger says.
    pub(crate) fn audit(&self, store: &MemoryStore) -> Result<(), String> {
        let mut found: Vec<Option<(Place, u32)>> = vec![None; self.records.len()];
        let table = store.pending().into_iter().map(|event| (event, Place::Table));
        let dead = store.dead().into_iter().map(|letter| (letter.event, Place::Dead));
        for (event, place) in table.chain(dead) {
            let slot = &mut found[number(event.id())];
            if slot.replace((place, event.attempts())).is_some() {
                return Err(format!("{} is in two places", event.id()));
            }
        }
        for (record, found) in self.records.iter().zip(found) {
            let expected = match record.place {
                Place::Table | Place::Dead => Some((record.place, record.attempts)),
                _ => None,
            };
            if found != expected {
                return Err(format!(
                    "{} is at {found:?}, not at {:?} with {} attempts",
                    record.id, record.place, record.attempts
                ));
            }
            if record.place == Place::Dead && record.attempts == 0 {
                return Err(format!("{} died without an attempt", record.id));
            }
        }
        Ok(())
    }

    /// The end of a run: nothing is lost.
    pub(crate) fn audit_end(&self) -> Result<(), String> {
        for record in &self.records {
            if record.place == Place::Settled
                && !record.appeared.iter().any(|(_, confirmed)| *confirmed)
            {
                return Err(format!("{} is settled and was never confirmed", record.id));
            }
            if record.place == Place::Table {
                return Err(format!("{} is still pending", record.id));
            }
        }
        // An upper bound: a window for each time that something went wrong, and the unconfirmed ones.
        let window = self.disruptions.saturating_mul(64);
        if self.faults.none()
            && self.duplicates > 0
            && self.records.iter().all(|record| !record.requeued)
        {
            return Err(format!("{} duplicates without a fault", self.duplicates));
        }
        let unconfirmed: usize = self
            .records
            .iter()
            .map(|record| record.appeared.iter().filter(|(_, confirmed)| !*confirmed).count())
            .sum();
        if self.duplicates > window + unconfirmed {
            return Err(format!(
                "{} duplicates of {} disruptions",
                self.duplicates, self.disruptions
            ));
        }
        Ok(())
    }
}

impl Record {
    fn leave(&mut self, place: Place) {
        if self.place == Place::Table {
            self.place = place;
            (self.waits, self.blocked, self.charge) = (false, false, None);
        }
    }
}
