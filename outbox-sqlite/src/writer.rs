//! Appending events in the application's transaction.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use outbox_core::{Due, Hint, NewEvent, Numbers, StoreError, Writer, async_trait};
use serde_json::json;
use sqlx::{SqlStr, Sqlite, SqlitePool, Transaction};

use crate::config::SqliteConfig;
use crate::error::failed;
use crate::sql::{BEGIN, Sql};

/// Writes events into the outbox table, in the transaction of the application. Clones are cheap.
///
/// ```
/// # use outbox_core::NewEvent;
/// # use outbox_sqlite::{Schema, SqliteConfig, SqliteOutbox};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// let config = SqliteConfig::new(folder.path().join("orders.db"));
/// Schema::new(&config)?.migrate().await?;
/// let pool = sqlx::SqlitePool::connect_with(config.connect_options()).await?;
/// let outbox = SqliteOutbox::new(&config)?;
///
/// let mut tx = outbox.begin(&pool).await?;
/// // insert the order here, in the same transaction
/// let event = NewEvent::json("order", "order-1", "OrderCreated.v1", &"an order")?;
/// outbox.append(&mut tx, &[event]).await?;
/// outbox.commit(tx).await?;
/// # Ok(()) }
/// ```
///
/// Outside a transaction it does not compile:
///
/// ```compile_fail,E0308
/// # async fn wrong(outbox: outbox_sqlite::SqliteOutbox, pool: sqlx::SqlitePool, event: outbox_core::NewEvent) {
/// let mut connection = pool.acquire().await.unwrap();
/// outbox.append(&mut connection, &[event]).await.unwrap();
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SqliteOutbox {
    sql: Arc<Sql>,
    place: String,
    hint: Option<Hint>,
}

impl SqliteOutbox {
    /// The writer of the outbox that `config` names; the connection comes with each transaction. Open the application's
    /// pool with [`SqliteConfig::connect_options`].
    ///
    /// # Errors
    ///
    /// `Misconfigured` when a setting is out of range.
    pub fn new(config: &SqliteConfig) -> Result<Self, StoreError> {
        Ok(Self { sql: Sql::new(config)?.into(), place: config.place(), hint: None })
    }

    /// Tells a relay of this process when there is something new.
    #[must_use]
    pub fn with_hint(mut self, hint: Hint) -> Self {
        self.hint = Some(hint);
        self
    }

    /// Begins a transaction that may write: with the write lock from the start (`begin immediate`), because one that
    /// reads first fails at its first write when another has written in between.
    ///
    /// # Errors
    ///
    /// `Unavailable` when another writer keeps the lock for longer than the busy time-out.
    pub async fn begin(
        &self,
        pool: &SqlitePool,
    ) -> Result<Transaction<'static, Sqlite>, StoreError> {
        let begun = pool.begin_with(BEGIN).await;
        begun.map_err(failed(format!("begin a transaction in {}", self.place)))
    }

    /// Appends `events` in their order; see [`Writer`] for the contract. Also in a savepoint (`tx.begin()`).
    ///
    /// A payload that is UTF-8 is stored as text, so that it can be read in SQL; other bytes as a blob. What is read
    /// back is the same bytes either way.
    ///
    /// # Errors
    ///
    /// When the database refuses the statement or cannot be written; roll the transaction back then.
    pub async fn append(
        &self,
        transaction: &mut Transaction<'_, Sqlite>,
        events: &[NewEvent],
    ) -> Result<(), StoreError> {
        if let Some(hint) = self.hint.as_ref().filter(|_| !events.is_empty()) {
            hint.arm();
        }
        let numbered = match &self.sql.draw_numbers {
            Some(draw) => Some(self.numbered(transaction, draw, events).await?),
            None => None,
        };
        for (place, event) in events.iter().enumerate() {
            let headers = match &numbered {
                Some(headers) => headers[place].as_deref(),
                None => event.headers(),
            };
            self.insert(transaction, event, headers)
                .await
                .map_err(failed(format!("append an event to {}", self.place)))?;
        }
        Ok(())
    }

    /// Commits, and tells the relay of this process to look at once.
    ///
    /// # Errors
    ///
    /// When the commit fails. After `Unavailable` nothing was committed, and the transaction is rolled back.
    pub async fn commit(
        &self,
        transaction: Transaction<'static, Sqlite>,
    ) -> Result<(), StoreError> {
        transaction.commit().await.map_err(failed(format!("commit in {}", self.place)))?;
        if let Some(hint) = &self.hint {
            hint.fire();
        }
        Ok(())
    }

    /// The statement for other drivers and languages: `?1` id, `?2` aggregate type, `?3` aggregate id or null,
    /// `?4` type, `?5` payload as text, blob or null, `?6` headers as one flat JSON object or null.
    ///
    /// The columns of `?1` to `?5` are enough; an id that is left out is drawn by the table.
    #[must_use]
    pub fn insert_sql(&self) -> &str {
        &self.sql.insert_text
    }

    /// The headers of `events`, with their numbers.
    async fn numbered(
        &self,
        transaction: &mut Transaction<'_, Sqlite>,
        draw: &SqlStr,
        events: &[NewEvent],
    ) -> Result<Vec<Option<String>>, StoreError> {
        let numbers = Numbers::of(events);
        let wanted: Vec<_> = numbers.wanted().collect();
        let drawn: Vec<(String, String, i64)> = sqlx::query_as(draw.clone())
            .bind(json!(wanted).to_string())
            .fetch_all(&mut **transaction)
            .await
            .map_err(failed(format!("number the events of {}", self.place)))?;
        let drawn = drawn.into_iter().map(|(kind, id, last)| (kind, id, last.cast_unsigned()));
        numbers.headers(&self.place, drawn)
    }

    async fn insert(
        &self,
        transaction: &mut Transaction<'_, Sqlite>,
        event: &NewEvent,
        headers: Option<&str>,
    ) -> Result<(), sqlx::Error> {
        let sql = if event.due().is_some() { &self.sql.insert_due } else { &self.sql.insert };
        let mut buffer = [0; 36];
        let query = sqlx::query(sql.clone())
            .bind(event.id().text(&mut buffer).to_owned())
            .bind(event.aggregate_type().to_owned())
            .bind(event.aggregate_id().map(str::to_owned))
            .bind(event.event_type().to_owned());
        let query = match event.payload() {
            Some(bytes) => match text_without_nul(bytes) {
                Some(text) => query.bind(text.to_owned()),
                None => query.bind(bytes.to_owned()),
            },
            None => query.bind(None::<String>),
        };
        let query = query.bind(headers.map(str::to_owned));
        let query = match event.due() {
            Some(Due::At(time)) => {
                let since_1970 = time.duration_since(UNIX_EPOCH).unwrap_or_default();
                query.bind(micros(since_1970)).bind(None::<i64>)
            }
            Some(Due::After(delay)) => query.bind(None::<i64>).bind(micros(delay)),
            None => query,
        };
        query.execute(&mut **transaction).await?;
        Ok(())
    }
}

#[async_trait]
impl Writer for SqliteOutbox {
    type Transaction = Transaction<'static, Sqlite>;

    async fn append(
        &self,
        transaction: &mut Self::Transaction,
        events: &[NewEvent],
    ) -> Result<(), StoreError> {
        Self::append(self, transaction, events).await
    }
}

/// SQLite's text functions stop at a NUL.
fn text_without_nul(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))
}

/// Bounded to a quarter of what a column holds (73,000 years), so that adding it to a time cannot overflow.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX).min(i64::MAX / 4)
}
