//! The consumer's side: an event's effect happens once.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use outbox_core::{Inbox, InboxTable, MAX_MARK_BYTES, Marks, StoreError, StoreErrorKind};
use sqlx::{AssertSqlSafe, MySql, Transaction};

use crate::config::{InboxNames, MySqlConfig};
use crate::database::query_once;
use crate::error::{is_duplicate, store_error};
use crate::{row, sql};

/// Remembers which events a consumer has handled, in the consumer's own database and transaction.
///
/// ```no_run
/// # use outbox_core::{Inbox as _, Seen};
/// # use outbox_mysql::{MySqlConfig, MySqlInbox};
/// # async fn handle(config: &MySqlConfig, pool: sqlx::MySqlPool, id: &str) -> Result<(), Box<dyn std::error::Error>> {
/// let inbox = MySqlInbox::new(config);
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
    names: InboxNames,
    table: InboxTable,
    marks: Marks,
    mark: Arc<str>,
    /// How many characters the columns of the key take, once the table is known to be an inbox. A session without strict
    /// mode would cut a longer text.
    length: Arc<OnceLock<usize>>,
}

impl MySqlInbox {
    /// The inbox beside the outbox table that `config` names; [`crate::Schema::migrate`] creates both.
    #[must_use]
    pub fn new(config: &MySqlConfig) -> Self {
        Self::on(config, config.inbox(), Some(MAX_MARK_BYTES))
            .expect("names made from the setting table fit")
    }

    /// In this table of the same database, which is there already. It is looked at before the first mark: its key must be
    /// unique, and its columns text that compares byte for byte.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when a name cannot be one.
    pub fn with_table(self, table: InboxTable) -> Result<Self, StoreError> {
        Self::on(&self.config, table, None)
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

    fn on(
        config: &MySqlConfig,
        table: InboxTable,
        length: Option<usize>,
    ) -> Result<Self, StoreError> {
        let names = InboxNames::new(config, &table)?;
        Ok(Self {
            config: config.clone(),
            marks: Marks::new(&table),
            mark: sql::first_seen(&names).into(),
            names,
            table,
            length: Arc::new(length.map_or_else(OnceLock::new, OnceLock::from)),
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
        transaction: &mut Transaction<'_, MySql>,
        consumer: &str,
        event_id: &str,
    ) -> Result<bool, StoreError> {
        let event_id = self.marks.event_id(consumer, event_id)?;
        let length = self.length(transaction).await?;
        for (what, text) in [("event id", &*event_id), ("consumer", consumer)] {
            let characters = text.chars().count();
            if characters > length && (what == "event id" || self.names.consumer.is_some()) {
                let table = &self.names.table;
                let message = format!(
                    "cannot mark an event in {table}: the {what} has {characters} characters, its column takes {length}"
                );
                return Err(StoreError::new(StoreErrorKind::Rejected, message));
            }
        }
        let query = sqlx::query(AssertSqlSafe(Arc::clone(&self.mark))).bind(event_id.as_bytes());
        let query = match self.names.consumer {
            Some(_) => query.bind(consumer.as_bytes()),
            None => query,
        };
        match query.execute(&mut **transaction).await {
            Ok(_) => Ok(true),
            Err(error) if is_duplicate(&error) => Ok(false),
            Err(error) => Err(store_error("mark an event in", &self.names.table, error)),
        }
    }

    /// How long a text may be. Refuses a table of the application's that cannot be an inbox.
    async fn length(&self, transaction: &mut Transaction<'_, MySql>) -> Result<usize, StoreError> {
        if let Some(length) = self.length.get() {
            return Ok(*length);
        }
        let failed = |error| store_error("look at", &self.names.table, error);
        let found = query_once(sql::inbox_faults(&self.config, &self.table))
            .fetch_all(&mut **transaction)
            .await
            .map_err(failed)?;
        let faults: Vec<String> = found
            .iter()
            .map(|row| Ok(row::lossy(row, 0)?.unwrap_or_default()))
            .collect::<Result<_, _>>()
            .map_err(failed)?;
        if !faults.is_empty() {
            let (table, faults) = (&self.names.table, faults.join("; "));
            return Err(StoreError::misconfigured(format!("{table} is no inbox: {faults}")));
        }
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
