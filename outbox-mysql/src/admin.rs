//! Schema, dead letters, blocked heads and the whereabouts of an event, for operators.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::Bytes;
use outbox_core::{
    Administration, BlockedHead, DeadLetter, DeadLetterFilter, Drift, EventId, EventRecord,
    EventState, Page, Position, StoreError,
};
use sqlx::MySql;
use sqlx::mysql::{MySqlArguments, MySqlRow};
use sqlx::query::Query;

use crate::Schema;
use crate::config::MySqlConfig;
use crate::database::{Database, query};
use crate::row;
use crate::sql::AdminStatements;

/// The outbox in the hands of an operator.
///
/// It has one connection of its own, on which a statement may take as long as a migration (`migrate_timeout`).
#[derive(Debug)]
pub struct MySqlAdministration {
    schema: Schema,
    database: Database,
    statements: Arc<AdminStatements>,
}

impl MySqlAdministration {
    /// The outbox that `config` names. It connects when it is first used. Call it within a Tokio runtime.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when a setting is out of range.
    pub fn new(config: &MySqlConfig) -> Result<Self, StoreError> {
        config.validate()?;
        let patient = config.clone().with_statement_timeout(config.migrate_timeout);
        let database = Database::new(&patient, 1);
        Ok(Self {
            schema: Schema::on(config.clone(), database.clone()),
            database,
            statements: Arc::new(AdminStatements::new(config)),
        })
    }

    /// Runs a statement on one row; whether it was there.
    async fn change(
        &self,
        action: &'static str,
        statement: &Arc<str>,
        key: i64,
    ) -> Result<bool, StoreError> {
        let statement = Arc::clone(statement);
        self.database
            .run(action, move |connection| {
                let change = query(&statement).bind(key);
                Box::pin(async move { Ok(change.execute(connection).await?.rows_affected() == 1) })
            })
            .await
    }
}

#[async_trait]
impl Administration for MySqlAdministration {
    /// For both servers, which each read the comments that are meant for them.
    fn schema(&self) -> String {
        self.schema.sql()
    }

    /// Goes on where an interrupted one stopped.
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
        let (statements, filter) = (Arc::clone(&self.statements), filter.clone());
        self.database
            .run("list the dead letters of", move |connection| {
                let list = filtered(&statements.list, &filter);
                let list = list.bind(page.after).bind(i64::from(page.limit));
                Box::pin(
                    async move { list.fetch_all(connection).await?.iter().map(letter).collect() },
                )
            })
            .await
    }

    async fn count_dead_letters(&self, filter: &DeadLetterFilter) -> Result<u64, StoreError> {
        let (statements, filter) = (Arc::clone(&self.statements), filter.clone());
        self.database
            .run("count the dead letters of", move |connection| {
                let count = filtered(&statements.count, &filter);
                Box::pin(async move {
                    let count = row::int(&count.fetch_one(connection).await?, 0)?;
                    Ok(u64::try_from(count.unwrap_or_default()).unwrap_or_default())
                })
            })
            .await
    }

    async fn requeue(&self, entry: i64) -> Result<bool, StoreError> {
        let statements = Arc::clone(&self.statements);
        self.database
            .transaction("requeue a dead letter of", move |connection| {
                let statements = Arc::clone(&statements);
                Box::pin(async move {
                    let lock = query(&statements.lock).bind(entry);
                    if lock.fetch_optional(&mut *connection).await?.is_none() {
                        return Ok(false);
                    }
                    query(&statements.requeue).bind(entry).execute(&mut *connection).await?;
                    query(&statements.discard).bind(entry).execute(connection).await?;
                    Ok(true)
                })
            })
            .await
    }

    async fn discard(&self, entry: i64) -> Result<bool, StoreError> {
        self.change("discard a dead letter of", &self.statements.discard, entry).await
    }

    async fn blocked_heads(&self, page: Page) -> Result<Vec<BlockedHead>, StoreError> {
        let statements = Arc::clone(&self.statements);
        self.database
            .run("list the blocked heads of", move |connection| {
                let list = query(&statements.list_blocked);
                let list = list.bind(page.after).bind(i64::from(page.limit));
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
        let statements = Arc::clone(&self.statements);
        self.database
            .transaction("discard a blocked head of", move |connection| {
                let statements = Arc::clone(&statements);
                Box::pin(async move {
                    let lock = query(&statements.lock_blocked).bind(position);
                    if lock.fetch_optional(&mut *connection).await?.is_none() {
                        return Ok(false);
                    }
                    let next = query(&statements.next).bind(position).bind(position);
                    if let Some(next) = next.fetch_optional(&mut *connection).await? {
                        let next = row::int(&next, 0)?;
                        query(&statements.hold).bind(next).execute(&mut *connection).await?;
                    }
                    query(&statements.discard_blocked).bind(position).execute(connection).await?;
                    Ok(true)
                })
            })
            .await
    }

    async fn find(&self, id: &EventId) -> Result<Vec<EventRecord>, StoreError> {
        let (statements, id) = (Arc::clone(&self.statements), id.to_string());
        self.database
            .run("look for an event of", move |connection| {
                let find =
                    query(&statements.find).bind(id.clone()).bind(id.clone()).bind(id.clone());
                Box::pin(
                    async move { find.fetch_all(connection).await?.iter().map(record).collect() },
                )
            })
            .await
    }
}

/// A statement about the dead letters that `filter` means.
fn filtered(
    statement: &Arc<str>,
    filter: &DeadLetterFilter,
) -> Query<'static, MySql, MySqlArguments> {
    let DeadLetterFilter {
        id, since, until, aggregate_type, aggregate_id, event_type, text, ..
    } = filter;
    let mut query = query(statement);
    for time in [since, until].map(|time| time.map(micros)) {
        query = query.bind(time).bind(time);
    }
    let id = &id.as_ref().map(ToString::to_string);
    for condition in [id, aggregate_type, aggregate_id, event_type, text] {
        query = query.bind(condition.clone()).bind(condition.clone());
    }
    query
}

fn letter(row: &MySqlRow) -> Result<DeadLetter, sqlx::Error> {
    let mut letter = DeadLetter::new(row::int(row, 0)?.unwrap_or_default(), id(row, 1)?);
    letter.aggregate_type = text(row, 2)?;
    letter.aggregate_id = row::lossy(row, 3)?;
    letter.event_type = text(row, 4)?;
    letter.payload = row::bytes(row, 5)?.map(Bytes::copy_from_slice);
    letter.headers = row::lossy(row, 6)?;
    letter.attempts = attempts(row, 7)?;
    letter.reason = text(row, 8)?;
    letter.created_at = time(row, 9)?.unwrap_or(UNIX_EPOCH);
    letter.died_at = time(row, 10)?.unwrap_or(UNIX_EPOCH);
    Ok(letter)
}

fn head(row: &MySqlRow) -> Result<BlockedHead, sqlx::Error> {
    let mut head = BlockedHead::new(row::int(row, 0)?.unwrap_or_default(), id(row, 1)?);
    head.aggregate_type = text(row, 2)?;
    head.aggregate_id = row::lossy(row, 3)?;
    head.event_type = text(row, 4)?;
    head.attempts = attempts(row, 5)?;
    head.reason = text(row, 6)?;
    head.created_at = time(row, 7)?.unwrap_or(UNIX_EPOCH);
    Ok(head)
}

fn record(row: &MySqlRow) -> Result<EventRecord, sqlx::Error> {
    let attempts = attempts(row, 5)?;
    let (at, reason) = (time(row, 9)?, row::lossy(row, 10)?);
    let state = match text(row, 7)?.as_str() {
        "dead" => EventState::Dead {
            entry: row::int(row, 11)?.unwrap_or_default(),
            reason: reason.unwrap_or_default(),
            died_at: at.unwrap_or(UNIX_EPOCH),
        },
        "archive" => EventState::Delivered {
            destination: text(row, 12)?,
            settled_at: at.unwrap_or(UNIX_EPOCH),
        },
        _ => EventState::of_row(attempts, at, row::int(row, 8)? == Some(1), reason),
    };
    let position = row::int(row, 1)?.unwrap_or_default();
    let mut record = EventRecord::new(id(row, 0)?, position, state);
    record.aggregate_type = text(row, 2)?;
    record.aggregate_id = row::lossy(row, 3)?;
    record.event_type = text(row, 4)?;
    record.attempts = attempts;
    record.created_at = time(row, 6)?.unwrap_or(UNIX_EPOCH);
    Ok(record)
}

/// An id that no event may have (a NUL in it) is shown as the one that claims show.
fn id(row: &MySqlRow, column: usize) -> Result<EventId, sqlx::Error> {
    let id = EventId::from_text(&text(row, column)?);
    Ok(id.unwrap_or_else(|_| EventId::from(uuid::Uuid::nil())))
}

fn text(row: &MySqlRow, column: usize) -> Result<String, sqlx::Error> {
    Ok(row::lossy(row, column)?.unwrap_or_default())
}

fn attempts(row: &MySqlRow, column: usize) -> Result<u32, sqlx::Error> {
    Ok(u32::try_from(row::int(row, column)?.unwrap_or_default()).unwrap_or_default())
}

/// A time; one before 1970 is shown as then.
fn time(row: &MySqlRow, column: usize) -> Result<Option<SystemTime>, sqlx::Error> {
    let micros = row::int(row, column)?;
    Ok(micros.map(|micros| {
        UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or_default())
    }))
}

/// A time in microseconds since 1970; one before is long past.
fn micros(time: SystemTime) -> i64 {
    crate::writer::micros(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}
