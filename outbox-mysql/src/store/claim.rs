//! The claim: what is there, then the rows of it that are not known, copied into one buffer as they stream in.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use futures_util::TryStreamExt as _;
use outbox_core::{
    ClaimRequest, Claimed, EventRows, LaneId, LaneRead, Position, StoreError, TypeFilter,
};
use sqlx::mysql::{MySqlArguments, MySqlConnection, MySqlRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, MySql};

use super::MySqlStore;
use crate::database::query;
use crate::row::{self, RawEvent};
use crate::sql::{Shape, Statements};

/// What a row is thought to take before the first was seen, in bytes.
const FIRST_GUESS: usize = 512;
/// Positions of a lane that are listed beyond what is asked for, in case that they are known.
const SPARE: usize = 16;

/// Flags of the listing: some row waits for a retry.
const HELD: u8 = 1;
/// Some row is due.
const DUE: u8 = 2;
/// The server is read-only.
const READ_ONLY: u8 = 4;

/// What claims remember for the next one, to ask for as much as is needed. Wrong, it costs a statement.
#[derive(Debug)]
pub(super) struct Expected {
    /// The size of an average row of late, in bytes.
    row_bytes: AtomicUsize,
    /// [`HELD`] and [`DUE`], as the last listing found them.
    flags: AtomicU8,
}

impl Default for Expected {
    fn default() -> Self {
        Self { row_bytes: AtomicUsize::new(FIRST_GUESS), flags: AtomicU8::new(0) }
    }
}

impl Expected {
    fn row_bytes(&self) -> usize {
        self.row_bytes.load(Ordering::Relaxed)
    }

    fn saw(&self, rows: usize, bytes: usize) {
        if let Some(mean) = bytes.checked_div(rows) {
            self.row_bytes.store((self.row_bytes() + mean).div_ceil(2).max(1), Ordering::Relaxed);
        }
    }
}

impl MySqlStore {
    pub(super) async fn read(&self, request: &ClaimRequest) -> Result<Claimed, StoreError> {
        let request = Arc::new(request.clone());
        let (statements, expected) = (Arc::clone(&self.statements), Arc::clone(&self.expected));
        let asked = Arc::clone(&request);
        let (listing, chosen, found) = self
            .database
            .run_unless(
                "claim from",
                |(_, _, found): &(Listing, Chosen, Found)| found.stopped,
                move |connection| {
                    let (request, statements) = (Arc::clone(&asked), Arc::clone(&statements));
                    let expected = Arc::clone(&expected);
                    Box::pin(async move {
                        let listing = list(connection, &statements, &request, &expected).await?;
                        let rows = expected.rows_within(request.bytes, request.limit);
                        let chosen = listing.choose(&request, rows);
                        let mut found = Found::new(request.bytes, expected.row_bytes());
                        if !chosen.is_empty() {
                            found.fetch(connection, &statements, &chosen).await?;
                            expected.saw(found.seen, found.seen_bytes);
                        }
                        Ok((listing, chosen, found))
                    })
                },
            )
            .await?;
        if listing.flags & READ_ONLY != 0 {
            return Err(StoreError::unavailable(format!(
                "{} was read from a read-only server: connect to the primary",
                self.database.table()
            )));
        }
        let reads = found.reads(&request, &listing, &chosen);
        let mut events = found.rows.finish();
        events.sort_by_key(outbox_core::Event::position);
        let mut claimed = Claimed::new(events, reads);
        claimed.now_micros = listing.now_micros;
        // Behind a connection that broke there may be a server that was restarted.
        claimed.server = format!("{}#{}", listing.server, self.database.breaks());
        Ok(claimed)
    }
}

impl Expected {
    /// How many rows to ask for.
    fn rows_within(&self, bytes: usize, limit: u32) -> usize {
        (bytes / self.row_bytes() + 1).min(limit as usize)
    }
}

/// Which positions there are, in one snapshot.
#[derive(Debug, Default)]
struct Listing {
    now_micros: i64,
    server: String,
    flags: u8,
    /// Of each lane of the request, those that are not known.
    fresh: Vec<Vec<Position>>,
    /// Whether a lane was listed to its end.
    ended: Vec<bool>,
    due: Vec<Position>,
    /// Something known took the place of something unknown.
    short: bool,
}

/// Lists, and once more when something waits that was not asked for, or what is known took the place of what is not: not the
/// rest alone, because a later statement could see an event whose predecessor this one could not see yet.
async fn list(
    connection: &mut MySqlConnection,
    statements: &Statements,
    request: &ClaimRequest,
    expected: &Expected,
) -> Result<Listing, sqlx::Error> {
    let known: HashSet<Position> = request.exclude.iter().copied().collect();
    let mut spare = known.len().div_ceil(request.lanes.len().max(1)) * 2 + SPARE;
    let mut flags = expected.flags.load(Ordering::Relaxed) & (HELD | DUE);
    loop {
        let types = request.pipeline.types();
        let shape =
            Shape { lanes: request.lanes.len(), types, held: flags & HELD != 0, due: flags != 0 };
        let spare_now = spare.min(known.len());
        let sql: Arc<str> = statements.list(shape).into();
        let rows = parameters(&sql, request, shape, spare_now).fetch_all(&mut *connection).await?;
        let listing = Listing::read(&rows, request, &known, spare_now)?;
        let more = listing.flags & !flags & (HELD | DUE);
        flags |= more;
        if more == 0 && (!listing.short || spare_now == known.len()) {
            expected.flags.store(listing.flags & (HELD | DUE), Ordering::Relaxed);
            return Ok(listing);
        }
        if listing.short {
            spare = known.len();
        }
    }
}

fn parameters(
    sql: &Arc<str>,
    request: &ClaimRequest,
    shape: Shape<'_>,
    spare: usize,
) -> Query<'static, MySql, MySqlArguments> {
    let mut query = sqlx::query(AssertSqlSafe(Arc::clone(sql)));
    let types: Vec<String> = match shape.types {
        TypeFilter::All => Vec::new(),
        TypeFilter::Only(types) | TypeFilter::Except(types) => types.iter().cloned().collect(),
    };
    let of_types = |mut query: Query<'static, MySql, MySqlArguments>| {
        for name in &types {
            query = query.bind(name.clone());
        }
        query
    };
    for _ in 0..2 {
        for cursor in &request.lanes {
            query = query.bind(cursor.lane);
        }
    }
    let room = |rows: u32| i64::from(rows).saturating_add(i64::try_from(spare).unwrap_or(i64::MAX));
    if shape.due {
        for _ in 0..2 {
            for cursor in &request.lanes {
                query = query.bind(cursor.lane);
            }
            query = of_types(query);
            for cursor in &request.lanes {
                query = query.bind(cursor.lane).bind(cursor.read);
            }
            query = query.bind(room(request.limit));
        }
        query = query.bind(room(request.limit));
    }
    for cursor in &request.lanes {
        query = query.bind(cursor.lane).bind(cursor.from).bind(cursor.to);
        query = of_types(query);
        query = query.bind(room(cursor.take));
    }
    query
}

impl Listing {
    fn read(
        rows: &[MySqlRow],
        request: &ClaimRequest,
        known: &HashSet<Position>,
        spare: usize,
    ) -> Result<Self, sqlx::Error> {
        let lanes = request.lanes.len();
        let mut listing =
            Self { fresh: vec![Vec::new(); lanes], ended: vec![true; lanes], ..Self::default() };
        for row in rows {
            let text = row::bytes(row, 2)?.map(String::from_utf8_lossy).unwrap_or_default();
            let number = row::int(row, 1)?.unwrap_or_default();
            let kind = row::int(row, 0)?;
            if kind == Some(0) {
                listing.now_micros = number;
                listing.server = text.into_owned();
                listing.flags =
                    u8::try_from(row::int(row, 3)?.unwrap_or_default()).unwrap_or_default();
                continue;
            }
            let listed = text.split(',').filter_map(|position| position.parse().ok());
            let mut positions: Vec<Position> = listed.collect();
            let all = positions.len();
            positions.retain(|position| !known.contains(position));
            positions.sort_unstable();
            let lane = usize::try_from(number).unwrap_or_default();
            let wanted = match (kind, request.lanes.get(lane)) {
                (Some(1), Some(cursor)) => cursor.take,
                _ => request.limit,
            } as usize;
            let full = all >= wanted + spare;
            listing.short |= full && positions.len() < wanted;
            if kind == Some(1) && lane < lanes {
                listing.ended[lane] = !full && positions.len() <= wanted;
                positions.truncate(wanted);
                listing.fresh[lane] = positions;
            } else {
                positions.truncate(wanted);
                listing.due = positions;
            }
        }
        Ok(listing)
    }

    /// Up to `rows` fresh positions in the order of the request's lanes, and as many due ones.
    fn choose(&self, request: &ClaimRequest, rows: usize) -> Chosen {
        let due: Vec<Position> = self.due.iter().copied().take(rows).collect();
        let mut left = rows;
        let mut fresh = Vec::with_capacity(request.lanes.len());
        for lane in &self.fresh {
            let take = lane.len().min(left);
            left -= take;
            fresh.push(lane[..take].to_vec());
        }
        Chosen { due, fresh }
    }
}

/// Which positions to fetch.
#[derive(Debug)]
struct Chosen {
    due: Vec<Position>,
    fresh: Vec<Vec<Position>>,
}

impl Chosen {
    fn is_empty(&self) -> bool {
        self.due.is_empty() && self.fresh.iter().all(Vec::is_empty)
    }

    /// Due rows come first; of them only half of the bytes are taken, so that they cannot starve the fresh ones.
    fn json(&self) -> String {
        let all: Vec<Position> =
            self.due.iter().chain(self.fresh.iter().flatten()).copied().collect();
        serde_json::json!(all).to_string()
    }
}

/// What has streamed in so far.
struct Found {
    rows: EventRows,
    budget: usize,
    row_bytes: usize,
    seen: usize,
    seen_bytes: usize,
    /// The highest fresh position of each lane that was taken.
    last: HashMap<LaneId, Position>,
    /// The byte budget is used up, and rows may be left.
    stopped: bool,
}

impl Found {
    fn new(budget: usize, row_bytes: usize) -> Self {
        Self {
            rows: EventRows::default(),
            budget,
            row_bytes,
            seen: 0,
            seen_bytes: 0,
            last: HashMap::new(),
            stopped: false,
        }
    }

    async fn fetch(
        &mut self,
        connection: &mut MySqlConnection,
        statements: &Statements,
        chosen: &Chosen,
    ) -> Result<(), sqlx::Error> {
        let due: HashSet<Position> = chosen.due.iter().copied().collect();
        let mut stream = query(&statements.fetch).bind(chosen.json()).fetch(connection);
        while let Some(row) = stream.try_next().await? {
            let event = RawEvent::read(&row)?;
            // An operator was faster: a row that waits now comes by its own branch.
            if event.waiting == due.contains(&event.position) {
                self.add(&event);
            }
            if self.stopped {
                break;
            }
        }
        Ok(())
    }

    fn add(&mut self, event: &RawEvent<'_>) {
        let size = event.size();
        self.seen += 1;
        self.seen_bytes += size;
        if self.rows.is_empty() {
            let rows = self.budget / self.row_bytes + 1;
            self.rows =
                EventRows::with_capacity(rows.min(1024), self.budget.min(rows * self.row_bytes));
        } else if event.waiting && self.rows.bytes() + size > self.budget / 2 {
            return;
        } else if self.rows.bytes() + size > self.budget {
            self.stopped = true;
            return;
        }
        if !event.waiting {
            let last = self.last.entry(event.lane).or_insert(event.position);
            *last = event.position.max(*last);
        }
        event.push(&mut self.rows);
    }

    fn reads(&self, request: &ClaimRequest, listing: &Listing, chosen: &Chosen) -> Vec<LaneRead> {
        let lanes = request.lanes.iter().zip(&listing.fresh).zip(&listing.ended).zip(&chosen.fresh);
        lanes
            .map(|(((cursor, listed), ended), chosen)| {
                let last = self.last.get(&cursor.lane).copied();
                if self.stopped {
                    LaneRead::UpTo(last.unwrap_or(cursor.from))
                } else if *ended && chosen.len() == listed.len() {
                    LaneRead::ToEnd
                } else {
                    LaneRead::UpTo(chosen.last().copied().unwrap_or(cursor.from))
                }
            })
            .collect()
    }
}
