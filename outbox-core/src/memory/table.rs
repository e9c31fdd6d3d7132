//! The state of the table and what one statement does to it.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use tokio::time::Instant;

use super::counters::Counters;
use super::lease::PipelineLeases;
use super::row::{DeadRow, NEVER, Row, insert_of};
use crate::{
    Backlog, Capabilities, Due, EventId, EventRow, LaneId, Leases, NewEvent, OpenWriter, Pipeline,
    Position, Probe, Receipt, Settled, Settlements, Snapshot, StoreError, Watermark, Worker,
};

/// When the clock of every table starts: a fixed time, so that a run can be repeated. Microseconds since 1970.
const CLOCK_START: i64 = 1_700_000_000_000_000;

#[derive(Debug)]
pub(super) struct Table {
    pub(super) lanes: u16,
    pub(super) capabilities: Capabilities,
    started: Instant,
    /// Committed and pending, in the order in which a claim reads them.
    pub(super) rows: BTreeMap<(LaneId, Position), Row>,
    /// Given up, in the order of their death.
    pub(super) dead: Vec<DeadRow>,
    /// How many have died.
    died: i64,
    /// The last position that was drawn.
    drawn: Position,
    /// Transactions so far.
    begun: u64,
    /// Transactions that have appended, by their number, with their transaction id.
    writers: BTreeMap<u64, u64>,
    next_transaction_id: u64,
    pub(super) pipelines: BTreeMap<String, PipelineLeases>,
    /// (consumer, event id), and how it stands with the mark.
    marks: BTreeMap<(String, String), Mark>,
    /// Whether writers number events.
    pub(super) numbered: bool,
    /// The last number of each aggregate.
    pub(super) sequences: Counters,
    /// The last number that a consumer has accepted.
    pub(super) arrivals: Counters,
}

/// A mark of an inbox.
#[derive(Debug)]
struct Mark {
    /// While it is not committed, the transaction that made it.
    by: Option<u64>,
    seen_at: i64,
}

// The application's side.
impl Table {
    pub(super) fn new(lanes: u16, capabilities: Capabilities) -> Self {
        Self {
            lanes,
            capabilities,
            started: Instant::now(),
            rows: BTreeMap::new(),
            dead: Vec::new(),
            died: 0,
            drawn: 0,
            begun: 0,
            writers: BTreeMap::new(),
            next_transaction_id: 1,
            pipelines: BTreeMap::new(),
            marks: BTreeMap::new(),
            numbered: false,
            sequences: Counters::default(),
            arrivals: Counters::default(),
        }
    }

    pub(super) fn begin(&mut self) -> u64 {
        self.begun += 1;
        self.begun
    }

    /// Draws positions for `events`, now and not at the commit: transactions may become visible in another order. `headers`
    /// are those of numbered events.
    pub(super) fn draw(
        &mut self,
        number: u64,
        events: &[NewEvent],
        headers: Option<&[Option<String>]>,
    ) -> Result<Vec<Row>, StoreError> {
        if !self.capabilities.scheduled && events.iter().any(|event| event.due().is_some()) {
            return Err(StoreError::misconfigured("this store has no scheduled events"));
        }
        if !events.is_empty() && !self.writers.contains_key(&number) {
            self.writers.insert(number, self.next_transaction_id);
            self.next_transaction_id += 1;
        }
        let rows = events.iter().enumerate().map(|(place, event)| {
            let due_at = event.due().map(|due| self.due_at(due));
            let mut insert = insert_of(event);
            if let Some(headers) = headers {
                insert.headers = headers[place].as_deref();
            }
            self.row(&insert, due_at)
        });
        Ok(rows.collect())
    }

    /// Completes an insert: the next position, the lane of its aggregate, the time.
    pub(super) fn row(&mut self, insert: &EventRow<'_>, due_at: Option<i64>) -> Row {
        self.drawn += 1;
        self.row_at(self.drawn, insert, due_at)
    }

    /// The same at a position that was not drawn.
    pub(super) fn row_at(
        &self,
        position: Position,
        insert: &EventRow<'_>,
        due_at: Option<i64>,
    ) -> Row {
        let hashed = insert.aggregate_id.map_or_else(|| insert.id.to_string(), str::to_owned);
        let lane = LaneId::try_from(stable_hash(&hashed) % u64::from(self.lanes));
        let row = EventRow {
            position,
            lane: lane.expect("a lane is below the lane count"),
            created_at_micros: self.now(),
            ..insert.clone()
        };
        Row::new(&row, due_at)
    }

    pub(super) fn commit(&mut self, number: u64, rows: Vec<Row>, marks: &[(String, String)]) {
        self.writers.remove(&number);
        for row in rows {
            let row = match self.capabilities.watermark {
                Watermark::CommitOrder => self.drawn_again(&row),
                _ => row,
            };
            self.insert(row);
        }
        for mark in marks {
            self.marks.get_mut(mark).expect("it was made in this transaction").by = None;
        }
    }

    /// A store with one writer at a time shows positions in their order: as if they were drawn at the commit.
    fn drawn_again(&mut self, row: &Row) -> Row {
        self.drawn += 1;
        row.at(self.drawn)
    }

    pub(super) fn rollback(&mut self, number: u64, marks: &[(String, String)]) {
        self.writers.remove(&number);
        self.unmark(marks);
    }

    /// Marks (consumer, event id): whether it is new, or `None` while another open transaction has marked it.
    pub(super) fn mark(&mut self, number: u64, mark: &(String, String)) -> Option<bool> {
        match self.marks.get(mark).map(|mark| mark.by) {
            None => {
                let seen_at = self.now();
                self.marks.insert(mark.clone(), Mark { by: Some(number), seen_at });
                Some(true)
            }
            Some(Some(other)) if other != number => None,
            Some(_) => Some(false),
        }
    }

    /// Removes committed marks that are older than this, and says how many there were.
    pub(super) fn purge(&mut self, older_than: Duration) -> u64 {
        let (before, until) = (self.marks.len(), self.now().saturating_sub(length(older_than)));
        self.marks.retain(|_, mark| mark.by.is_some() || mark.seen_at >= until);
        (before - self.marks.len()) as u64
    }

    pub(super) fn age_marks(&mut self, by: Duration) {
        for mark in self.marks.values_mut() {
            mark.seen_at = mark.seen_at.saturating_sub(length(by));
        }
    }

    pub(super) fn unmark(&mut self, marks: &[(String, String)]) {
        for mark in marks {
            self.marks.remove(mark);
        }
    }
}

// The relay's side.
impl Table {
    pub(super) fn join(&mut self, pipeline: &Pipeline) -> Result<u16, StoreError> {
        self.refuse_overlap(pipeline)?;
        self.pipeline(pipeline).types = pipeline.types().clone();
        Ok(self.lanes)
    }

    /// Extends a live lease; another begins anew only where no other pipeline has begun to work on its types meanwhile.
    pub(super) fn heartbeat(
        &mut self,
        worker: &Worker,
        lease: Duration,
    ) -> Result<Leases, StoreError> {
        if !self.pipeline(&worker.pipeline).is_live(worker.id) {
            self.refuse_overlap(&worker.pipeline)?;
        }
        Ok(self.pipeline(&worker.pipeline).heartbeat(worker.id, lease))
    }

    fn refuse_overlap(&self, pipeline: &Pipeline) -> Result<(), StoreError> {
        for (name, other) in &self.pipelines {
            if name != pipeline.name()
                && other.has_live_workers()
                && other.types.overlaps(pipeline.types())
            {
                return Err(StoreError::overlapping(pipeline.name(), name, "the memory table"));
            }
        }
        Ok(())
    }

    pub(super) fn pipeline(&mut self, pipeline: &Pipeline) -> &mut PipelineLeases {
        self.pipelines
            .entry(pipeline.name().to_owned())
            .or_insert_with(|| PipelineLeases::new(pipeline.types().clone(), self.lanes))
    }

    pub(super) fn settle(&mut self, settlements: &Settlements) -> Settled {
        let mut settled = Settled::default();
        for (lane, epoch) in &settlements.lanes {
            let owner = !self.capabilities.leases
                || self.pipeline(&settlements.worker.pipeline).owns(
                    settlements.worker.id,
                    *lane,
                    *epoch,
                );
            if owner {
                settled.held.push(*lane);
            }
        }
        let held = settled.held.clone();
        let holds = |receipt: &Receipt| held.contains(&receipt.lane);
        let now = self.now();
        let mut found = Vec::new();

        for delivered in settlements.delivered.iter().filter(|it| holds(&it.receipt)) {
            found.push(self.remove(&delivered.receipt).is_some());
        }
        for retry in settlements.retries.iter().filter(|it| holds(&it.receipt)) {
            let row = self.find(&retry.receipt);
            found.push(row.is_some());
            if let Some(row) = row {
                row.attempts = retry.attempts;
                row.due_at = Some(retry.delay.map_or(NEVER, |delay| later(now, delay)));
                row.last_error = Some(retry.reason.clone());
            }
        }
        for dead in settlements.dead.iter().filter(|it| holds(&it.receipt)) {
            let row = self.remove(&dead.receipt);
            found.push(row.is_some());
            if let Some(row) = row {
                self.died += 1;
                self.dead.push(DeadRow {
                    entry: self.died,
                    row: Row { attempts: dead.attempts, ..row },
                    reason: dead.reason.clone(),
                    died_at: now,
                });
            }
        }
        for lane in settlements.recovered.iter().filter(|lane| held.contains(lane)) {
            self.pipeline(&settlements.worker.pipeline).recovered(*lane);
        }
        settled.missing = found.iter().filter(|found| !**found).count() as u64;
        settled
    }

    pub(super) fn probe(&self, after: Position) -> Probe {
        let top = self.rows.values().map(Row::position).max().unwrap_or(0).max(after);
        let writers = self.writers.iter().map(|(number, transaction)| OpenWriter {
            name: format!("transaction {number}"),
            transaction: Some(*transaction),
        });
        let known = self.capabilities.watermark == Watermark::Writers;
        Probe::new(top, if known { writers.collect() } else { Vec::new() }, "")
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let mut in_progress: Vec<u64> = self.writers.values().copied().collect();
        in_progress.sort_unstable();
        Snapshot {
            lowest_open: in_progress.first().copied().unwrap_or(self.next_transaction_id),
            first_unborn: self.next_transaction_id,
            in_progress,
        }
    }

    pub(super) fn backlog(&self, pipeline: &Pipeline, cap: u64) -> Backlog {
        let now = self.now();
        let types = pipeline.types();
        let capped = |count: usize| cap.min(count as u64);
        let pending = || self.rows.values().filter(|row| types.contains(row.aggregate_type()));
        let dead = self.dead.iter().filter(|dead| types.contains(dead.row.aggregate_type()));
        let due = pending().filter(|row| row.due_at.is_none_or(|due_at| due_at <= now));
        let age = |row: &Row| Duration::from_micros(now.abs_diff(row.created_at()));
        let bytes = |size: usize| size as u64;
        Backlog {
            pending: capped(pending().count()),
            oldest: due.map(age).max(),
            blocked: capped(pending().filter(|row| row.is_blocked()).count()),
            dead: capped(dead.count()),
            table_bytes: vec![
                ("live", bytes(self.rows.values().map(Row::size).sum())),
                ("dead", bytes(self.dead.iter().map(|dead| dead.row.size()).sum())),
            ],
        }
    }
}

// The operator's side, and what all share.
impl Table {
    /// Committed rows in the order of their positions.
    pub(super) fn pending(&self) -> Vec<&Row> {
        let mut rows: Vec<&Row> = self.rows.values().collect();
        rows.sort_by_key(|row| row.position());
        rows
    }

    /// A dead letter or a blocked head gets its turn again.
    pub(super) fn requeue(&mut self, id: &EventId) -> bool {
        self.requeue_dead(|dead| dead.row.id() == id) || self.unblock(|row| row.id() == id)
    }

    /// Removes a dead letter or a blocked head for good.
    pub(super) fn discard(&mut self, id: &EventId) -> bool {
        self.discard_dead(|dead| dead.row.id() == id) || self.discard_blocked(|row| row.id() == id)
    }

    /// A dead letter is due now, under its old position, so that it holds the later events of its aggregate.
    pub(super) fn requeue_dead(&mut self, is: impl Fn(&DeadRow) -> bool) -> bool {
        let Some(at) = self.dead.iter().position(is) else { return false };
        let DeadRow { row, reason, .. } = self.dead.remove(at);
        let due_at = Some(self.now());
        self.insert(Row { due_at, attempts: 1, last_error: Some(reason), ..row });
        true
    }

    pub(super) fn discard_dead(&mut self, is: impl Fn(&DeadRow) -> bool) -> bool {
        let at = self.dead.iter().position(is);
        at.map(|at| self.dead.remove(at)).is_some()
    }

    /// A blocked head is due now.
    pub(super) fn unblock(&mut self, is: impl Fn(&Row) -> bool) -> bool {
        let now = Some(self.now());
        let blocked = self.rows.values_mut().find(|row| row.is_blocked() && is(row));
        blocked.map(|row| (row.attempts, row.due_at) = (1, now)).is_some()
    }

    /// Removes a blocked head. Its hold passes to the event behind it: the relay has read past that one, and must see it before
    /// it sees what is written from now on.
    pub(super) fn discard_blocked(&mut self, is: impl Fn(&Row) -> bool) -> bool {
        let blocked = self.rows.values().find(|row| row.is_blocked() && is(row));
        let Some(at) = blocked.map(|row| (row.lane(), row.position())) else { return false };
        let now = Some(self.now());
        let head = self.rows.remove(&at);
        let next = self.rows.range_mut(at..).map(|(_, row)| row).find(|row| {
            let same = head.as_ref().is_some_and(|head| head.aggregate() == row.aggregate());
            same && row.aggregate().is_some() && (row.due_at.is_none() || row.holds())
        });
        if let Some(next) = next.filter(|row| !row.holds()) {
            (next.attempts, next.due_at) = (1, now);
        }
        true
    }

    /// The table's clock, in microseconds since 1970. It stands and moves with tokio's.
    pub(super) fn now(&self) -> i64 {
        later(CLOCK_START, self.started.elapsed())
    }

    fn due_at(&self, due: Due) -> i64 {
        match due {
            Due::After(delay) => later(self.now(), delay),
            Due::At(time) => later(0, time.duration_since(UNIX_EPOCH).unwrap_or_default()),
        }
    }

    pub(super) fn insert(&mut self, row: Row) {
        self.rows.insert((row.lane(), row.position()), row);
    }

    fn find(&mut self, receipt: &Receipt) -> Option<&mut Row> {
        let row = self.rows.get_mut(&(receipt.lane, receipt.position));
        row.filter(|row| row.is(receipt))
    }

    fn remove(&mut self, receipt: &Receipt) -> Option<Row> {
        self.find(receipt)?;
        self.rows.remove(&(receipt.lane, receipt.position))
    }
}

/// In microseconds.
fn length(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(NEVER)
}

fn later(micros: i64, delay: Duration) -> i64 {
    // One below NEVER: even the longest delay is not a blocked head.
    micros.saturating_add(length(delay)).min(NEVER - 1)
}

/// FNV-1a: the same on every machine and in every version.
fn stable_hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
