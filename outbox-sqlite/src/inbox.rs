//! The consumer's side: an event's effect happens once.

mod order;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outbox_core::{Inbox, InboxTable, Marks, PURGE_BATCH, Purged, StoreError, async_trait};
use sqlx::{SqlStr, Sqlite, SqlitePool, Transaction};

use crate::config::{SqliteConfig, check_name};
use crate::error::failed;
use crate::sql::inbox as sql;
use crate::writer::micros;

/// Remembers which events a consumer has handled, in the consumer's own database and transaction.
///
/// The transaction should begin with `begin immediate` (as [`crate::SqliteOutbox::begin`] does): the first mark takes
/// the write lock anyway, and a transaction that has read before may be refused then.
///
/// ```no_run
/// # use outbox_core::{Inbox as _, Seen};
/// # use outbox_sqlite::{SqliteConfig, SqliteInbox};
/// # async fn handle(config: &SqliteConfig, pool: sqlx::SqlitePool, id: &str) -> Result<(), Box<dyn std::error::Error>> {
/// let inbox = SqliteInbox::new(config)?;
/// match inbox.once(pool.begin_with("begin immediate").await?, "billing", id).await? {
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
/// # async fn handle(inbox: outbox_sqlite::SqliteInbox, mut connection: sqlx::SqliteConnection) {
/// inbox.first_seen(&mut connection, "billing", "1").await;
/// # }
/// ```
///
/// Neither does an effect in a transaction whose mark has failed, or stands on another connection:
///
/// ```compile_fail,E0382
/// # use outbox_core::Inbox as _;
/// # async fn handle(inbox: outbox_sqlite::SqliteInbox, mut tx: sqlx::Transaction<'static, sqlx::Sqlite>) {
/// let seen = inbox.once(tx, "billing", "1").await;
/// sqlx::query("update accounts set cents = cents + 1250").execute(&mut *tx).await;
/// # }
/// ```
///
/// How long marks must stay, and what a consumer may rely on: `docs/inbox.md`.
#[derive(Clone, Debug)]
pub struct SqliteInbox {
    config: SqliteConfig,
    table: InboxTable,
    marks: Marks,
    mark: SqlStr,
    accept: SqlStr,
    purge_batch: u32,
    /// Whether the table is known to be an inbox.
    known: Arc<AtomicBool>,
}

impl SqliteInbox {
    /// The inbox beside the outbox table that `config` names; [`crate::Schema::migrate`] creates both.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when a setting is out of range.
    pub fn new(config: &SqliteConfig) -> Result<Self, StoreError> {
        config.validate()?;
        let table = config.inbox();
        Ok(Self {
            config: config.clone(),
            marks: Marks::new(&table),
            mark: sql::first_seen(&table),
            accept: sql::accept(&config.table),
            purge_batch: PURGE_BATCH,
            table,
            known: Arc::new(true.into()),
        })
    }

    /// In this table of the same file, which is there already. It is looked at before the first mark: its key must be
    /// unique, and its columns text that compares byte for byte. A column for the time holds microseconds since 1970.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when a name cannot be one: letters, digits and `_`, at most [`SqliteConfig::MAX_TABLE_BYTES`].
    pub fn with_table(mut self, table: InboxTable) -> Result<Self, StoreError> {
        for (what, name) in table.names() {
            check_name(what, name)?;
        }
        self.marks = self.marks.with_table(&table);
        self.mark = sql::first_seen(&table);
        self.known = Arc::default();
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
    /// When the database refuses the statement or cannot be written, or a name is too long; roll the transaction back
    /// then.
    pub async fn first_seen(
        &self,
        transaction: &mut Transaction<'_, Sqlite>,
        consumer: &str,
        event_id: &str,
    ) -> Result<bool, StoreError> {
        let event_id = self.marks.event_id(consumer, event_id)?.into_owned();
        self.look(transaction).await?;
        let query = sqlx::query(self.mark.clone()).bind(event_id);
        let query = match self.table.consumer() {
            Some(_) => query.bind(consumer.to_owned()),
            None => query,
        };
        let marked = query
            .execute(&mut **transaction)
            .await
            .map_err(failed(format!("mark an event in {}", self.place())))?;
        Ok(marked.rows_affected() == 1)
    }

    /// Removes the marks that were made longer ago than `older_than`, by the database's clock, the oldest first, in short
    /// transactions of [`with_purge_batch`](Self::with_purge_batch) marks each. It waits for SQLite's write lock as any
    /// writer does; several that purge at once take turns.
    ///
    /// **An event that comes again after its mark was purged is handled again.** `older_than` has to be longer than the
    /// longest time after which a message can come: see `docs/inbox.md`.
    ///
    /// Dropping the future stops after the batch that is under way, which may still be done.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when the table names no column for the time; `Unavailable` when another writer keeps the lock for
    /// longer than the busy time-out. What was removed before stays removed.
    pub async fn purge(
        &self,
        pool: &SqlitePool,
        older_than: Duration,
    ) -> Result<Purged, StoreError> {
        let statement = sql::purge(&self.table, self.table.purged_by()?);
        let mut marks = 0;
        loop {
            let gone = sqlx::query(statement.clone())
                .bind(micros(older_than))
                .bind(self.purge_batch)
                .execute(pool)
                .await
                .map_err(failed(format!("purge {}", self.place())))?
                .rows_affected();
            marks += gone;
            if gone < u64::from(self.purge_batch) {
                return Ok(Purged::new(marks, false));
            }
        }
    }

    /// Refuses a table of the application's that cannot be an inbox.
    async fn look(&self, transaction: &mut Transaction<'_, Sqlite>) -> Result<(), StoreError> {
        if self.known.load(Ordering::Relaxed) {
            return Ok(());
        }
        let faults: Vec<String> = sqlx::query_scalar(sql::faults(&self.table))
            .persistent(false)
            .fetch_all(&mut **transaction)
            .await
            .map_err(failed(format!("look at {}", self.place())))?;
        InboxTable::refuse(&self.place(), &faults)?;
        self.known.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// For messages.
    fn place(&self) -> String {
        format!("table {:?} of {}", self.table.table, self.config.file.display())
    }
}

#[async_trait]
impl Inbox for SqliteInbox {
    type Transaction = Transaction<'static, Sqlite>;

    async fn first_seen(
        &self,
        transaction: &mut Self::Transaction,
        consumer: &str,
        event_id: &str,
    ) -> Result<bool, StoreError> {
        Self::first_seen(self, transaction, consumer, event_id).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_do_not_depend_on_the_order_in_which_they_are_set() {
        let inbox = || SqliteInbox::new(&SqliteConfig::new("x")).unwrap();
        let table = || InboxTable::of_one("billing", "processed", "event_id");
        let last =
            inbox().with_source("orders").unwrap().with_purge_batch(7).with_table(table()).unwrap();
        let first =
            inbox().with_table(table()).unwrap().with_purge_batch(7).with_source("orders").unwrap();
        assert_eq!(format!("{last:?}"), format!("{first:?}"));
        assert_ne!(format!("{last:?}"), format!("{:?}", inbox().with_table(table()).unwrap()));
    }
}
