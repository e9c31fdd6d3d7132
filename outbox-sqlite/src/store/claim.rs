//! Reading pending events.

use futures_util::TryStreamExt;
use outbox_core::{ClaimRequest, Claimed, EventRows, Position, StoreError};
use serde_json::json;

use super::{SqliteStore, type_list};
use crate::row::ClaimedRow;

impl SqliteStore {
    /// One statement, so one snapshot; see [`crate::sql::Sql::claim`].
    pub(super) async fn read(&self, request: &ClaimRequest) -> Result<Claimed, StoreError> {
        if request.lanes.is_empty() {
            return Ok(Claimed::default());
        }
        let types = request.pipeline.types();
        let lowest = request.lanes.iter().map(|lane| lane.from).min().unwrap_or(0);
        let known_fresh: Vec<Position> =
            request.exclude.iter().copied().filter(|position| *position > lowest).collect();
        let reads: Vec<_> = request.lanes.iter().map(|lane| (lane.lane, lane.read)).collect();
        let mut query = sqlx::query(self.sql.claim(request.lanes.len(), types))
            .bind(type_list(types))
            .bind(json!(request.exclude).to_string())
            .bind(json!(known_fresh).to_string())
            .bind(json!(reads).to_string())
            .bind(request.limit);
        for lane in &request.lanes {
            query = query.bind(lane.lane).bind(lane.from).bind(lane.to).bind(lane.take);
        }

        let mut found = Found::default();
        let mut stream = query.fetch(&self.reader);
        while let Some(row) = stream.try_next().await.map_err(self.failed("claim from"))? {
            if !found.add(&ClaimedRow::read(&row)?, request) {
                break;
            }
        }
        drop(stream);
        Ok(found.into_claimed(request))
    }
}

/// What a claim has read so far.
#[derive(Default)]
struct Found {
    rows: EventRows,
    fresh: u32,
    bytes: usize,
    /// Whether the byte budget ended it.
    over: bool,
    now_micros: i64,
    server: String,
}

impl Found {
    /// Takes a row in; `false` when it would exceed the byte budget.
    fn add(&mut self, row: &ClaimedRow<'_>, request: &ClaimRequest) -> bool {
        if row.position.is_none() {
            (self.now_micros, self.server) = row.clock_and_identity();
            return true;
        }
        let bytes = self.bytes + row.size();
        if bytes > request.bytes && !self.rows.is_empty() {
            self.over = true;
            return false;
        }
        self.bytes = bytes;
        self.fresh += u32::from(row.is_fresh());
        row.push_to(&mut self.rows);
        true
    }

    fn into_claimed(self, request: &ClaimRequest) -> Claimed {
        let events = self.rows.finish();
        let cut = self.over || self.fresh >= request.limit;
        let reads = Claimed::reads_of(request, &events, cut);
        let mut claimed = Claimed::new(events, reads);
        claimed.now_micros = self.now_micros;
        claimed.server = self.server;
        claimed
    }
}
