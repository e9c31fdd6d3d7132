//! How an event gets into the table: in the application's own transaction.

mod numbers;

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use outbox_core::{Due, Hint, NewEvent, StoreError, StoreErrorKind, Writer};
use sqlx::{AssertSqlSafe, PgPool, Postgres, Transaction};
use uuid::Uuid;

use crate::config::{PayloadType, PostgresConfig};
use crate::error::store_error;
use crate::sql;
use numbers::Sequences;

/// The latest due time, in microseconds from now or from 1970: ten thousand years.
const LATEST: i64 = 10_000 * 365 * 24 * 60 * 60 * 1_000_000;

/// Appends events in the transactions of an application's own pool.
///
/// ```no_run
/// # use outbox_core::NewEvent;
/// # use outbox_postgres::{PostgresConfig, PostgresOutbox};
/// # async fn order(config: &PostgresConfig, pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// let outbox = PostgresOutbox::new(config)?;
/// let mut tx = pool.begin().await?;
/// sqlx::query("update orders set state = 'paid' where id = 7").execute(&mut *tx).await?;
/// outbox.append(&mut tx, &[NewEvent::json("order", "7", "OrderPaid", &["7"])?]).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
///
/// A pool does not compile, and neither does a plain connection, so that no event is written outside a transaction:
///
/// ```compile_fail,E0308
/// # async fn order(outbox: outbox_postgres::PostgresOutbox, mut pool: sqlx::PgPool) {
/// outbox.append(&mut pool, &[]).await;
/// # }
/// ```
///
/// ```compile_fail,E0308
/// # async fn order(outbox: outbox_postgres::PostgresOutbox, mut connection: sqlx::PgConnection) {
/// outbox.append(&mut connection, &[]).await;
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct PostgresOutbox {
    insert: Arc<str>,
    sequences: Option<Sequences>,
    table: Arc<str>,
    payload: PayloadType,
    persistent: bool,
    hint: Option<Hint>,
}

impl PostgresOutbox {
    /// The writer of the outbox that `config` names; the connection comes with each transaction.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when a setting is out of range.
    pub fn new(config: &PostgresConfig) -> Result<Self, StoreError> {
        config.validate()?;
        Ok(Self {
            insert: sql::append(config).into(),
            sequences: config.sequence.then(|| Sequences {
                draw: sql::draw_numbers(&config.names()).into(),
                table: config.names().sequences.into(),
                persistent: !config.pooled,
            }),
            table: config.names().live.into(),
            payload: config.payload,
            persistent: !config.pooled,
            hint: None,
        })
    }

    /// Tells a relay of the same process by this hint: [`append`](Self::append) arms it, [`commit`](Self::commit) fires it.
    #[must_use]
    pub fn with_hint(mut self, hint: Hint) -> Self {
        self.hint = Some(hint);
        self
    }

    /// Opens a transaction. The same as `pool.begin()`: do not put it under a timeout or `select!`, a cancelled `begin`
    /// can leave the pool a connection with an open transaction (sqlx 0.9.0).
    ///
    /// # Errors
    ///
    /// When there is no connection.
    pub async fn begin(&self, pool: &PgPool) -> Result<Transaction<'static, Postgres>, StoreError> {
        pool.begin()
            .await
            .map_err(|error| store_error("begin a transaction for", &self.table, error))
    }

    /// Appends `events` in their order, in one statement: see [`Writer`] for the contract.
    ///
    /// # Errors
    ///
    /// `Rejected` when an id is no UUID, when a payload is not what its column takes, or when the database refuses the
    /// data; `Unavailable` when it cannot be reached.
    pub async fn append(
        &self,
        transaction: &mut Transaction<'_, Postgres>,
        events: &[NewEvent],
    ) -> Result<(), StoreError> {
        if events.is_empty() {
            return Ok(());
        }
        let numbered = match &self.sequences {
            Some(sequences) => Some(sequences.headers(transaction, events).await?),
            None => None,
        };
        let query = sqlx::query(AssertSqlSafe(Arc::clone(&self.insert)))
            .persistent(self.persistent)
            .bind(self.ids(events)?)
            .bind(events.iter().map(NewEvent::aggregate_type).collect::<Vec<_>>())
            .bind(events.iter().map(NewEvent::aggregate_id).collect::<Vec<_>>())
            .bind(events.iter().map(NewEvent::event_type).collect::<Vec<_>>());
        let query = if self.payload == PayloadType::Bytea {
            query.bind(events.iter().map(NewEvent::payload).collect::<Vec<_>>())
        } else {
            query.bind(self.texts(events)?)
        };
        let query = match numbered {
            Some(headers) => query.bind(headers),
            None => query.bind(events.iter().map(NewEvent::headers).collect::<Vec<_>>()),
        };
        query
            .bind(events.iter().map(|event| delay(event.due())).collect::<Vec<_>>())
            .bind(events.iter().map(|event| due(event.due())).collect::<Vec<_>>())
            .execute(&mut **transaction)
            .await
            .map_err(|error| store_error("append to", &self.table, error))?;
        if let Some(hint) = &self.hint {
            hint.arm();
        }
        Ok(())
    }

    /// Commits, and tells the relay of the same process to look at once.
    ///
    /// # Errors
    ///
    /// As a commit: when the connection breaks it is unknown whether it was done.
    pub async fn commit(&self, transaction: Transaction<'_, Postgres>) -> Result<(), StoreError> {
        transaction.commit().await.map_err(|error| store_error("commit to", &self.table, error))?;
        if let Some(hint) = &self.hint {
            hint.fire();
        }
        Ok(())
    }

    /// The text of the statement, for other drivers. Eight parameters, arrays of one length:
    ///
    /// | parameter | type | what |
    /// |---|---|---|
    /// | `$1` | `uuid[]` | ids, never null |
    /// | `$2` | `text[]` | aggregate types |
    /// | `$3` | `text[]` | aggregate ids; null is an unordered event |
    /// | `$4` | `text[]` | event types |
    /// | `$5` | `text[]`, for a bytea column `bytea[]` | payloads; null is a tombstone |
    /// | `$6` | `text[]` | headers, flat JSON objects; null is none |
    /// | `$7` | `bigint[]` | delays in microseconds by the database's clock; null is at once |
    /// | `$8` | `bigint[]` | due times in microseconds since 1970; null is at once |
    ///
    /// Whoever needs no batch, headers or due time writes a plain `insert into outbox (id, aggregatetype, aggregateid,
    /// type, payload) values (…)`: everything else has a default.
    #[must_use]
    pub fn insert_sql(&self) -> &str {
        &self.insert
    }

    fn ids(&self, events: &[NewEvent]) -> Result<Vec<Uuid>, StoreError> {
        let id = |event: &NewEvent| {
            event.id().as_uuid().ok_or_else(|| {
                self.rejected(&format!(
                    "id {:?} is no UUID in its canonical form, and the id column is of type uuid",
                    event.id()
                ))
            })
        };
        events.iter().map(id).collect()
    }

    fn texts<'a>(&self, events: &'a [NewEvent]) -> Result<Vec<Option<&'a str>>, StoreError> {
        let text = |event: &'a NewEvent| {
            event.payload().map(std::str::from_utf8).transpose().map_err(|error| {
                self.rejected(&format!(
                    "the payload of {} is not UTF-8, and the payload column is of type {}: create the table with bytea",
                    event.id(),
                    self.payload.as_sql()
                ))
                .with_source(error)
            })
        };
        events.iter().map(text).collect()
    }

    fn rejected(&self, reason: &str) -> StoreError {
        StoreError::new(
            StoreErrorKind::Rejected,
            format!("cannot append to {}: {reason}", self.table),
        )
    }
}

#[async_trait]
impl Writer for PostgresOutbox {
    type Transaction = Transaction<'static, Postgres>;

    async fn append(
        &self,
        transaction: &mut Self::Transaction,
        events: &[NewEvent],
    ) -> Result<(), StoreError> {
        Self::append(self, transaction, events).await
    }
}

fn delay(due: Option<Due>) -> Option<i64> {
    match due? {
        Due::After(delay) => Some(micros(delay)),
        _ => None,
    }
}

/// A time before 1970 is long past, whatever it is.
fn due(due: Option<Due>) -> Option<i64> {
    match due? {
        Due::At(at) => Some(at.duration_since(UNIX_EPOCH).map_or(0, micros)),
        _ => None,
    }
}

/// Microseconds that the database's calendar can add or take.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(LATEST).min(LATEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_due_time_beyond_the_databases_calendar_is_cut() {
        assert_eq!(delay(Some(Due::After(Duration::MAX))), Some(LATEST));
        assert_eq!(due(Some(Due::At(UNIX_EPOCH - Duration::from_secs(1)))), Some(0));
        assert_eq!(due(Some(Due::At(UNIX_EPOCH + Duration::from_micros(7)))), Some(7));
        assert_eq!((delay(None), due(None)), (None, None));
    }
}
