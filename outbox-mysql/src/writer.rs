//! How an event gets into the table: in the application's own transaction.

mod numbers;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use outbox_core::{Due, Hint, NewEvent, StoreError, StoreErrorKind, Writer};
use sqlx::mysql::MySqlArguments;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, MySql, MySqlPool, Transaction};

use crate::config::{MySqlConfig, PayloadType};
use crate::error::store_error;
use crate::sql;

/// The latest due time, in microseconds from now or from 1970: seven thousand years.
const LATEST: i64 = 7_000 * 365 * 24 * 60 * 60 * 1_000_000;
/// Rows of one statement at most.
const ROWS: usize = 200;
/// So much every server takes: the schema's check refuses one that does not.
pub(crate) const SMALLEST_PACKET: usize = 1024 * 1024;
/// What a row takes in a packet beside its texts, in bytes; its number among it.
const ROW_OVERHEAD: usize = 192;
/// What a statement takes in a packet beside its rows, in bytes.
const STATEMENT_OVERHEAD: usize = 1024;

/// Appends events in the transactions of an application's own pool.
///
/// ```no_run
/// # use outbox_core::NewEvent;
/// # use outbox_mysql::{MySqlConfig, MySqlOutbox};
/// # async fn order(config: &MySqlConfig, pool: sqlx::MySqlPool) -> Result<(), Box<dyn std::error::Error>> {
/// let outbox = MySqlOutbox::new(config)?;
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
/// # async fn order(outbox: outbox_mysql::MySqlOutbox, mut pool: sqlx::MySqlPool) {
/// outbox.append(&mut pool, &[]).await;
/// # }
/// ```
///
/// ```compile_fail,E0308
/// # async fn order(outbox: outbox_mysql::MySqlOutbox, mut connection: sqlx::MySqlConnection) {
/// outbox.append(&mut connection, &[]).await;
/// # }
/// ```
///
/// Nothing depends on the application's session: not on its time zone, its character set, its `sql_mode`.
#[derive(Clone, Debug)]
pub struct MySqlOutbox {
    config: MySqlConfig,
    insert: Arc<str>,
    insert_many: Arc<str>,
    table: Arc<str>,
    /// The server's `max_allowed_packet`, once it had to be asked.
    packet: Arc<AtomicUsize>,
    hint: Option<Hint>,
}

impl MySqlOutbox {
    /// The writer of the outbox that `config` names; the connection comes with each transaction.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when a setting is out of range.
    pub fn new(config: &MySqlConfig) -> Result<Self, StoreError> {
        config.validate()?;
        Ok(Self {
            insert: sql::append(config, 1).into(),
            insert_many: sql::append(config, ROWS).into(),
            table: config.names().live.into(),
            packet: Arc::new(AtomicUsize::new(SMALLEST_PACKET)),
            config: config.clone(),
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
    pub async fn begin(&self, pool: &MySqlPool) -> Result<Transaction<'static, MySql>, StoreError> {
        pool.begin()
            .await
            .map_err(|error| store_error("begin a transaction for", &self.table, error))
    }

    /// Appends `events` in their order, in as many statements as `max_allowed_packet` asks for: see [`Writer`] for the
    /// contract.
    ///
    /// # Errors
    ///
    /// `Rejected` when a payload is not what its column takes, when one event is larger than the server's
    /// `max_allowed_packet`, or when the database refuses the data; `Unavailable` when it cannot be reached.
    pub async fn append(
        &self,
        transaction: &mut Transaction<'_, MySql>,
        events: &[NewEvent],
    ) -> Result<(), StoreError> {
        if events.is_empty() {
            return Ok(());
        }
        self.check_text(events)?;
        let all: usize = events.iter().map(size).sum();
        let packet = match self.packet.load(Ordering::Relaxed) {
            packet if STATEMENT_OVERHEAD + all <= packet => packet,
            _ => self.ask_packet(transaction).await?,
        };
        let numbered = if self.config.sequence {
            numbers::headers(transaction, &self.config.names(), events).await?
        } else {
            Vec::new()
        };
        let headers: Vec<Option<&str>> = if self.config.sequence {
            numbered.iter().map(Option::as_deref).collect()
        } else {
            events.iter().map(NewEvent::headers).collect()
        };
        let mut rest = events;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(fitting(rest, packet));
            if now.is_empty() {
                return Err(self.too_large(&rest[0], packet));
            }
            let written = events.len() - rest.len();
            self.insert(transaction, now, &headers[written..]).await?;
            rest = later;
        }
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
    pub async fn commit(&self, transaction: Transaction<'_, MySql>) -> Result<(), StoreError> {
        transaction.commit().await.map_err(|error| store_error("commit to", &self.table, error))?;
        if let Some(hint) = &self.hint {
            hint.fire();
        }
        Ok(())
    }

    /// The text of the statement that appends one event, for other drivers. Eight parameters:
    ///
    /// | parameter | what |
    /// |---|---|
    /// | 1 | id, never null |
    /// | 2 | aggregate type |
    /// | 3 | aggregate id; null is an unordered event |
    /// | 4 | event type |
    /// | 5 | payload; null is a tombstone |
    /// | 6 | headers, a flat JSON object; null is none |
    /// | 7 | delay in microseconds by the database's clock; null is at once |
    /// | 8 | due time in microseconds since 1970; null is at once |
    ///
    /// Whoever needs no headers or due time writes a plain `insert into outbox (id, aggregatetype, aggregateid, type,
    /// payload) values (…)`: everything else has a default.
    #[must_use]
    pub fn insert_sql(&self) -> &str {
        &self.insert
    }

    async fn insert(
        &self,
        transaction: &mut Transaction<'_, MySql>,
        events: &[NewEvent],
        headers: &[Option<&str>],
    ) -> Result<(), StoreError> {
        let query = match events.len() {
            1 => sqlx::query(AssertSqlSafe(Arc::clone(&self.insert))),
            ROWS => sqlx::query(AssertSqlSafe(Arc::clone(&self.insert_many))),
            // Other lengths would drive the application's own statements out of its cache.
            rows => sqlx::query(AssertSqlSafe(sql::append(&self.config, rows))).persistent(false),
        };
        let query = events.iter().zip(headers).fold(query, bind);
        let inserted = query.execute(&mut **transaction).await;
        inserted.map(drop).map_err(|error| store_error("append to", &self.table, error))
    }

    async fn ask_packet(
        &self,
        transaction: &mut Transaction<'_, MySql>,
    ) -> Result<usize, StoreError> {
        let packet: i64 = sqlx::query_scalar(sql::MAX_ALLOWED_PACKET)
            .fetch_one(&mut **transaction)
            .await
            .map_err(|error| store_error("ask max_allowed_packet for", &self.table, error))?;
        let packet = usize::try_from(packet).unwrap_or(SMALLEST_PACKET);
        self.packet.store(packet, Ordering::Relaxed);
        Ok(packet)
    }

    fn check_text(&self, events: &[NewEvent]) -> Result<(), StoreError> {
        if self.config.payload == PayloadType::LongBlob {
            return Ok(());
        }
        for event in events {
            if let Some(Err(error)) = event.payload().map(std::str::from_utf8) {
                let reason = format!(
                    "the payload of {} is not UTF-8, and the payload column is of type longtext: create the table with longblob",
                    event.id()
                );
                return Err(self.rejected(&reason).with_source(error));
            }
        }
        Ok(())
    }

    fn too_large(&self, event: &NewEvent, packet: usize) -> StoreError {
        self.rejected(&format!(
            "event {} takes {} bytes, and max_allowed_packet of the server is {packet}",
            event.id(),
            size(event),
        ))
    }

    fn rejected(&self, reason: &str) -> StoreError {
        StoreError::new(
            StoreErrorKind::Rejected,
            format!("cannot append to {}: {reason}", self.table),
        )
    }
}

#[async_trait]
impl Writer for MySqlOutbox {
    type Transaction = Transaction<'static, MySql>;

    async fn append(
        &self,
        transaction: &mut Self::Transaction,
        events: &[NewEvent],
    ) -> Result<(), StoreError> {
        Self::append(self, transaction, events).await
    }
}

/// Texts as bytes: so the server takes them as they are, whatever it believes the session's character set to be.
fn bind<'q>(
    query: Query<'q, MySql, MySqlArguments>,
    (event, headers): (&'q NewEvent, &Option<&'q str>),
) -> Query<'q, MySql, MySqlArguments> {
    query
        .bind(event.id().to_string().into_bytes())
        .bind(event.aggregate_type().as_bytes())
        .bind(event.aggregate_id().map(str::as_bytes))
        .bind(event.event_type().as_bytes())
        .bind(event.payload())
        .bind(headers.map(str::as_bytes))
        .bind(delay(event.due()))
        .bind(due(event.due()))
}

/// How many events one statement takes.
fn fitting(events: &[NewEvent], packet: usize) -> usize {
    let mut bytes = STATEMENT_OVERHEAD;
    let fits = |event: &&NewEvent| {
        bytes += size(event);
        bytes <= packet
    };
    events.iter().take(ROWS).take_while(fits).count()
}

fn size(event: &NewEvent) -> usize {
    let texts = [Some(event.aggregate_type()), event.aggregate_id(), Some(event.event_type())];
    let texts = texts.into_iter().chain([event.headers()]);
    let texts: usize = texts.map(|text| text.map_or(0, str::len)).sum();
    ROW_OVERHEAD + 255 + texts + event.payload().map_or(0, <[u8]>::len)
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

/// Microseconds that the database's calendar can add.
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

    #[test]
    fn a_statement_takes_as_many_events_as_fit_into_a_packet() {
        let event = |bytes| {
            let payload = vec![b'x'; bytes];
            NewEvent::builder("order", "7", "Created").payload(payload).build().unwrap()
        };
        let small: Vec<NewEvent> = (0..ROWS + 1).map(|_| event(1)).collect();
        assert_eq!(fitting(&small, SMALLEST_PACKET), ROWS);
        let large = [event(400_000), event(400_000), event(400_000)];
        assert_eq!(fitting(&large, SMALLEST_PACKET), 2);
        assert_eq!(fitting(&[event(SMALLEST_PACKET)], SMALLEST_PACKET), 0);
    }
}
