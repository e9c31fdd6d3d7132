//! The consumer's side: an event's effect happens once.

use outbox_core::{Inbox, StoreError, async_trait};
use sqlx::{Sqlite, Transaction};

use crate::config::SqliteConfig;
use crate::error::failed;
use crate::sql::Sql;

/// Remembers which events a consumer has handled, in the consumer's own database and transaction.
///
/// The transaction should begin with `begin immediate` (as [`crate::SqliteOutbox::begin`] does): the first mark takes
/// the write lock anyway, and a transaction that has read before may be refused then.
///
/// Marks stay until somebody removes them: `delete from outbox_inbox where seen_at < …`, with a time that no duplicate
/// outlives.
#[derive(Debug)]
pub struct SqliteInbox {
    sql: Sql,
    place: String,
}

impl SqliteInbox {
    /// The inbox beside the outbox table that `config` names; [`crate::Schema::migrate`] creates both.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when a setting is out of range.
    pub fn new(config: &SqliteConfig) -> Result<Self, StoreError> {
        Ok(Self { sql: Sql::new(config)?, place: config.place() })
    }

    /// Marks the event as handled by `consumer`; `false` when it was already. See [`Inbox`] for the contract.
    ///
    /// # Errors
    ///
    /// When the database refuses the statement or cannot be written; roll the transaction back then.
    pub async fn first_seen(
        &self,
        transaction: &mut Transaction<'_, Sqlite>,
        consumer: &str,
        event_id: &str,
    ) -> Result<bool, StoreError> {
        let marked = sqlx::query(self.sql.first_seen.clone())
            .bind(consumer.to_owned())
            .bind(event_id.to_owned())
            .execute(&mut **transaction)
            .await
            .map_err(failed(format!("mark an event in the inbox of {}", self.place)))?;
        Ok(marked.rows_affected() == 1)
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
