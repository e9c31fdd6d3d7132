//! Stores with one thing broken.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_core::memory::MemoryStore;
use outbox_core::{
    Backlog, Capabilities, ClaimRequest, Claimed, Epoch, EventId, LaneId, LaneRead, Leases,
    Pipeline, Position, Probe, Settled, Settlements, Snapshot, Store, StoreError, StoreErrorKind,
    TypeFilter, Worker, async_trait,
};

use crate::bites;
use crate::memory::Memory;

bites! { store,
    a_cursor_at_the_highest_position_seen: a_late_commit_is_seen on broken(How::ForgetsLateCommits);
    positions_from_one_on: a_position_given_by_hand_is_read_like_any_other on broken(How::ReadsFromOne);
    a_claim_that_hides_what_it_gave: a_claim_is_a_read on broken(How::HidesWhatItGave);
    a_retry_that_holds_nobody: a_retry_holds_its_aggregate_and_no_other on broken(How::HoldsNobody);
    a_retry_that_holds_nobody_behind: only_what_is_behind_a_waiting_event_is_held on broken(How::HoldsNobody);
    a_retry_that_holds_its_lane: a_retry_holds_its_aggregate_and_no_other on broken(How::HoldsTheLane);
    an_unordered_retry_that_holds_its_lane: an_unordered_event_holds_nobody on broken(How::HoldsTheLane);
    a_hold_by_id_alone: an_aggregate_is_its_type_and_its_id on broken(How::HoldsById);
    a_scheduled_event_that_holds: a_scheduled_event_holds_nobody on broken(How::ScheduledHolds);
    a_blocked_head_that_comes: a_blocked_head_holds_until_it_is_requeued on broken(How::BlocksForNoTime);
    due_rows_from_beyond_read: due_events_come_from_what_was_read_and_not_excluded on broken(How::IgnoresRead);
    an_exclusion_that_is_ignored: due_events_come_from_what_was_read_and_not_excluded on broken(How::IgnoresExclusion);
    an_exclusion_that_counts: what_is_excluded_neither_comes_nor_counts on broken(How::ExclusionCounts);
    a_hold_that_ends_when_the_second_is_due: a_due_event_waits_behind_an_earlier_waiting_one on broken(How::HoldsNobody);
    a_retry_without_its_delay: a_retry_comes_when_the_stores_clock_says_so on broken(How::ForgetsDelays);
    a_retry_that_never_comes: a_retry_comes_when_the_stores_clock_says_so on broken(How::IgnoresDue);
    a_scheduled_event_that_never_comes: a_scheduled_event_comes_when_the_stores_clock_says_so on broken(How::IgnoresDue);
    rows_in_any_order: events_of_a_lane_rise on broken(How::ReversesRows);
    take_ignored: a_lane_gives_no_more_than_take on broken(How::IgnoresTake);
    limit_ignored: a_claim_gives_no_more_than_limit on broken(How::IgnoresLimit);
    bytes_ignored: a_claim_stops_at_its_bytes on broken(How::IgnoresBytes);
    a_large_row_that_never_comes: the_first_row_always_comes on broken(How::KeepsLargeRows);
    reads_that_say_too_much: reads_are_truthful on broken(How::AlwaysToEnd);
    reads_that_never_end: reads_are_truthful on broken(How::NeverToEnd);
    a_cursor_that_is_ignored: a_claim_starts_behind_its_cursor on broken(How::IgnoresFrom);
    a_bound_that_is_ignored: a_claim_ends_at_its_bound on broken(How::IgnoresTo);
    an_end_that_is_the_tables: a_claim_ends_at_its_bound on broken(How::EndsAtTheTop);
    a_filter_that_is_ignored: the_type_filter_is_kept on broken(How::IgnoresTypes);
    deliveries_without_a_fence: a_stale_epoch_delivers_nothing on broken(How::NoFence);
    retries_without_a_fence: a_stale_epoch_retries_nothing on broken(How::NoFence);
    dead_letters_without_a_fence: a_stale_epoch_buries_nothing on broken(How::NoFence);
    a_recovery_without_a_fence: a_stale_epoch_recovers_nothing on broken(How::NoFence);
    lanes_that_all_own: two_workers_never_win_one_lane on broken(How::EveryoneOwnsAll);
    a_living_owner_robbed: a_living_owner_keeps_its_lanes on broken(How::EveryoneOwnsAll);
    a_crash_that_is_not_counted: a_lease_that_ran_out_is_taken_with_a_higher_epoch on broken(How::CountsNoCrash);
    an_epoch_that_stands_still: a_lease_that_ran_out_is_taken_with_a_higher_epoch on broken(How::OneEpoch);
    a_release_counted_as_a_crash: a_clean_release_counts_no_crash on broken(How::CountsReleases);
    a_release_of_everything: a_clean_release_counts_no_crash on broken(How::ReleasesAll);
    a_leave_that_keeps_the_lanes: a_worker_that_leaves_frees_its_lanes on broken(How::NeverLeaves);
    a_buried_worker_that_owns: a_buried_worker_owns_nothing on broken(How::RemembersLeases);
    a_heartbeat_that_sees_itself_only: a_heartbeat_counts_the_living on broken(How::CountsItself);
    an_overlap_that_is_allowed: overlapping_filters_are_refused on broken(How::JoinsAnything);
    a_heartbeat_that_always_extends: a_lease_that_ran_out_is_not_extended_into_an_overlap on broken(How::AlwaysExtends);
    leases_across_pipelines: pipelines_do_not_see_each_others_leases on broken(How::OnePipeline);
    a_settle_that_needs_every_lane: a_settle_is_all_or_nothing_per_lane on broken(How::AllLanesOrNone);
    a_settle_without_a_fence: a_settle_is_all_or_nothing_per_lane on broken(How::NoFence);
    a_settle_of_the_first_lane: one_settle_writes_many_lanes on broken(How::FirstLaneOnly);
    attempts_that_add_up: settling_twice_changes_nothing_more on broken(How::AddsAttempts);
    a_missing_event_not_told: settling_twice_changes_nothing_more on broken(How::NeverMissing);
    a_settle_by_position: a_settle_compares_lane_position_and_id on broken(How::ComparesPosition);
    a_dead_letter_lost: a_dead_letter_moves_whole on broken(How::LosesTheDead);
    a_dead_event_that_blocks: a_dead_event_lets_its_aggregate_go_on on broken(How::DeadBlocks);
    a_bad_row_that_stops_all: one_bad_row_does_not_stop_the_others on broken(How::StopsAtBadRows);
    a_bad_row_never_seen: one_bad_row_does_not_stop_the_others on broken(How::HidesBadRows);
    a_refusal_taken_for_an_outage: one_refused_row_is_no_outage on broken(How::RefusesAsUnavailable);
    a_refusal_of_half_a_settle: one_refused_row_is_no_outage on broken(How::RefusesTheDeadAlone);
    a_reason_cut_off: the_longest_reason_fits on broken(How::CutsReasons);
    a_backlog_without_a_cap: backlog_counts_stop_at_the_cap on broken(How::IgnoresCap);
    a_writer_not_named: a_probe_names_an_open_writer_until_it_ends on broken(How::SeesNoWriters);
    a_top_not_found: a_probe_finds_the_top on broken(How::FindsNoTop);
    a_snapshot_that_misses_all: a_snapshot_misses_the_open_transaction on broken(How::EmptySnapshot);
    a_claim_that_marks_and_unmarks: cancelled_calls_lose_nothing on broken(How::LosesCancelledClaims);
    a_store_spoilt_by_an_error: the_store_works_after_an_error on broken(How::SpoiltByErrors);
}

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    ForgetsLateCommits,
    ReadsFromOne,
    HidesWhatItGave,
    HoldsNobody,
    HoldsTheLane,
    HoldsById,
    ScheduledHolds,
    BlocksForNoTime,
    IgnoresRead,
    IgnoresExclusion,
    ExclusionCounts,
    ForgetsDelays,
    IgnoresDue,
    ReversesRows,
    IgnoresTake,
    IgnoresLimit,
    IgnoresBytes,
    KeepsLargeRows,
    AlwaysToEnd,
    NeverToEnd,
    IgnoresFrom,
    IgnoresTo,
    EndsAtTheTop,
    IgnoresTypes,
    NoFence,
    EveryoneOwnsAll,
    CountsNoCrash,
    OneEpoch,
    CountsReleases,
    ReleasesAll,
    NeverLeaves,
    RemembersLeases,
    CountsItself,
    JoinsAnything,
    AlwaysExtends,
    OnePipeline,
    AllLanesOrNone,
    FirstLaneOnly,
    AddsAttempts,
    NeverMissing,
    ComparesPosition,
    LosesTheDead,
    DeadBlocks,
    StopsAtBadRows,
    HidesBadRows,
    RefusesAsUnavailable,
    RefusesTheDeadAlone,
    CutsReasons,
    IgnoresCap,
    SeesNoWriters,
    FindsNoTop,
    EmptySnapshot,
    LosesCancelledClaims,
    SpoiltByErrors,
}

fn broken(how: How) -> Memory {
    let table = MemoryStore::new();
    let store = Broken { table: table.clone(), how, notes: Mutex::default() };
    let refuses = matches!(how, How::RefusesAsUnavailable | How::RefusesTheDeadAlone);
    Memory { table, store: Arc::new(store), refuses }
}

#[derive(Debug)]
struct Broken {
    table: MemoryStore,
    how: How,
    notes: Mutex<Notes>,
}

/// What a broken store remembers though it should not.
#[derive(Debug, Default)]
struct Notes {
    highest: Position,
    hidden: BTreeSet<Position>,
    owners: BTreeMap<LaneId, (Worker, Epoch)>,
    leases: BTreeMap<uuid::Uuid, Leases>,
    spoilt: bool,
}

impl Broken {
    fn is(&self, how: How) -> bool {
        self.how == how
    }

    fn notes(&self) -> std::sync::MutexGuard<'_, Notes> {
        self.notes.lock().unwrap()
    }

    fn spoil_request(&self, request: &mut ClaimRequest) {
        let notes = self.notes();
        for cursor in &mut request.lanes {
            match self.how {
                How::ForgetsLateCommits => cursor.from = cursor.from.max(notes.highest),
                How::ReadsFromOne => cursor.from = cursor.from.max(0),
                How::IgnoresRead => cursor.read = Position::MAX,
                How::IgnoresDue => cursor.read = 0,
                How::IgnoresTake => cursor.take = u32::MAX,
                How::IgnoresFrom => cursor.from = 0,
                How::IgnoresTo => cursor.to = Position::MAX,
                _ => {}
            }
        }
        match self.how {
            How::HidesWhatItGave | How::HoldsNobody | How::LosesCancelledClaims => {
                request.exclude.extend(&notes.hidden);
            }
            How::IgnoresExclusion => request.exclude.clear(),
            How::IgnoresLimit => request.limit = u32::MAX,
            How::IgnoresBytes => request.bytes = usize::MAX,
            How::IgnoresTypes => request.pipeline = Pipeline::new("kit").unwrap(),
            _ => {}
        }
    }

    fn spoil_claim(&self, request: &ClaimRequest, claimed: &mut Claimed) -> Result<(), StoreError> {
        let pending = self.table.pending();
        match self.how {
            How::ForgetsLateCommits => {
                let highest = claimed.events.iter().map(outbox_core::Event::position).max();
                self.notes().highest = highest.unwrap_or(0);
            }
            How::HidesWhatItGave => {
                self.notes().hidden.extend(claimed.events.iter().map(outbox_core::Event::position));
            }
            How::ExclusionCounts => {
                claimed.events.retain(|it| !request.exclude.contains(&it.position()));
            }
            How::HoldsTheLane => claimed.events.retain(|event| {
                !pending.iter().any(|it| it.holds_aggregate() && it.lane() == event.lane())
            }),
            How::HoldsById => claimed.events.retain(|event| {
                let same = |id: &str| {
                    event.aggregate_id().is_some_and(|it| it.trim().eq_ignore_ascii_case(id))
                };
                !pending
                    .iter()
                    .any(|it| it.holds_aggregate() && it.aggregate_id().is_some_and(same))
            }),
            How::ScheduledHolds => claimed.events.retain(|event| {
                !pending
                    .iter()
                    .any(|it| it.is_waiting() && it.aggregate_id() == event.aggregate_id())
            }),
            How::ReversesRows => claimed.events.reverse(),
            How::KeepsLargeRows => claimed.events.retain(|event| event.size() <= request.bytes),
            // What it says of a lane that was bounded counts for the table.
            How::EndsAtTheTop => {
                let top = pending.iter().map(outbox_core::Event::position).max().unwrap_or(0);
                for (cursor, read) in request.lanes.iter().zip(&mut claimed.reads) {
                    if cursor.to < Position::MAX && *read == LaneRead::ToEnd {
                        *read = LaneRead::UpTo(top);
                    }
                }
            }
            How::AlwaysToEnd => claimed.reads.fill(LaneRead::ToEnd),
            How::NeverToEnd => claimed.reads.fill(LaneRead::UpTo(0)),
            How::StopsAtBadRows if claimed.events.iter().any(|event| event.fault().is_some()) => {
                return Err(StoreError::misconfigured("a row is no UTF-8"));
            }
            How::HidesBadRows => claimed.events.retain(|event| event.fault().is_none()),
            How::EmptySnapshot => claimed.snapshot = Some(Snapshot::default()),
            _ => {}
        }
        Ok(())
    }

    fn spoil_settlements(&self, it: &mut Settlements) {
        match self.how {
            How::HoldsNobody => {
                let hidden = it.retries.drain(..).map(|retry| retry.receipt.position);
                self.notes().hidden.extend(hidden);
            }
            How::BlocksForNoTime => {
                it.retries.iter_mut().for_each(|it| it.delay = it.delay.or(Some(Duration::ZERO)));
            }
            How::ForgetsDelays => {
                it.retries.iter_mut().for_each(|it| it.delay = it.delay.map(|_| Duration::ZERO));
            }
            How::NoFence => {
                let notes = self.notes();
                for (lane, epoch) in &mut it.lanes {
                    (it.worker, *epoch) = notes.owners[lane].clone();
                }
            }
            How::FirstLaneOnly => it.lanes.truncate(1),
            How::AddsAttempts => {
                for retry in &mut it.retries {
                    let row =
                        self.table.pending().into_iter().find(|row| row.receipt() == retry.receipt);
                    retry.attempts = row.map_or(1, |row| row.attempts() + 1);
                }
            }
            How::ComparesPosition => {
                let pending = self.table.pending();
                let receipts = it.delivered.iter_mut().map(|it| &mut it.receipt);
                let receipts = receipts.chain(it.retries.iter_mut().map(|it| &mut it.receipt));
                for receipt in receipts.chain(it.dead.iter_mut().map(|it| &mut it.receipt)) {
                    if let Some(row) = pending.iter().find(|row| row.position() == receipt.position)
                    {
                        *receipt = row.receipt();
                    }
                }
            }
            How::LosesTheDead => it.delivered.extend(
                it.dead.drain(..).map(|dead| outbox_core::Delivered::new(dead.receipt, "")),
            ),
            How::DeadBlocks => {
                it.retries.extend(it.dead.drain(..).map(|dead| {
                    outbox_core::Retry::new(dead.receipt, dead.attempts, None, dead.reason)
                }));
            }
            How::CutsReasons => it.dead.iter_mut().for_each(|it| it.reason.truncate(5)),
            _ => {}
        }
    }

    fn spoil_leases(&self, worker: &Worker, leases: &mut Leases) {
        let mut notes = self.notes();
        for owned in &mut leases.lanes {
            notes.owners.insert(owned.lane, (worker.clone(), owned.epoch));
            match self.how {
                How::CountsNoCrash => owned.crashes = 0,
                How::OneEpoch => owned.epoch = 1,
                How::CountsReleases => owned.crashes += 1,
                _ => {}
            }
        }
        match self.how {
            How::EveryoneOwnsAll => {
                let owned = |lane| outbox_core::OwnedLane::new(lane, 1, 0);
                leases.lanes = (0..16).map(owned).collect();
            }
            How::RemembersLeases => {
                let last = notes.leases.entry(worker.id).or_default();
                if leases.lanes.is_empty() {
                    leases.lanes.clone_from(&last.lanes);
                }
                last.lanes.clone_from(&leases.lanes);
            }
            How::CountsItself => (leases.workers, leases.rank) = (1, 0),
            _ => {}
        }
    }

    fn worker(&self, worker: &Worker) -> Worker {
        let mut worker = worker.clone();
        if self.is(How::OnePipeline) {
            worker.pipeline = Pipeline::with_types("one", TypeFilter::All).unwrap();
        }
        worker
    }
}

#[async_trait]
impl Store for Broken {
    fn capabilities(&self) -> Capabilities {
        self.table.capabilities()
    }

    async fn join(&self, worker: &Worker) -> Result<u16, StoreError> {
        let joined = self.table.join(&self.worker(worker)).await;
        if self.is(How::JoinsAnything) { Ok(16) } else { joined }
    }

    async fn heartbeat(&self, worker: &Worker, lease: Duration) -> Result<Leases, StoreError> {
        let beat = self.table.heartbeat(&self.worker(worker), lease).await;
        let mut leases = if self.is(How::AlwaysExtends) { beat.unwrap_or_default() } else { beat? };
        self.spoil_leases(worker, &mut leases);
        Ok(leases)
    }

    async fn acquire(&self, worker: &Worker, count: u16) -> Result<(), StoreError> {
        self.table.acquire(&self.worker(worker), count).await
    }

    async fn release(&self, worker: &Worker, lanes: &[LaneId]) -> Result<(), StoreError> {
        let all: Vec<LaneId> = (0..16).collect();
        let lanes = if self.is(How::ReleasesAll) { &all } else { lanes };
        self.table.release(worker, lanes).await
    }

    async fn leave(&self, worker: &Worker) -> Result<(), StoreError> {
        if self.is(How::NeverLeaves) {
            return Ok(());
        }
        self.table.leave(worker).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, StoreError> {
        if self.notes().spoilt {
            return Err(StoreError::unavailable("current transaction is aborted"));
        }
        let mut spoilt = request.clone();
        self.spoil_request(&mut spoilt);
        if self.is(How::ExclusionCounts) {
            spoilt.exclude.clear();
        }
        let mut claimed = self.table.claim(&spoilt).await?;
        self.spoil_claim(request, &mut claimed)?;
        if self.is(How::LosesCancelledClaims) {
            let given: Vec<Position> =
                claimed.events.iter().map(outbox_core::Event::position).collect();
            self.notes().hidden.extend(&given);
            tokio::time::sleep(Duration::from_millis(1)).await;
            self.notes().hidden.retain(|position| !given.contains(position));
        }
        Ok(claimed)
    }

    async fn settle(&self, settlements: &Settlements) -> Result<Settled, StoreError> {
        let odd = |id: &EventId| id.as_uuid().is_none();
        if self.is(How::SpoiltByErrors)
            && settlements.delivered.iter().any(|it| odd(&it.receipt.id))
        {
            self.notes().spoilt = true;
        }
        if self.is(How::RefusesAsUnavailable) && !settlements.dead.is_empty() {
            return Err(StoreError::unavailable("a trigger refused it"));
        }
        let mut spoilt = settlements.clone();
        if self.is(How::RefusesTheDeadAlone) && !spoilt.dead.is_empty() {
            spoilt.dead.clear();
            self.table.settle(&spoilt).await?;
            return Err(StoreError::new(StoreErrorKind::Rejected, "a trigger refused it"));
        }
        if self.is(How::AllLanesOrNone) {
            let mut probe = settlements.clone();
            (probe.delivered, probe.retries, probe.dead) = Default::default();
            if self.table.settle(&probe).await?.held.len() < settlements.lanes.len() {
                return Ok(Settled::default());
            }
        }
        self.spoil_settlements(&mut spoilt);
        let mut settled = self.table.settle(&spoilt).await?;
        match self.how {
            How::NeverMissing => settled.missing = 0,
            How::FirstLaneOnly => {
                settled.held = settlements.lanes.iter().map(|(lane, _)| *lane).collect();
            }
            _ => {}
        }
        Ok(settled)
    }

    async fn probe(&self, after: Position) -> Result<Probe, StoreError> {
        let mut probe = self.table.probe(after).await?;
        match self.how {
            How::SeesNoWriters => probe.writers.clear(),
            How::FindsNoTop => probe.top = after,
            _ => {}
        }
        Ok(probe)
    }

    async fn backlog(&self, pipeline: &Pipeline, cap: u64) -> Result<Option<Backlog>, StoreError> {
        let cap = if self.is(How::IgnoresCap) { u64::MAX } else { cap };
        self.table.backlog(pipeline, cap).await
    }
}
