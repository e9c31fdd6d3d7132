//! The claim: one statement, its rows copied into one buffer as they stream in.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::TryStreamExt as _;
use outbox_core::{ClaimRequest, Claimed, EventRows, Snapshot, StoreError};

use super::{PostgresStore, int2, types_of};
use crate::row::ClaimRow;
use crate::sql::REPLICA;

/// What a row is thought to take before the first was seen, in bytes.
const FIRST_GUESS: usize = 512;

/// The size of an average row of late, in bytes: so that a claim with a small budget does not ask for rows that it
/// would have to throw away.
#[derive(Debug)]
pub(super) struct RowBytes(AtomicUsize);

impl Default for RowBytes {
    fn default() -> Self {
        Self(AtomicUsize::new(FIRST_GUESS))
    }
}

impl RowBytes {
    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn saw(&self, rows: usize, bytes: usize) {
        if let Some(mean) = bytes.checked_div(rows) {
            self.0.store((self.get() + mean).div_ceil(2).max(1), Ordering::Relaxed);
        }
    }

    /// How many rows to ask for: somewhat fewer than fit, because what does not fit is read in vain.
    fn rows_within(&self, bytes: usize, limit: u32) -> u32 {
        u32::try_from(bytes / 10 * 9 / self.get() + 1).map_or(limit, |rows| rows.min(limit))
    }
}

impl PostgresStore {
    pub(super) async fn read(&self, request: &ClaimRequest) -> Result<Claimed, StoreError> {
        let rows = self.row_bytes.rows_within(request.bytes, request.limit);
        let mut query = self
            .database
            .query(self.statements.claim(request.pipeline.types(), !request.exclude.is_empty()))
            .bind(request.lanes.iter().map(|cursor| int2(cursor.lane)).collect::<Vec<_>>())
            .bind(request.lanes.iter().map(|cursor| cursor.from).collect::<Vec<_>>())
            .bind(request.lanes.iter().map(|cursor| cursor.to).collect::<Vec<_>>())
            .bind(request.lanes.iter().map(|cursor| cursor.read).collect::<Vec<_>>())
            .bind(request.lanes.iter().map(|cursor| int4(cursor.take)).collect::<Vec<_>>())
            .bind(i64::from(rows));
        if let Some(types) = types_of(request.pipeline.types()) {
            query = query.bind(types);
        }
        if !request.exclude.is_empty() {
            query = query.bind(request.exclude.clone());
        }
        let (payload, budget) = (self.config.payload, request.bytes);
        let row_bytes = self.row_bytes.get();
        let found = self
            .database
            .run_unless(
                "claim from",
                |found: &Found| found.left,
                move |connection| {
                    Box::pin(async move {
                        let mut found = Found::new(budget, rows, row_bytes);
                        let mut stream = query.fetch(connection);
                        while let Some(row) = stream.try_next().await? {
                            found.add(&ClaimRow::read(&row, payload)?);
                            if found.is_too_far_over() {
                                found.left = true;
                                break;
                            }
                        }
                        Ok(found)
                    })
                },
            )
            .await?;
        self.row_bytes.saw(found.seen, found.seen_bytes);
        self.claimed(request, found)
    }

    fn claimed(&self, request: &ClaimRequest, found: Found) -> Result<Claimed, StoreError> {
        let cut = found.stopped || found.fresh >= found.limit;
        let Some((server, snapshot, now_micros)) = found.server else {
            return Err(StoreError::unavailable("the claim's statement gave no row"));
        };
        if server == REPLICA {
            return Err(StoreError::unavailable(format!(
                "{} was read from a replica: connect to the primary",
                self.database.table()
            )));
        }
        let events = found.rows.finish();
        let reads = Claimed::reads_of(request, &events, cut);
        let mut claimed = Claimed::new(events, reads);
        claimed.server = server;
        claimed.snapshot = snapshot;
        claimed.now_micros = now_micros;
        Ok(claimed)
    }
}

/// What has streamed in so far.
struct Found {
    rows: EventRows,
    server: Option<(String, Option<Snapshot>, i64)>,
    limit: u32,
    budget: usize,
    row_bytes: usize,
    fresh: u32,
    seen: usize,
    seen_bytes: usize,
    /// The byte budget is used up, and rows were left out.
    stopped: bool,
    /// Not all rows were read: their connection is of no further use.
    left: bool,
}

impl Found {
    fn new(budget: usize, limit: u32, row_bytes: usize) -> Self {
        Self {
            rows: EventRows::default(),
            server: None,
            limit,
            budget,
            row_bytes,
            fresh: 0,
            seen: 0,
            seen_bytes: 0,
            stopped: false,
            left: false,
        }
    }

    /// Whether a new connection costs less than reading the rest of the rows. The row about the server may come last.
    fn is_too_far_over(&self) -> bool {
        self.stopped && self.server.is_some() && self.seen_bytes > self.budget + self.budget / 2
    }

    fn add(&mut self, row: &ClaimRow<'_>) {
        let event = match row {
            ClaimRow::Server { name, snapshot, now_micros } => {
                self.server = Some(((*name).to_owned(), snapshot.clone(), *now_micros));
                return;
            }
            ClaimRow::Event(event) => event,
        };
        let size = event.size();
        self.seen += 1;
        self.seen_bytes += size;
        if self.stopped {
            return;
        }
        if self.rows.is_empty() {
            let rows = self.limit as usize;
            self.rows = EventRows::with_capacity(rows, (rows * self.row_bytes).min(self.budget));
        }
        let half = self.budget / 2;
        if !self.rows.is_empty() {
            // Due rows come first and take half of the budget at most, so that they cannot starve the fresh ones.
            if event.waiting() && self.rows.bytes() + size > half {
                return;
            }
            if self.rows.bytes() + size > self.budget {
                self.stopped = true;
                return;
            }
        }
        self.fresh += u32::from(!event.waiting());
        event.push(&mut self.rows);
    }
}

fn int4(take: u32) -> i32 {
    i32::try_from(take).unwrap_or(i32::MAX)
}
