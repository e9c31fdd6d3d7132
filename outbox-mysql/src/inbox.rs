//! The consumer's side: an event's effect happens once.

use std::sync::Arc;

use async_trait::async_trait;
use outbox_core::{Inbox, StoreError, StoreErrorKind};
use sqlx::{AssertSqlSafe, MySql, Transaction};

use crate::config::MySqlConfig;
use crate::error::store_error;
use crate::sql;

/// The longest consumer name, and the longest event id, in bytes: a session without strict mode would cut longer ones.
const MAX_BYTES: usize = 255;

/// Remembers which events a consumer has handled, in the consumer's own database and transaction.
///
/// Marks stay until somebody removes them: `delete from outbox_inbox where seen_at < … limit 1000`, repeated, with a time
/// (in UTC) that no duplicate outlives.
#[derive(Clone, Debug)]
pub struct MySqlInbox {
    mark: Arc<str>,
    table: Arc<str>,
}

impl MySqlInbox {
    /// The inbox beside the outbox table that `config` names; [`crate::Schema::migrate`] creates both.
    #[must_use]
    pub fn new(config: &MySqlConfig) -> Self {
        let names = config.names();
        Self { mark: sql::first_seen(&names).into(), table: names.inbox.into() }
    }

    /// Marks the event as handled by `consumer`; `false` when it was already. See [`Inbox`] for the contract.
    ///
    /// # Errors
    ///
    /// When the database refuses the statement or cannot be reached, or a name is longer than 255 bytes; roll the
    /// transaction back then.
    pub async fn first_seen(
        &self,
        transaction: &mut Transaction<'_, MySql>,
        consumer: &str,
        event_id: &str,
    ) -> Result<bool, StoreError> {
        for (what, text) in [("consumer", consumer), ("event id", event_id)] {
            if text.len() > MAX_BYTES {
                let message = format!(
                    "cannot mark an event in {}: the {what} has {} bytes, {MAX_BYTES} are allowed",
                    self.table,
                    text.len()
                );
                return Err(StoreError::new(StoreErrorKind::Rejected, message));
            }
        }
        let marked = sqlx::query(AssertSqlSafe(Arc::clone(&self.mark)))
            .bind(consumer.as_bytes())
            .bind(event_id.as_bytes())
            .execute(&mut **transaction)
            .await
            .map_err(|error| store_error("mark an event in", &self.table, error))?;
        Ok(marked.rows_affected() == 1)
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
