//! Schema, dead letters, blocked heads and the whereabouts of an event, for operators.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::Bytes;
use outbox_core::{
    Administration, BlockedHead, DeadLetter, DeadLetterFilter, Drift, EventId, EventRecord,
    EventState, Page, Position, StoreError,
};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{Postgres, Row as _};
use uuid::Uuid;

use crate::Schema;
use crate::config::{PayloadType, PostgresConfig};
use crate::database::Database;
use crate::row;
use crate::sql::AdminStatements;

/// The outbox in the hands of an operator.
///
/// It has one connection of its own, on which a statement may take as long as a migration (`migrate_timeout`).
#[derive(Debug)]
pub struct PostgresAdministration {
    schema: Schema,
    database: Database,
    statements: AdminStatements,
    payload: PayloadType,
}

impl PostgresAdministration {
    /// The outbox that `config` names. It connects when it is first used. Call it within a Tokio runtime.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when a setting is out of range.
    pub fn new(config: &PostgresConfig) -> Result<Self, StoreError> {
        config.validate()?;
        let patient = config.clone().with_statement_timeout(config.migrate_timeout);
        let database = Database::new(&patient, 1);
        Ok(Self {
            schema: Schema::on(config.clone(), database.clone()),
            database,
            statements: AdminStatements::new(config),
            payload: config.payload,
        })
    }

    /// A statement about the dead letters that `filter` means; `None` when there can be none.
    fn filtered(
        &self,
        statement: &Arc<str>,
        filter: &DeadLetterFilter,
    ) -> Option<Query<'static, Postgres, PgArguments>> {
        let id = match &filter.id {
            None => None,
            Some(id) => Some(id.as_uuid()?),
        };
        let filter = filter.clone();
        let query = self
            .database
            .query(statement)
            .bind(id)
            .bind(filter.since.map(micros))
            .bind(filter.until.map(micros))
            .bind(filter.aggregate_type)
            .bind(filter.aggregate_id)
            .bind(filter.event_type)
            .bind(filter.text);
        Some(query)
    }

    /// Runs a statement on one row; whether it was there.
    async fn change(
        &self,
        action: &'static str,
        statement: &Arc<str>,
        key: i64,
    ) -> Result<bool, StoreError> {
        let change = self.database.query(statement).bind(key);
        self.database
            .run(action, move |connection| {
                Box::pin(async move { Ok(change.execute(connection).await?.rows_affected() == 1) })
            })
            .await
    }
}

#[async_trait]
impl Administration for PostgresAdministration {
    fn schema(&self) -> String {
        self.schema.sql()
    }

    async fn migrate(&self) -> Result<(), StoreError> {
        self.schema.migrate().await
    }

    async fn check(&self) -> Result<Vec<Drift>, StoreError> {
        self.schema.check().await
    }

    async fn dead_letters(
        &self,
        filter: &DeadLetterFilter,
        page: Page,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        let Some(list) = self.filtered(&self.statements.list, filter) else {
            return Ok(Vec::new());
        };
        let list = list.bind(page.after).bind(i64::from(page.limit));
        let payload = self.payload;
        self.database
            .run("list the dead letters of", move |connection| {
                Box::pin(async move {
                    let rows = list.fetch_all(connection).await?;
                    rows.iter().map(|row| letter(row, payload)).collect()
                })
            })
            .await
    }

    async fn count_dead_letters(&self, filter: &DeadLetterFilter) -> Result<u64, StoreError> {
        let Some(count) = self.filtered(&self.statements.count, filter) else { return Ok(0) };
        self.database
            .run("count the dead letters of", move |connection| {
                Box::pin(async move {
                    let count: i64 = count.fetch_one(connection).await?.try_get(0)?;
                    Ok(u64::try_from(count).unwrap_or_default())
                })
            })
            .await
    }

    async fn requeue(&self, entry: i64) -> Result<bool, StoreError> {
        self.change("requeue a dead letter of", &self.statements.requeue, entry).await
    }

    async fn discard(&self, entry: i64) -> Result<bool, StoreError> {
        self.change("discard a dead letter of", &self.statements.discard, entry).await
    }

    async fn blocked_heads(&self, page: Page) -> Result<Vec<BlockedHead>, StoreError> {
        let list = self.database.query(&self.statements.list_blocked);
        let list = list.bind(page.after).bind(i64::from(page.limit));
        self.database
            .run("list the blocked heads of", move |connection| {
                Box::pin(
                    async move { list.fetch_all(connection).await?.iter().map(head).collect() },
                )
            })
            .await
    }

    async fn unblock(&self, position: Position) -> Result<bool, StoreError> {
        self.change("unblock a head of", &self.statements.unblock, position).await
    }

    async fn discard_blocked(&self, position: Position) -> Result<bool, StoreError> {
        self.change("discard a blocked head of", &self.statements.discard_blocked, position).await
    }

    /// Ids are UUIDs here: any other text is an id of no event.
    async fn find(&self, id: &EventId) -> Result<Vec<EventRecord>, StoreError> {
        let Some(id) = id.as_uuid() else { return Ok(Vec::new()) };
        let find = self.database.query(&self.statements.find).bind(id);
        self.database
            .run("look for an event of", move |connection| {
                Box::pin(
                    async move { find.fetch_all(connection).await?.iter().map(record).collect() },
                )
            })
            .await
    }
}

fn letter(row: &PgRow, payload: PayloadType) -> Result<DeadLetter, sqlx::Error> {
    let mut letter = DeadLetter::new(row.try_get(0)?, row.try_get::<Uuid, _>(1)?.into());
    letter.aggregate_type = text(row, 2)?.unwrap_or_default();
    letter.aggregate_id = text(row, 3)?;
    letter.event_type = text(row, 4)?.unwrap_or_default();
    letter.payload = row::payload(row, 5, payload)?.map(Bytes::copy_from_slice);
    letter.headers = text(row, 6)?;
    letter.attempts = attempts(row, 7)?;
    letter.reason = text(row, 8)?.unwrap_or_default();
    letter.created_at = time(row, 9)?.unwrap_or(UNIX_EPOCH);
    letter.died_at = time(row, 10)?.unwrap_or(UNIX_EPOCH);
    Ok(letter)
}

fn head(row: &PgRow) -> Result<BlockedHead, sqlx::Error> {
    let mut head = BlockedHead::new(row.try_get(0)?, row.try_get::<Uuid, _>(1)?.into());
    head.aggregate_type = text(row, 2)?.unwrap_or_default();
    head.aggregate_id = text(row, 3)?;
    head.event_type = text(row, 4)?.unwrap_or_default();
    head.attempts = attempts(row, 5)?;
    head.reason = text(row, 6)?.unwrap_or_default();
    head.created_at = time(row, 7)?.unwrap_or(UNIX_EPOCH);
    Ok(head)
}

fn record(row: &PgRow) -> Result<EventRecord, sqlx::Error> {
    let attempts = attempts(row, 5)?;
    let (at, reason) = (time(row, 9)?, text(row, 10)?);
    let state = match row.try_get(7)? {
        "dead" => EventState::Dead {
            entry: row.try_get(11)?,
            reason: reason.unwrap_or_default(),
            died_at: at.unwrap_or(UNIX_EPOCH),
        },
        "archive" => EventState::Delivered {
            destination: text(row, 12)?.unwrap_or_default(),
            settled_at: at.unwrap_or(UNIX_EPOCH),
        },
        _ => EventState::of_row(attempts, at, row.try_get(8)?, reason),
    };
    let id = row.try_get::<Uuid, _>(0)?.into();
    let mut record = EventRecord::new(id, row.try_get(1)?, state);
    record.aggregate_type = text(row, 2)?.unwrap_or_default();
    record.aggregate_id = text(row, 3)?;
    record.event_type = text(row, 4)?.unwrap_or_default();
    record.attempts = attempts;
    record.created_at = time(row, 6)?.unwrap_or(UNIX_EPOCH);
    Ok(record)
}

/// A text as far as it can be shown: that it is none may be why an event died.
fn text(row: &PgRow, column: usize) -> Result<Option<String>, sqlx::Error> {
    Ok(row::bytes(row, column)?.map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
}

fn attempts(row: &PgRow, column: usize) -> Result<u32, sqlx::Error> {
    Ok(u32::try_from(row.try_get::<i32, _>(column)?).unwrap_or_default())
}

/// A time; one before 1970 is shown as then, an infinite one as none.
fn time(row: &PgRow, column: usize) -> Result<Option<SystemTime>, sqlx::Error> {
    let micros = row::micros(row::bytes(row, column)?);
    Ok(micros.map(|micros| {
        UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or_default())
    }))
}

/// A time in microseconds since 1970; one before is long past.
fn micros(time: SystemTime) -> i64 {
    let since_1970 = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_1970.as_micros()).unwrap_or(i64::MAX)
}
