//! The operator's side of the table.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::Bytes;

use super::MemoryStore;
use super::row::{DeadRow, Row};
use crate::{
    Administration, BlockedHead, DeadLetter, DeadLetterFilter, Drift, EventId, EventRecord,
    EventState, MAX_RECORDS, Page, Position, StoreError,
};

/// It has no tables to create or to check, and no archive.
#[async_trait]
impl Administration for MemoryStore {
    fn schema(&self) -> String {
        String::new()
    }

    async fn migrate(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn check(&self) -> Result<Vec<Drift>, StoreError> {
        Ok(Vec::new())
    }

    async fn dead_letters(
        &self,
        filter: &DeadLetterFilter,
        page: Page,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        let table = self.0.table();
        let letters = table.dead.iter().filter(|dead| dead.entry > page.after).map(letter);
        Ok(letters.filter(|it| filter.matches(it)).take(page.limit as usize).collect())
    }

    async fn count_dead_letters(&self, filter: &DeadLetterFilter) -> Result<u64, StoreError> {
        let table = self.0.table();
        Ok(table.dead.iter().filter(|dead| filter.matches(&letter(dead))).count() as u64)
    }

    async fn requeue(&self, entry: i64) -> Result<bool, StoreError> {
        let found = self.0.table().requeue_dead(|dead| dead.entry == entry);
        self.0.committed();
        Ok(found)
    }

    async fn discard(&self, entry: i64) -> Result<bool, StoreError> {
        Ok(self.0.table().discard_dead(|dead| dead.entry == entry))
    }

    async fn blocked_heads(&self, page: Page) -> Result<Vec<BlockedHead>, StoreError> {
        let table = self.0.table();
        let rows = table.pending().into_iter();
        let heads = rows.filter(|row| row.is_blocked() && row.position() > page.after);
        Ok(heads.take(page.limit as usize).map(head).collect())
    }

    async fn unblock(&self, position: Position) -> Result<bool, StoreError> {
        let found = self.0.table().unblock(|row| row.position() == position);
        self.0.committed();
        Ok(found)
    }

    async fn discard_blocked(&self, position: Position) -> Result<bool, StoreError> {
        let found = self.0.table().discard_blocked(|row| row.position() == position);
        self.0.committed();
        Ok(found)
    }

    async fn find(&self, id: &EventId) -> Result<Vec<EventRecord>, StoreError> {
        let table = self.0.table();
        let pending = table.pending().into_iter().filter(|row| row.id() == id).map(|row| {
            let (due_at, last_error) = (row.due_at.map(time), row.last_error.clone());
            record(row, EventState::of_row(row.attempts, due_at, row.is_blocked(), last_error))
        });
        let dead = table.dead.iter().filter(|dead| dead.row.id() == id).map(|dead| {
            let DeadRow { entry, row, reason, died_at } = dead;
            let (reason, died_at) = (reason.clone(), time(*died_at));
            record(row, EventState::Dead { entry: *entry, reason, died_at })
        });
        Ok(pending.chain(dead).take(MAX_RECORDS as usize).collect())
    }
}

fn letter(dead: &DeadRow) -> DeadLetter {
    let DeadRow { entry, row, reason, died_at } = dead;
    let event = &row.event;
    DeadLetter {
        aggregate_type: event.aggregate_type().to_owned(),
        aggregate_id: event.aggregate_id().map(str::to_owned),
        event_type: event.event_type().to_owned(),
        payload: event.payload().map(Bytes::copy_from_slice),
        headers: event.headers().map(str::to_owned),
        attempts: row.attempts,
        reason: reason.clone(),
        created_at: time(row.created_at()),
        died_at: time(*died_at),
        ..DeadLetter::new(*entry, row.id().clone())
    }
}

fn head(row: &Row) -> BlockedHead {
    let event = &row.event;
    BlockedHead {
        aggregate_type: event.aggregate_type().to_owned(),
        aggregate_id: event.aggregate_id().map(str::to_owned),
        event_type: event.event_type().to_owned(),
        attempts: row.attempts,
        reason: row.last_error.clone().unwrap_or_default(),
        created_at: time(row.created_at()),
        ..BlockedHead::new(row.position(), row.id().clone())
    }
}

fn record(row: &Row, state: EventState) -> EventRecord {
    let event = &row.event;
    EventRecord {
        aggregate_type: event.aggregate_type().to_owned(),
        aggregate_id: event.aggregate_id().map(str::to_owned),
        event_type: event.event_type().to_owned(),
        attempts: row.attempts,
        created_at: time(row.created_at()),
        ..EventRecord::new(row.id().clone(), row.position(), state)
    }
}

/// A time of the table's clock, which starts after 1970.
fn time(micros: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(micros.unsigned_abs())
}
