//! The consumer's side: an event's effect happens once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use outbox_core::{Inbox, InboxTable, Marks, StoreError};
use sqlx::{AssertSqlSafe, Postgres, Transaction};

use crate::config::{InboxNames, PostgresConfig};
use crate::error::store_error;
use crate::sql;

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
    names: InboxNames,
    table: InboxTable,
    marks: Marks,
    mark: Arc<str>,
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
        Self::on(config, config.inbox(), true)
    }

    /// In this table of the same schema, which is there already. It is looked at before the first mark: its key must be
    /// unique, and its columns text that compares byte for byte.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when a name cannot be one.
    pub fn with_table(self, table: InboxTable) -> Result<Self, StoreError> {
        Self::on(&self.config, table, false)
    }

    /// Of events of this producer: see [`Marks::with_source`]. After [`with_table`](Self::with_table).
    ///
    /// # Errors
    ///
    /// `Misconfigured` when the source is empty or holds a colon or a NUL.
    pub fn with_source(mut self, source: &str) -> Result<Self, StoreError> {
        self.marks = self.marks.with_source(source)?;
        Ok(self)
    }

    fn on(config: &PostgresConfig, table: InboxTable, known: bool) -> Result<Self, StoreError> {
        let names = InboxNames::new(config, &table)?;
        Ok(Self {
            config: config.clone(),
            marks: Marks::new(&table),
            mark: sql::first_seen(&names).into(),
            names,
            table,
            known: Arc::new(known.into()),
        })
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
        let query = match self.names.consumer {
            Some(_) => query.bind(consumer),
            None => query,
        };
        let marked = query
            .execute(&mut **transaction)
            .await
            .map_err(|error| store_error("mark an event in", &self.names.table, error))?;
        Ok(marked.rows_affected() == 1)
    }

    /// Refuses a table of the application's that cannot be an inbox.
    async fn look(&self, transaction: &mut Transaction<'_, Postgres>) -> Result<(), StoreError> {
        if self.known.load(Ordering::Relaxed) {
            return Ok(());
        }
        let faults: Vec<String> = sqlx::query_scalar(sql::INBOX_FAULTS)
            .persistent(false)
            .bind(&self.names.table)
            .bind(self.table.key())
            .fetch_all(&mut **transaction)
            .await
            .map_err(|error| store_error("look at", &self.names.table, error))?;
        if !faults.is_empty() {
            let (table, faults) = (&self.names.table, faults.join("; "));
            return Err(StoreError::misconfigured(format!("{table} is no inbox: {faults}")));
        }
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
