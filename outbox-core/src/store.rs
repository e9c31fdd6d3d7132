//! The contract of an outbox table.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use crate::{Event, Receipt, StoreError};

/// The number of a lane, from 0. Local to a database: never compute it, read it.
pub type LaneId = u16;

/// A place in the table: rises in the order in which writers drew it, from 1. It is *not* the order of commits. A row may have
/// been given another one by hand, 0 or below among them; [`Position::MIN`] is below every row.
pub type Position = i64;

/// The number of a lane's owners so far: whoever settles under an old one changes nothing.
pub type Epoch = i64;

/// An outbox table, as the relay sees it.
///
/// # Contract
///
/// - A row in the table *is* a pending event. `claim` is a read: it locks nothing, writes nothing, and whoever drops its
///   future loses nothing.
/// - `settle` is one atomic write per lane, fenced by (worker, epoch): for a lane that the worker no longer owns under
///   that epoch nothing changes, and the lane is missing from [`Settled::held`]. It names events by lane, position and
///   id; what is not found is counted in [`Settled::missing`] and is no error. Repeating a settle whose reply was lost
///   changes nothing more: `attempts` are absolute.
/// - Every statement sees what was committed before it started. An event whose transaction is open, or was rolled back,
///   is never seen.
/// - The database's clock is the only clock: delays are relative.
/// - A dropped future leaves no open transaction and no session state behind.
/// - Errors carry no secret.
///
/// Only [`claim`](Self::claim) and [`settle`](Self::settle) are required; the defaults of the rest describe a table with
/// one lane that has a single owner. Such a store must not be given to two relays.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync {
    /// What this store can do; rules of the conformance kit fall away by it.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Registers a pipeline on this table and returns the number of lanes. Idempotent.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when schema, identity or rights are not as they should be, or when the type filter overlaps
    /// with that of another pipeline that has live workers.
    async fn join(&self, worker: &Worker) -> Result<u16, StoreError> {
        let _ = worker;
        Ok(1)
    }

    /// Extends the worker's lease by `lease` from now, and returns what it owns: that list is the truth. A lease that has
    /// run out begins anew, with the lanes that nobody has taken.
    ///
    /// # Errors
    ///
    /// `Unavailable` when the database does not answer; the lease may or may not have been extended then.
    /// `Misconfigured` when the lease had run out, and a pipeline whose type filter overlaps has live workers by now.
    async fn heartbeat(&self, worker: &Worker, lease: Duration) -> Result<Leases, StoreError> {
        let _ = (worker, lease);
        Ok(Leases::sole_owner())
    }

    /// Frees the lanes of workers whose lease has run out, and takes up to `count` free lanes. The next heartbeat tells
    /// what was taken.
    ///
    /// # Errors
    ///
    /// `Stale` when this worker itself has been buried: it starts over under a new id.
    async fn acquire(&self, worker: &Worker, count: u16) -> Result<(), StoreError> {
        let _ = (worker, count);
        Ok(())
    }

    /// Gives lanes back at once, so that others can take them.
    ///
    /// # Errors
    ///
    /// `Unavailable`: the lanes become free when the lease runs out.
    async fn release(&self, worker: &Worker, lanes: &[LaneId]) -> Result<(), StoreError> {
        let _ = (worker, lanes);
        Ok(())
    }

    /// Signs the worker off, and gives back what it still owns.
    ///
    /// # Errors
    ///
    /// `Unavailable`: the lanes become free when the lease runs out.
    async fn leave(&self, worker: &Worker) -> Result<(), StoreError> {
        let _ = worker;
        Ok(())
    }

    /// Reads events in position order per lane; see [`ClaimRequest`] for which. Never more than the request's limits.
    ///
    /// # Errors
    ///
    /// `Unavailable` when the database does not answer, `Misconfigured` when it refuses for good.
    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, StoreError>;

    /// Writes verdicts: fenced, atomic per lane.
    ///
    /// # Errors
    ///
    /// `Rejected` when the database refuses the *data* of this statement: nothing of it was written, and the relay
    /// narrows it until the one bad event is known. `Unavailable`: unknown whether it was written.
    async fn settle(&self, settlements: &Settlements) -> Result<Settled, StoreError>;

    /// Reads how far the table goes and who is writing to it, in this order: the highest position above `after`
    /// first, then the open writers. The next claim must not be started before this has returned.
    ///
    /// # Errors
    ///
    /// `Unavailable` when the database does not answer.
    async fn probe(&self, after: Position) -> Result<Probe, StoreError> {
        Ok(Probe { top: after, ..Probe::default() })
    }

    /// Returns when there may be something new: a hint that may come late, twice or never. The default never returns.
    /// Dropping the future must be harmless.
    async fn wait(&self) {
        std::future::pending::<()>().await;
    }

    /// Figures for metrics; counts stop at `cap` so that a large backlog costs no more than a small one. A store may stop
    /// looking behind ten times as many rows of other pipelines, and then counts too few.
    ///
    /// # Errors
    ///
    /// `Unavailable` when the database does not answer.
    async fn backlog(&self, pipeline: &Pipeline, cap: u64) -> Result<Option<Backlog>, StoreError> {
        let _ = (pipeline, cap);
        Ok(None)
    }
}

/// What a store can do. What it cannot do, the conformance kit skips by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Several workers share the lanes by leases; a stale epoch is refused. Without it: one lane, one owner.
    pub leases: bool,
    /// What the store knows about transactions that are still open.
    pub watermark: Watermark,
    /// Events may be written with a future due time.
    pub scheduled: bool,
    /// The writer supports savepoints (nested transactions).
    pub savepoints: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self { leases: false, watermark: Watermark::None, scheduled: true, savepoints: false }
    }
}

impl Capabilities {
    /// With leases or without.
    #[must_use]
    pub fn with_leases(mut self, leases: bool) -> Self {
        self.leases = leases;
        self
    }

    /// With this knowledge of open transactions.
    #[must_use]
    pub fn with_watermark(mut self, watermark: Watermark) -> Self {
        self.watermark = watermark;
        self
    }

    /// With or without scheduled events.
    #[must_use]
    pub fn with_scheduled(mut self, scheduled: bool) -> Self {
        self.scheduled = scheduled;
        self
    }

    /// With or without savepoints.
    #[must_use]
    pub fn with_savepoints(mut self, savepoints: bool) -> Self {
        self.savepoints = savepoints;
        self
    }
}

/// What a store knows about writers whose transactions are open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Watermark {
    /// Nothing: every claim starts from the lane's beginning.
    None,
    /// [`Store::probe`] names every open writer.
    Writers,
    /// Positions appear in their order (one writer at a time): what is below the highest one seen is all there is.
    CommitOrder,
}

/// A pipeline: one publisher, and the share of the table that it relays. Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct Pipeline(Arc<(String, TypeFilter)>);

impl Pipeline {
    /// The longest name in bytes.
    pub const MAX_NAME_BYTES: usize = 63;

    /// A pipeline over all aggregate types of its table.
    ///
    /// # Errors
    ///
    /// When the name is empty, longer than [`Self::MAX_NAME_BYTES`], or has characters other than `a-z A-Z 0-9 _ - .`.
    pub fn new(name: &str) -> Result<Self, StoreError> {
        Self::with_types(name, TypeFilter::All)
    }

    /// A pipeline over some aggregate types. The filters of the pipelines on one table must be disjoint.
    ///
    /// # Errors
    ///
    /// As [`Self::new`].
    pub fn with_types(name: &str, types: TypeFilter) -> Result<Self, StoreError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        if name.is_empty() || name.len() > Self::MAX_NAME_BYTES || !name.bytes().all(plain) {
            return Err(StoreError::misconfigured(format!(
                "pipeline name {name:?} must have 1 to {} of the characters a-z A-Z 0-9 _ - .",
                Self::MAX_NAME_BYTES
            )));
        }
        Ok(Self(Arc::new((name.to_owned(), types))))
    }

    /// The pipeline's name: leases, metrics and logs go by it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.0
    }

    /// The aggregate types that it relays.
    #[must_use]
    pub fn types(&self) -> &TypeFilter {
        &self.0.1
    }
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pipeline").field(&self.0.0).field(&self.0.1).finish()
    }
}

/// Which aggregate types a pipeline relays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TypeFilter {
    /// All.
    All,
    /// These.
    Only(BTreeSet<String>),
    /// All but these.
    Except(BTreeSet<String>),
}

impl TypeFilter {
    /// Whether the filter lets `aggregate_type` through.
    #[must_use]
    pub fn contains(&self, aggregate_type: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(types) => types.contains(aggregate_type),
            Self::Except(types) => !types.contains(aggregate_type),
        }
    }

    /// Whether some aggregate type passes both filters.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Only(a), Self::Only(b)) => !a.is_disjoint(b),
            (Self::Only(only), rest) | (rest, Self::Only(only)) => {
                only.iter().any(|aggregate_type| rest.contains(aggregate_type))
            }
            _ => true,
        }
    }
}

/// One relay process in one pipeline. A process that starts again is another worker.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Worker {
    /// Random, new at each start: a name can clash, an id cannot.
    pub id: Uuid,
    /// For people: host and process, say.
    pub name: String,
    /// The pipeline in which it works.
    pub pipeline: Pipeline,
}

impl Worker {
    /// A worker with a new id.
    #[must_use]
    pub fn new(pipeline: Pipeline, name: impl Into<String>) -> Self {
        Self { id: Uuid::new_v4(), name: name.into(), pipeline }
    }
}

/// What a heartbeat tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leases {
    /// The lanes that the worker owns.
    pub lanes: Vec<OwnedLane>,
    /// Live workers of the pipeline, this one among them.
    pub workers: u16,
    /// How many of the live workers come before this one, in an order on which all agree.
    pub rank: u16,
}

impl Leases {
    /// What a heartbeat found.
    #[must_use]
    pub fn new(lanes: Vec<OwnedLane>, workers: u16, rank: u16) -> Self {
        Self { lanes, workers, rank }
    }

    /// Lane 0 for ever: a store without leases.
    #[must_use]
    pub fn sole_owner() -> Self {
        Self::new(vec![OwnedLane { lane: 0, epoch: 0, crashes: 0 }], 1, 0)
    }
}

/// A lane in the hands of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnedLane {
    /// Which.
    pub lane: LaneId,
    /// Under which epoch.
    pub epoch: Epoch,
    /// How many owners in a row died with it.
    pub crashes: u16,
}

impl OwnedLane {
    /// A lane that is owned under this epoch, after so many owners in a row that died with it.
    #[must_use]
    pub fn new(lane: LaneId, epoch: Epoch, crashes: u16) -> Self {
        Self { lane, epoch, crashes }
    }
}

/// Which events a claim wants.
///
/// From each lane, in position order and at most `take`, the *fresh* rows: position above `from` and at or below `to`, not in
/// `exclude`, without a due time, of the pipeline's types, and without an earlier row of the same aggregate that waits for a retry
/// (`attempts > 0` and a due time). All lanes together give at most `limit` of them; lanes are served in the order given.
/// Besides, at most `limit` *due* rows: due time reached, position at or below the lane's `read`, not in `exclude`, of the
/// pipeline's types, and without an earlier waiting row of the same aggregate.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClaimRequest {
    /// Whose claim.
    pub pipeline: Pipeline,
    /// From where in each lane.
    pub lanes: Vec<LaneCursor>,
    /// Fresh rows at most, and due rows at most.
    pub limit: u32,
    /// Stop adding rows when their sizes exceed this many bytes; the first row is always given.
    pub bytes: usize,
    /// Positions that are known already: they neither come nor count.
    pub exclude: Vec<Position>,
}

impl ClaimRequest {
    /// A claim of up to `limit` rows and `bytes` bytes from these lanes.
    #[must_use]
    pub fn new(pipeline: Pipeline, lanes: Vec<LaneCursor>, limit: u32, bytes: usize) -> Self {
        Self { pipeline, lanes, limit, bytes, exclude: Vec::new() }
    }

    /// Leaves these positions out.
    #[must_use]
    pub fn excluding(mut self, exclude: Vec<Position>) -> Self {
        self.exclude = exclude;
        self
    }
}

/// One lane of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneCursor {
    /// Which lane.
    pub lane: LaneId,
    /// Fresh rows come from above this position; [`Position::MIN`] is from the beginning.
    pub from: Position,
    /// Fresh rows come from at or below this position, and no fresh row above it is looked at. [`Position::MAX`] is no bound:
    /// what the relay asks for, unless a claim got no answer because there was too much to look at.
    pub to: Position,
    /// Due rows come from at or below this position.
    pub read: Position,
    /// Fresh rows of this lane at most.
    pub take: u32,
}

impl LaneCursor {
    /// At most `take` fresh rows from above `from`, without an upper bound, and due rows from at or below `read`.
    #[must_use]
    pub fn new(lane: LaneId, from: Position, read: Position, take: u32) -> Self {
        Self { lane, from, to: Position::MAX, read, take }
    }
}

/// What a claim found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Claimed {
    /// Fresh and due rows; the order across lanes does not matter, within a lane fresh rows rise.
    pub events: Vec<Event>,
    /// How far each lane of the request was read, in the request's order.
    pub reads: Vec<LaneRead>,
    /// The database's clock when the statement ran, in microseconds since 1970; 0 when it has none to tell.
    pub now_micros: i64,
    /// Which server answered; when it changes, everything known about reading is void. Empty when it cannot change.
    pub server: String,
    /// The statement's snapshot, from a store whose [`Probe`] names transactions.
    pub snapshot: Option<Snapshot>,
}

impl Claimed {
    /// What a claim found, with `reads` in the order of the request's lanes.
    #[must_use]
    pub fn new(events: Vec<Event>, reads: Vec<LaneRead>) -> Self {
        Self { events, reads, ..Self::default() }
    }

    /// How far the lanes of `request` were read, told from the fresh rows that came.
    ///
    /// `cut` says that the statement stopped at a limit of the whole claim (rows or bytes), so that a lane with few rows
    /// may have more. Due rows among `events` are not looked at.
    #[must_use]
    pub fn reads_of(request: &ClaimRequest, events: &[Event], cut: bool) -> Vec<LaneRead> {
        let fresh = |cursor: &LaneCursor| {
            let mut count = 0u32;
            let mut last = cursor.from;
            for event in events.iter().filter(|e| e.lane() == cursor.lane && !e.is_waiting()) {
                count += 1;
                last = last.max(event.position());
            }
            (count, last)
        };
        request
            .lanes
            .iter()
            .map(|cursor| match fresh(cursor) {
                (count, last) if cut || count >= cursor.take => LaneRead::UpTo(last),
                _ => LaneRead::ToEnd,
            })
            .collect()
    }
}

/// How far a claim read one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneRead {
    /// There is nothing more behind what was given, up to the cursor's [`to`](LaneCursor::to).
    ToEnd,
    /// Every row up to this position was looked at; behind it there may be more.
    UpTo(Position),
}

impl LaneRead {
    /// What it says to a reader that asked for rows up to `to` only.
    pub(crate) fn within(self, to: Position) -> Self {
        match self {
            Self::ToEnd if to < Position::MAX => Self::UpTo(to),
            read => read,
        }
    }

    /// Whether something below this position may not have been looked at.
    pub(crate) fn is_short_of(self, position: Position) -> bool {
        matches!(self, Self::UpTo(read) if read < position)
    }
}

/// Who writes to the table.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Probe {
    /// The highest position in the table, or `after` when there is none above it.
    pub top: Position,
    /// Transactions that hold a writer's lock on the table.
    pub writers: Vec<OpenWriter>,
    /// Which server answered, as in [`Claimed::server`].
    pub server: String,
}

impl Probe {
    /// What a probe found.
    #[must_use]
    pub fn new(top: Position, writers: Vec<OpenWriter>, server: impl Into<String>) -> Self {
        Self { top, writers, server: server.into() }
    }
}

/// A transaction that may still bring rows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenWriter {
    /// Names the transaction for as long as the server runs.
    pub name: String,
    /// Its transaction id as the server's snapshots name it, once it has one.
    pub transaction: Option<u64>,
}

impl OpenWriter {
    /// A transaction of this name, with its id if it has one that snapshots name.
    #[must_use]
    pub fn new(name: impl Into<String>, transaction: Option<u64>) -> Self {
        Self { name: name.into(), transaction }
    }
}

/// A statement's snapshot: which transactions it still saw in progress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// All transactions below had ended.
    pub lowest_open: u64,
    /// All transactions from here on had not started.
    pub first_unborn: u64,
    /// Those between the two that were in progress, rising.
    pub in_progress: Vec<u64>,
}

impl Snapshot {
    /// A snapshot between these two transactions; `in_progress` rises.
    #[must_use]
    pub fn new(lowest_open: u64, first_unborn: u64, in_progress: Vec<u64>) -> Self {
        Self { lowest_open, first_unborn, in_progress }
    }

    /// Whether the snapshot saw nothing of `transaction`: it was in progress, or unborn.
    #[must_use]
    pub fn misses(&self, transaction: u64) -> bool {
        transaction >= self.first_unborn
            || (transaction >= self.lowest_open
                && self.in_progress.binary_search(&transaction).is_ok())
    }
}

/// Verdicts on events, for many lanes in one statement.
///
/// An event is in one of the three lists only.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settlements {
    /// Who settles.
    pub worker: Worker,
    /// The lanes of the events below, each once, rising, with the epoch under which the worker owns it.
    pub lanes: Vec<(LaneId, Epoch)>,
    /// Confirmed by the broker: the rows go.
    pub delivered: Vec<Delivered>,
    /// To be tried again: the rows stay and hold their aggregates.
    pub retries: Vec<Retry>,
    /// Given up: the rows move to the dead-letter table.
    pub dead: Vec<Dead>,
    /// Lanes whose crash count goes back to 0: what was there when they were taken over is settled.
    pub recovered: Vec<LaneId>,
}

impl Settlements {
    /// No verdict yet.
    #[must_use]
    pub fn new(worker: Worker) -> Self {
        Self {
            worker,
            lanes: Vec::new(),
            delivered: Vec::new(),
            retries: Vec::new(),
            dead: Vec::new(),
            recovered: Vec::new(),
        }
    }

    /// Events named.
    #[must_use]
    pub fn len(&self) -> usize {
        self.delivered.len() + self.retries.len() + self.dead.len()
    }

    /// Whether no event is named.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// An event that its broker confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delivered {
    /// Which event.
    pub receipt: Receipt,
    /// Where it went: for the archive.
    pub destination: Arc<str>,
}

impl Delivered {
    /// This event went to this destination.
    #[must_use]
    pub fn new(receipt: Receipt, destination: impl Into<Arc<str>>) -> Self {
        Self { receipt, destination: destination.into() }
    }
}

/// An event that is to be tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retry {
    /// Which event.
    pub receipt: Receipt,
    /// Its attempts from now on: at least 1, and absolute, so that a repeat does not count twice.
    pub attempts: u32,
    /// From now to the next try, by the database's clock; `None` is never: it is blocked until an operator decides.
    pub delay: Option<Duration>,
    /// Why, for people: at most [`MAX_REASON_BYTES`], without NUL.
    pub reason: String,
}

impl Retry {
    /// This event waits for `delay`, with `attempts` from now on; see the fields.
    #[must_use]
    pub fn new(
        receipt: Receipt,
        attempts: u32,
        delay: Option<Duration>,
        reason: impl Into<String>,
    ) -> Self {
        Self { receipt, attempts, delay, reason: reason.into() }
    }
}

/// An event that is given up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dead {
    /// Which event.
    pub receipt: Receipt,
    /// Its attempts, at least 1.
    pub attempts: u32,
    /// Why, for people: at most [`MAX_REASON_BYTES`], without NUL.
    pub reason: String,
}

impl Dead {
    /// This event is given up after so many attempts; see the fields.
    #[must_use]
    pub fn new(receipt: Receipt, attempts: u32, reason: impl Into<String>) -> Self {
        Self { receipt, attempts, reason: reason.into() }
    }
}

/// The longest reason that the relay hands to a store, in bytes.
pub const MAX_REASON_BYTES: usize = 4096;

/// A reason as a table of text can hold it: without NUL, and at most [`MAX_REASON_BYTES`] long. Of a longer one the beginning
/// and the end are kept, which name what was attempted and the cause.
#[must_use]
pub fn cut_reason(text: &str) -> String {
    const MARK: &str = " … ";
    let text = text.replace('\0', "\u{fffd}");
    if text.len() <= MAX_REASON_BYTES {
        return text;
    }
    let half = (MAX_REASON_BYTES - MARK.len()) / 2;
    let head = text.floor_char_boundary(half);
    let tail = text.ceil_char_boundary(text.len() - half);
    format!("{}{MARK}{}", &text[..head], &text[tail..])
}

/// What a settle did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settled {
    /// The named lanes that the worker still owned: theirs is written. Of the others nothing was touched.
    pub held: Vec<LaneId>,
    /// Named events of held lanes that were not there: settled before, or removed by an operator.
    pub missing: u64,
}

impl Settled {
    /// What a settle did.
    #[must_use]
    pub fn new(held: Vec<LaneId>, missing: u64) -> Self {
        Self { held, missing }
    }
}

/// Figures of a table for one pipeline.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Backlog {
    /// Pending events, counted up to the cap.
    pub pending: u64,
    /// Age of the oldest pending event that is due, by the database's clock.
    pub oldest: Option<Duration>,
    /// Aggregates whose head is blocked until an operator decides, counted up to the cap.
    pub blocked: u64,
    /// Dead letters, counted up to the cap.
    pub dead: u64,
    /// Size in bytes by table: `live`, `dead`, `archive`, `inbox`.
    pub table_bytes: Vec<(&'static str, u64)>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn only(types: &[&str]) -> TypeFilter {
        TypeFilter::Only(types.iter().map(ToString::to_string).collect())
    }

    fn except(types: &[&str]) -> TypeFilter {
        TypeFilter::Except(types.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn filters_overlap_when_one_type_passes_both() {
        assert!(!only(&["a"]).overlaps(&only(&["b"])));
        assert!(only(&["a", "b"]).overlaps(&only(&["b"])));
        assert!(!only(&["a"]).overlaps(&except(&["a", "b"])));
        assert!(except(&["a"]).overlaps(&only(&["a", "c"])));
        assert!(except(&["a"]).overlaps(&except(&["b"])));
        assert!(TypeFilter::All.overlaps(&only(&["a"])));
        assert!(!TypeFilter::All.overlaps(&only(&[])));
    }

    #[test]
    fn a_long_reason_keeps_its_head_and_its_tail() {
        assert_eq!(cut_reason("a\0b"), "a\u{fffd}b");
        let cut = cut_reason(&format!("connect{}cause", "é".repeat(20_000)));
        assert!(cut.starts_with("connecté") && cut.ends_with("écause"));
    }

    proptest! {
        #[test]
        fn every_reason_can_be_stored(reason in "(.|\0){0,6000}") {
            let cut = cut_reason(&reason);
            prop_assert!(cut.len() <= MAX_REASON_BYTES && !cut.contains('\0'));
        }
    }

    #[test]
    fn a_snapshot_misses_what_was_in_progress_or_unborn() {
        let snapshot = Snapshot { lowest_open: 10, first_unborn: 20, in_progress: vec![10, 15] };
        let missed: Vec<u64> = (8..22).filter(|id| snapshot.misses(*id)).collect();
        assert_eq!(missed, [10, 15, 20, 21]);
    }
}
