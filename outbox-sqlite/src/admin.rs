//! Schema, dead letters, blocked heads and the whereabouts of an event, for operators.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use outbox_core::{
    Administration, BlockedHead, DeadLetter, DeadLetterFilter, Drift, EventId, EventRecord,
    EventState, Page, Position, StoreError, async_trait,
};
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqlitePoolOptions, SqliteRow};
use sqlx::{Row, SqlStr, Sqlite, SqlitePool};

use crate::config::SqliteConfig;
use crate::error::failed;
use crate::row::id_of;
use crate::schema::Schema;
use crate::sql::{BEGIN, Sql};

/// The outbox in the hands of an operator. It has one connection of its own.
#[derive(Debug)]
pub struct SqliteAdministration {
    schema: Schema,
    pool: SqlitePool,
    sql: Sql,
    place: String,
}

impl SqliteAdministration {
    /// The outbox that `config` names. The file is opened at the first use. Call it within a Tokio runtime.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when a setting is out of range.
    pub fn new(config: &SqliteConfig) -> Result<Self, StoreError> {
        let pool = SqlitePoolOptions::new()
            .max_connections(1)
            .acquire_timeout(config.busy_timeout * 2)
            .test_before_acquire(false)
            .connect_lazy_with(config.connect_options());
        Ok(Self {
            schema: Schema::new(config)?,
            pool,
            sql: Sql::new(config)?,
            place: config.place(),
        })
    }

    /// Runs statements on one row in one transaction; whether the last of them found it.
    async fn change(
        &self,
        what: &'static str,
        statements: &[&SqlStr],
        key: i64,
    ) -> Result<bool, StoreError> {
        let change = async {
            let mut transaction = self.pool.begin_with(BEGIN).await?;
            let mut found = false;
            for statement in statements {
                let changed =
                    sqlx::query((*statement).clone()).bind(key).execute(&mut *transaction).await?;
                found = changed.rows_affected() == 1;
            }
            transaction.commit().await?;
            Ok(found)
        };
        change.await.map_err(self.failed(what))
    }

    async fn list<T>(
        &self,
        what: &'static str,
        list: Query<'_, Sqlite, SqliteArguments>,
        read: fn(&SqliteRow) -> Result<T, sqlx::Error>,
    ) -> Result<Vec<T>, StoreError> {
        let rows = list.fetch_all(&self.pool).await.map_err(self.failed(what))?;
        rows.iter().map(|row| read(row).map_err(self.failed(what))).collect()
    }

    fn failed(&self, what: &str) -> impl FnOnce(sqlx::Error) -> StoreError {
        failed(format!("{what} of {}", self.place))
    }
}

#[async_trait]
impl Administration for SqliteAdministration {
    /// What [`migrate`](Self::migrate) does besides: it sets the journal, refuses a foreign table, and writes the version, the
    /// lane count and the identity into `<table>_meta`.
    fn schema(&self) -> String {
        self.schema.sql()
    }

    /// Creates the file too, where it is missing.
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
        let list = filtered(&self.sql.list_dead, filter).bind(page.after).bind(page.limit);
        self.list("list the dead letters", list, letter).await
    }

    async fn count_dead_letters(&self, filter: &DeadLetterFilter) -> Result<u64, StoreError> {
        let count = filtered(&self.sql.count_dead, filter);
        let count = self.list("count the dead letters", count, |row| row.try_get::<i64, _>(0));
        Ok(count.await?.into_iter().sum::<i64>().unsigned_abs())
    }

    async fn requeue(&self, entry: i64) -> Result<bool, StoreError> {
        self.change("requeue a dead letter", &[&self.sql.requeue, &self.sql.discard], entry).await
    }

    async fn discard(&self, entry: i64) -> Result<bool, StoreError> {
        self.change("discard a dead letter", &[&self.sql.discard], entry).await
    }

    async fn blocked_heads(&self, page: Page) -> Result<Vec<BlockedHead>, StoreError> {
        let list = sqlx::query(self.sql.list_blocked.clone()).bind(page.after).bind(page.limit);
        self.list("list the blocked heads", list, head).await
    }

    async fn unblock(&self, position: Position) -> Result<bool, StoreError> {
        self.change("unblock a head", &[&self.sql.unblock], position).await
    }

    async fn discard_blocked(&self, position: Position) -> Result<bool, StoreError> {
        let statements = [&self.sql.pass_hold, &self.sql.discard_blocked];
        self.change("discard a blocked head", &statements, position).await
    }

    async fn find(&self, id: &EventId) -> Result<Vec<EventRecord>, StoreError> {
        let find = sqlx::query(self.sql.find.clone()).bind(id.to_string());
        self.list("look for an event", find, record).await
    }
}

/// A statement about the dead letters that `filter` means.
fn filtered<'q>(
    statement: &SqlStr,
    filter: &DeadLetterFilter,
) -> Query<'q, Sqlite, SqliteArguments> {
    let filter = filter.clone();
    sqlx::query(statement.clone())
        .bind(filter.id.map(|id| id.to_string()))
        .bind(filter.since.map(micros))
        .bind(filter.until.map(micros))
        .bind(filter.aggregate_type)
        .bind(filter.aggregate_id)
        .bind(filter.event_type)
        .bind(filter.text)
}

fn letter(row: &SqliteRow) -> Result<DeadLetter, sqlx::Error> {
    let mut letter = DeadLetter::new(row.try_get(0)?, id(row, 1)?);
    letter.aggregate_type = text(row, 2)?.unwrap_or_default();
    letter.aggregate_id = text(row, 3)?;
    letter.event_type = text(row, 4)?.unwrap_or_default();
    letter.payload = row.try_get_unchecked::<Option<&[u8]>, _>(5)?.map(Bytes::copy_from_slice);
    letter.headers = text(row, 6)?;
    letter.attempts = attempts(row, 7)?;
    letter.reason = text(row, 8)?.unwrap_or_default();
    letter.created_at = time(row, 9)?.unwrap_or(UNIX_EPOCH);
    letter.died_at = time(row, 10)?.unwrap_or(UNIX_EPOCH);
    Ok(letter)
}

fn head(row: &SqliteRow) -> Result<BlockedHead, sqlx::Error> {
    let mut head = BlockedHead::new(row.try_get(0)?, id(row, 1)?);
    head.aggregate_type = text(row, 2)?.unwrap_or_default();
    head.aggregate_id = text(row, 3)?;
    head.event_type = text(row, 4)?.unwrap_or_default();
    head.attempts = attempts(row, 5)?;
    head.reason = text(row, 6)?.unwrap_or_default();
    head.created_at = time(row, 7)?.unwrap_or(UNIX_EPOCH);
    Ok(head)
}

fn record(row: &SqliteRow) -> Result<EventRecord, sqlx::Error> {
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
    let mut record = EventRecord::new(id(row, 0)?, row.try_get(1)?, state);
    record.aggregate_type = text(row, 2)?.unwrap_or_default();
    record.aggregate_id = text(row, 3)?;
    record.event_type = text(row, 4)?.unwrap_or_default();
    record.attempts = attempts;
    record.created_at = time(row, 6)?.unwrap_or(UNIX_EPOCH);
    Ok(record)
}

fn id(row: &SqliteRow, index: usize) -> Result<EventId, sqlx::Error> {
    let bytes = row.try_get_unchecked::<Option<&[u8]>, _>(index)?;
    Ok(id_of(bytes.unwrap_or_default()))
}

/// Texts that are no UTF-8 may be why an event died: they are shown as far as they can be.
fn text(row: &SqliteRow, index: usize) -> Result<Option<String>, sqlx::Error> {
    let bytes = row.try_get_unchecked::<Option<&[u8]>, _>(index)?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
}

fn attempts(row: &SqliteRow, index: usize) -> Result<u32, sqlx::Error> {
    Ok(u32::try_from(row.try_get::<i64, _>(index)?).unwrap_or(u32::MAX))
}

/// A time; one before 1970 is shown as then.
fn time(row: &SqliteRow, index: usize) -> Result<Option<SystemTime>, sqlx::Error> {
    let micros = row.try_get_unchecked::<Option<i64>, _>(index)?;
    Ok(micros.map(|micros| UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or(0))))
}

/// A time in microseconds since 1970; one before is long past.
fn micros(time: SystemTime) -> i64 {
    crate::writer::micros(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}
