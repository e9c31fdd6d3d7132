//! The consumer's side: an event's effect happens once.

mod order;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{
    Inbox, InboxTable, MAX_MARK_BYTES, Marks, PURGE_BATCH, Purged, StoreError, StoreErrorKind,
};
use sqlx::{AssertSqlSafe, Connection as _, MySql, MySqlConnection, MySqlPool, Transaction};

use crate::config::MySqlConfig;
use crate::database::query_once;
use crate::error::{is_duplicate, store_error};
use crate::writer::micros;
use crate::{row, sql};
use order::Order;

/// Remembers which events a consumer has handled, in the consumer's own database and transaction.
///
/// ```no_run
/// # use outbox_core::{Inbox as _, Seen};
/// # use outbox_mysql::{MySqlConfig, MySqlInbox};
/// # async fn handle(config: &MySqlConfig, pool: sqlx::MySqlPool, id: &str) -> Result<(), Box<dyn std::error::Error>> {
/// let inbox = MySqlInbox::new(config)?;
/// match inbox.once(pool.begin().await?, "billing", id).await? {
///     Seen::First(mut tx) => {
///         sqlx::query("update accounts set cents = cents + 1250").execute(&mut *tx).await?;
///         tx.commit().await?;
///     }
///     Seen::Again(_) => {}
/// }
/// # Ok(()) }
/// ```
///
/// A mark outside a transaction does not compile, so that it cannot commit without the effect:
///
/// ```compile_fail,E0308
/// # async fn handle(inbox: outbox_mysql::MySqlInbox, mut connection: sqlx::MySqlConnection) {
/// inbox.first_seen(&mut connection, "billing", "1").await;
/// # }
/// ```
///
/// Neither does an effect in a transaction whose mark has failed. Here that matters most: a transaction that lost a
/// deadlock is rolled back by the server, and what comes after it would each commit by itself. For the same reason an
/// error of a statement of the effect must leave the effect (`?`), never be passed over.
///
/// ```compile_fail,E0382
/// # use outbox_core::Inbox as _;
/// # async fn handle(inbox: outbox_mysql::MySqlInbox, mut tx: sqlx::Transaction<'static, sqlx::MySql>) {
/// let seen = inbox.once(tx, "billing", "1").await;
/// sqlx::query("update accounts set cents = cents + 1250").execute(&mut *tx).await;
/// # }
/// ```
///
/// How long marks must stay, and what a consumer may rely on: `docs/inbox.md`.
#[derive(Clone, Debug)]
pub struct MySqlInbox {
    config: MySqlConfig,
    table: InboxTable,
    /// The same as it stands in a statement.
    quoted: InboxTable,
    marks: Marks,
    mark: Arc<str>,
    order: Order,
    purge_batch: u32,
    /// How many characters the columns of the key take, once the table is known to be an inbox. A session without strict
    /// mode would cut a longer text.
    length: Arc<OnceLock<usize>>,
}

impl MySqlInbox {
    /// The inbox beside the outbox table that `config` names; [`crate::Schema::migrate`] creates both.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when a setting is out of range.
    pub fn new(config: &MySqlConfig) -> Result<Self, StoreError> {
        config.validate()?;
        let table = config.inbox();
        let quoted = config.quoted(&table)?;
        Ok(Self {
            config: config.clone(),
            marks: Marks::new(&table),
            mark: sql::first_seen(&quoted).into(),
            order: Order::new(&config.names()),
            purge_batch: PURGE_BATCH,
            table,
            quoted,
            length: Arc::new(MAX_MARK_BYTES.into()),
        })
    }

    /// In this table of the same database, which is there already. It is looked at before the first mark: its key must be
    /// unique, and its columns text that compares byte for byte.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when a name cannot be one.
    pub fn with_table(mut self, table: InboxTable) -> Result<Self, StoreError> {
        self.quoted = self.config.quoted(&table)?;
        self.marks = self.marks.with_table(&table);
        self.mark = sql::first_seen(&self.quoted).into();
        self.length = Arc::default();
        self.table = table;
        Ok(self)
    }

    /// Of events of this producer: see [`Marks::with_source`].
    ///
    /// # Errors
    ///
    /// `Misconfigured` when the source is empty or holds a colon or a NUL.
    pub fn with_source(mut self, source: &str) -> Result<Self, StoreError> {
        self.marks = self.marks.with_source(source)?;
        Ok(self)
    }

    /// With so many marks in each transaction of a [`purge`](Self::purge), at least one. Default: [`PURGE_BATCH`].
    #[must_use]
    pub fn with_purge_batch(mut self, marks: u32) -> Self {
        self.purge_batch = marks.max(1);
        self
    }

    /// Marks the event as handled by `consumer`; `false` when it was already. See [`Inbox`] for the contract, and
    /// [`Inbox::once`] for what leaves less to remember.
    ///
    /// # Errors
    ///
    /// When the database refuses the statement or cannot be reached, or a name is too long; roll the transaction back
    /// then.
    pub async fn first_seen(
        &self,
        transaction: &mut Transaction<'_, MySql>,
        consumer: &str,
        event_id: &str,
    ) -> Result<bool, StoreError> {
        let event_id = self.marks.event_id(consumer, event_id)?;
        let length = self.length(transaction).await?;
        for (what, text) in [("event id", &*event_id), ("consumer", consumer)] {
            let characters = text.chars().count();
            if characters > length && (what == "event id" || self.table.consumer().is_some()) {
                let table = &self.quoted.table;
                let message = format!(
                    "cannot mark an event in {table}: the {what} has {characters} characters, its column takes {length}"
                );
                return Err(StoreError::new(StoreErrorKind::Rejected, message));
            }
        }
        let query = sqlx::query(AssertSqlSafe(Arc::clone(&self.mark))).bind(event_id.as_bytes());
        let query = match self.table.consumer() {
            Some(_) => query.bind(consumer.as_bytes()),
            None => query,
        };
        match query.execute(&mut **transaction).await {
            Ok(_) => Ok(true),
            Err(error) if is_duplicate(&error) => Ok(false),
            Err(error) => Err(store_error("mark an event in", &self.quoted.table, error)),
        }
    }

    /// Removes the marks that were made longer ago than `older_than`, by the database's clock, the oldest first, in short
    /// transactions of [`with_purge_batch`](Self::with_purge_batch) marks each. Of several that purge a table at once one
    /// works; the others return at once and say so.
    ///
    /// **An event that comes again after its mark was purged is handled again.** `older_than` has to be longer than the
    /// longest time after which a message can come: see `docs/inbox.md`.
    ///
    /// Dropping the future stops after the batch that is under way, which is still done.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when the table names no column for the time, or the user may not `select` and `delete`; otherwise
    /// when the database refuses the statement or cannot be reached. What was removed before stays removed.
    pub async fn purge(
        &self,
        pool: &MySqlPool,
        older_than: Duration,
    ) -> Result<Purged, StoreError> {
        self.table.purged_by()?;
        let mut marks = 0;
        loop {
            // In a task of its own: the lock belongs to the session, and is given back whatever becomes of the caller.
            let batch =
                purge_batch(pool.clone(), self.quoted.clone(), self.purge_batch, older_than);
            let done = tokio::spawn(batch).await.unwrap_or(Err(sqlx::Error::WorkerCrashed));
            match done.map_err(|error| store_error("purge", &self.quoted.table, error))? {
                None => return Ok(Purged::new(marks, true)),
                Some(gone) => {
                    marks += gone;
                    if gone < u64::from(self.purge_batch) {
                        return Ok(Purged::new(marks, false));
                    }
                }
            }
        }
    }

    /// How long a text may be. Refuses a table of the application's that cannot be an inbox.
    async fn length(&self, transaction: &mut Transaction<'_, MySql>) -> Result<usize, StoreError> {
        if let Some(length) = self.length.get() {
            return Ok(*length);
        }
        let failed = |error| store_error("look at", &self.quoted.table, error);
        let found = query_once(sql::inbox_faults(&self.config, &self.table))
            .fetch_all(&mut **transaction)
            .await
            .map_err(failed)?;
        let faults: Vec<String> = found
            .iter()
            .map(|row| Ok(row::lossy(row, 0)?.unwrap_or_default()))
            .collect::<Result<_, _>>()
            .map_err(failed)?;
        InboxTable::refuse(&self.quoted.table, &faults)?;
        let found = query_once(sql::inbox_length(&self.config, &self.table))
            .fetch_one(&mut **transaction)
            .await
            .map_err(failed)?;
        let length = row::int(&found, 0).map_err(failed)?;
        // Without the table, or without the column, the mark itself tells so.
        let Some(length) = length.and_then(|length: i64| usize::try_from(length).ok()) else {
            return Ok(MAX_MARK_BYTES);
        };
        Ok(*self.length.get_or_init(|| length))
    }
}

#[async_trait]
impl Inbox for MySqlInbox {
    type Transaction = Transaction<'static, MySql>;

    async fn first_seen(
        &self,
        transaction: &mut Self::Transaction,
        consumer: &str,
        event_id: &str,
    ) -> Result<bool, StoreError> {
        Self::first_seen(self, transaction, consumer, event_id).await
    }
}

/// Removes one batch and says how many marks it had; `None` when another purge is at work.
async fn purge_batch(
    pool: MySqlPool,
    inbox: InboxTable,
    batch: u32,
    older_than: Duration,
) -> Result<Option<u64>, sqlx::Error> {
    let mut connection = pool.acquire().await?;
    let locked = query_once(sql::lock_purge(&inbox)).fetch_one(&mut *connection).await?;
    if row::int(&locked, 0)? != Some(1) {
        return Ok(None);
    }
    let gone = delete_old(&mut connection, &inbox, batch, older_than).await;
    let unlocked = query_once(sql::unlock_purge(&inbox)).execute(&mut *connection).await;
    if unlocked.is_err() {
        // The end of the session gives it back.
        drop(connection.detach());
    }
    gone.map(Some)
}

async fn delete_old(
    connection: &mut MySqlConnection,
    inbox: &InboxTable,
    batch: u32,
    older_than: Duration,
) -> Result<u64, sqlx::Error> {
    let seen_at = inbox.seen_at.as_deref().expect("purge has looked for it");
    let older_than = micros(older_than);
    sqlx::raw_sql(sql::READ_COMMITTED).execute(&mut *connection).await?;
    let mut transaction = connection.begin().await?;
    let found = query_once(sql::purgeable(inbox, seen_at)).bind(older_than).bind(batch);
    let count = row::int(&found.fetch_one(&mut *transaction).await?, 0)?.unwrap_or_default();
    if count == 0 {
        return Ok(0);
    }
    let delete = query_once(sql::purge(inbox, seen_at)).bind(older_than).bind(count);
    let gone = delete.execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(gone.rows_affected())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_do_not_depend_on_the_order_in_which_they_are_set() {
        let inbox = || MySqlInbox::new(&MySqlConfig::from_url("mysql://db/shop").unwrap()).unwrap();
        let table = || InboxTable::of_one("billing", "processed", "event_id");
        let last =
            inbox().with_source("orders").unwrap().with_purge_batch(7).with_table(table()).unwrap();
        let first =
            inbox().with_table(table()).unwrap().with_purge_batch(7).with_source("orders").unwrap();
        assert_eq!(format!("{last:?}"), format!("{first:?}"));
        assert_ne!(format!("{last:?}"), format!("{:?}", inbox().with_table(table()).unwrap()));
    }
}
