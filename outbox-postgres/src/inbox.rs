//! The consumer's side: an event's effect happens once.

use std::sync::Arc;

use async_trait::async_trait;
use outbox_core::{Inbox, StoreError};
use sqlx::{AssertSqlSafe, Postgres, Transaction};

use crate::config::PostgresConfig;
use crate::error::store_error;
use crate::sql;

/// Remembers which events a consumer has handled, in the consumer's own database and transaction.
///
/// Marks stay until somebody removes them: `delete from outbox_inbox where seen_at < …`, with a time that no duplicate
/// outlives.
#[derive(Clone, Debug)]
pub struct PostgresInbox {
    mark: Arc<str>,
    table: Arc<str>,
    persistent: bool,
}

impl PostgresInbox {
    /// The inbox beside the outbox table that `config` names; [`crate::Schema::migrate`] creates both.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when a setting is out of range.
    pub fn new(config: &PostgresConfig) -> Result<Self, StoreError> {
        config.validate()?;
        let names = config.names();
        Ok(Self {
            mark: sql::first_seen(&names).into(),
            table: names.inbox.into(),
            persistent: !config.pooled,
        })
    }

    /// Marks the event as handled by `consumer`; `false` when it was already. See [`Inbox`] for the contract.
    ///
    /// # Errors
    ///
    /// When the database refuses the statement or cannot be reached; roll the transaction back then.
    pub async fn first_seen(
        &self,
        transaction: &mut Transaction<'_, Postgres>,
        consumer: &str,
        event_id: &str,
    ) -> Result<bool, StoreError> {
        let marked = sqlx::query(AssertSqlSafe(Arc::clone(&self.mark)))
            .persistent(self.persistent)
            .bind(consumer)
            .bind(event_id)
            .execute(&mut **transaction)
            .await
            .map_err(|error| store_error("mark an event in", &self.table, error))?;
        Ok(marked.rows_affected() == 1)
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
