//! Which rows a claim gives.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

use super::row::Row;
use super::table::Table;
use crate::{ClaimRequest, Claimed, EventRows, LaneId, LaneRead, Position, Watermark};

impl Table {
    pub(super) fn claim(&self, request: &ClaimRequest) -> Claimed {
        let known: BTreeSet<Position> = request.exclude.iter().copied().collect();
        let held = self.held();
        let is_held = |row: &Row| {
            let first = row.aggregate().and_then(|aggregate| held.get(&aggregate));
            first.is_some_and(|first| *first < row.position())
        };
        let wanted = |row: &Row| {
            request.pipeline.types().contains(row.aggregate_type())
                && !known.contains(&row.position())
                && !is_held(row)
        };
        let mut page = Page { rows: EventRows::default(), budget: request.bytes };

        for row in
            self.due(request).into_iter().filter(|row| wanted(row)).take(request.limit as usize)
        {
            if !page.push(row) {
                break;
            }
        }

        let mut left = request.limit;
        let mut reads = Vec::with_capacity(request.lanes.len());
        for cursor in &request.lanes {
            let (mut taken, mut last) = (0, cursor.from);
            let mut read = LaneRead::ToEnd;
            let lane = (Excluded((cursor.lane, cursor.from)), Unbounded);
            let is_in_range = |at: &(LaneId, Position)| at.0 == cursor.lane && at.1 <= cursor.to;
            for (_, row) in self.rows.range(lane).take_while(|(at, _)| is_in_range(at)) {
                if row.due_at.is_some() || !wanted(row) {
                    continue;
                }
                if taken == cursor.take || left == 0 || !page.push(row) {
                    read = LaneRead::UpTo(last);
                    break;
                }
                (taken, left, last) = (taken + 1, left - 1, row.position());
            }
            reads.push(read);
        }

        Claimed {
            now_micros: self.now(),
            snapshot: (self.capabilities.watermark == Watermark::Writers).then(|| self.snapshot()),
            ..Claimed::new(page.rows.finish(), reads)
        }
    }

    /// The first waiting row of each aggregate that has one: it holds all later ones.
    fn held(&self) -> BTreeMap<(&str, &str), Position> {
        let mut held = BTreeMap::new();
        for row in self.rows.values().filter(|row| row.holds()) {
            if let Some(key) = row.aggregate() {
                held.entry(key).or_insert(row.position());
            }
        }
        held
    }

    /// Rows of the claimed lanes whose time has come, the longest due first.
    fn due(&self, request: &ClaimRequest) -> Vec<&Row> {
        let now = self.now();
        let mut due: Vec<&Row> = Vec::new();
        for cursor in &request.lanes {
            let lane = (cursor.lane, Position::MIN)..=(cursor.lane, cursor.read);
            let rows = self.rows.range(lane).map(|(_, row)| row);
            due.extend(rows.filter(|row| row.due_at.is_some_and(|due_at| due_at <= now)));
        }
        due.sort_by_key(|row| (row.due_at, row.position()));
        due
    }
}

/// The rows of one claim within its budget in bytes; the first row always fits.
struct Page {
    rows: EventRows,
    budget: usize,
}

impl Page {
    fn push(&mut self, row: &Row) -> bool {
        let fits = self.rows.is_empty() || self.rows.bytes() + row.size() <= self.budget;
        if fits {
            self.rows.push(&row.read());
        }
        fits
    }
}
