//! The consumer's side: an event's effect happens once.

mod order;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{Inbox, InboxTable, Marks, PURGE_BATCH, Purged, StoreError};
use sqlx::{AssertSqlSafe, PgPool, Postgres, Transaction};

use crate::config::PostgresConfig;
use crate::error::store_error;
use crate::sql;
use crate::writer::micros;
use order::Order;

/// Remembers which events a consumer has handled, in the consumer's own database and transaction.
///
/// ```no_run
/// # use outbox_core::{Inbox as _, Seen};
/// # use outbox_postgres::{PostgresConfig, PostgresInbox};
/// # async fn handle(config: &PostgresConfig, pool: sqlx::PgPool, id: &str) -> Result<(), Box<dyn std::error::Error>> {
/// let inbox = PostgresInbox::new(config)?;
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
/// # async fn handle(inbox: outbox_postgres::PostgresInbox, mut connection: sqlx::PgConnection) {
/// inbox.first_seen(&mut connection, "billing", "1").await;
/// # }
/// ```
///
/// Neither does an effect in a transaction whose mark has failed, or stands on another connection:
///
/// ```compile_fail,E0382
/// # use outbox_core::Inbox as _;
/// # async fn handle(inbox: outbox_postgres::PostgresInbox, mut tx: sqlx::Transaction<'static, sqlx::Postgres>) {
/// let seen = inbox.once(tx, "billing", "1").await;
/// sqlx::query("update accounts set cents = cents + 1250").execute(&mut *tx).await;
/// # }
/// ```
///
/// How long marks must stay, and what a consumer may rely on: `docs/inbox.md`.
#[derive(Clone, Debug)]
pub struct PostgresInbox {
    config: PostgresConfig,
    table: InboxTable,
    /// The same as it stands in a statement.
    quoted: InboxTable,
    marks: Marks,
    mark: Arc<str>,
    order: Order,
    purge_batch: u32,
    /// Whether the table is known to be an inbox.
    known: Arc<AtomicBool>,
}

impl PostgresInbox {
    /// The inbox beside the outbox table that `config` names; [`crate::Schema::migrate`] creates both.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when a setting is out of range.
    pub fn new(config: &PostgresConfig) -> Result<Self, StoreError> {
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
            known: Arc::new(true.into()),
        })
    }

    /// In this table of the same schema, which is there already. It is looked at before the first mark: its key must be
    /// unique, and its columns text that compares byte for byte.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when a name cannot be one.
    pub fn with_table(mut self, table: InboxTable) -> Result<Self, StoreError> {
        self.quoted = self.config.quoted(&table)?;
        self.marks = self.marks.with_table(&table);
        self.mark = sql::first_seen(&self.quoted).into();
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
    /// When the database refuses the statement or cannot be reached, or a name is too long; roll the transaction back
    /// then.
    pub async fn first_seen(
        &self,
        transaction: &mut Transaction<'_, Postgres>,
        consumer: &str,
        event_id: &str,
    ) -> Result<bool, StoreError> {
        let event_id = self.marks.event_id(consumer, event_id)?;
        self.look(transaction).await?;
        let query = sqlx::query(AssertSqlSafe(Arc::clone(&self.mark)))
            .persistent(!self.config.pooled)
            .bind(&*event_id);
        let query = match self.table.consumer() {
            Some(_) => query.bind(consumer),
            None => query,
        };
        let marked = query
            .execute(&mut **transaction)
            .await
            .map_err(|error| store_error("mark an event in", &self.quoted.table, error))?;
        Ok(marked.rows_affected() == 1)
    }

    /// Removes the marks that were made longer ago than `older_than`, by the database's clock, the oldest first, in short
    /// transactions of [`with_purge_batch`](Self::with_purge_batch) marks each. Of several that purge a table at once one
    /// works; the others return at once and say so.
    ///
    /// **An event that comes again after its mark was purged is handled again.** `older_than` has to be longer than the
    /// longest time after which a message can come: see `docs/inbox.md`.
    ///
    /// Dropping the future stops after the batch that is under way, which may still be done.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when the table names no column for the time, or the role may not `select` and `delete`; otherwise
    /// when the database refuses the statement or cannot be reached. What was removed before stays removed.
    pub async fn purge(&self, pool: &PgPool, older_than: Duration) -> Result<Purged, StoreError> {
        let statement: Arc<str> = sql::purge(&self.quoted, self.quoted.purged_by()?).into();
        let (mut marks, mut until) = (0, 0);
        loop {
            let (held, found, gone, last): (bool, i64, i64, Option<i64>) =
                sqlx::query_as(AssertSqlSafe(Arc::clone(&statement)))
                    .persistent(!self.config.pooled)
                    .bind(micros(older_than))
                    .bind(i64::from(self.purge_batch))
                    .bind(until)
                    .fetch_one(pool)
                    .await
                    .map_err(|error| store_error("purge", &self.quoted.table, error))?;
            marks += gone.cast_unsigned();
            until = last.unwrap_or(until);
            if !held || found < i64::from(self.purge_batch) {
                return Ok(Purged::new(marks, !held));
            }
        }
    }

    /// Refuses a table of the application's that cannot be an inbox.
    async fn look(&self, transaction: &mut Transaction<'_, Postgres>) -> Result<(), StoreError> {
        if self.known.load(Ordering::Relaxed) {
            return Ok(());
        }
        let faults: Vec<String> = sqlx::query_scalar(sql::INBOX_FAULTS)
            .persistent(false)
            .bind(&self.quoted.table)
            .bind(self.table.key())
            .fetch_all(&mut **transaction)
            .await
            .map_err(|error| store_error("look at", &self.quoted.table, error))?;
        InboxTable::refuse(&self.quoted.table, &faults)?;
        self.known.store(true, Ordering::Relaxed);
        Ok(())
    }
}

#[async_trait]
impl Inbox for PostgresInbox {
    type Transaction = Transaction<'static, Postgres>;

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
        let inbox = || {
            PostgresInbox::new(&PostgresConfig::from_url("postgres://db/shop").unwrap()).unwrap()
        };
        let table = || InboxTable::of_one("billing", "processed", "event_id");
        let last =
            inbox().with_source("orders").unwrap().with_purge_batch(7).with_table(table()).unwrap();
        let first =
            inbox().with_table(table()).unwrap().with_purge_batch(7).with_source("orders").unwrap();
        assert_eq!(format!("{last:?}"), format!("{first:?}"));
        assert_ne!(format!("{last:?}"), format!("{:?}", inbox().with_table(table()).unwrap()));
    }
}
