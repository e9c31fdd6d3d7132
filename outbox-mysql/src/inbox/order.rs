//! Order and gaps: whether an event is the next one of its aggregate.

use std::sync::Arc;

use outbox_core::{Arrival, StoreError};
use sqlx::{AssertSqlSafe, MySql, Transaction};

use super::MySqlInbox;
use crate::config::Names;
use crate::error::store_error;
use crate::sql;

/// The statements, and the table that they work on.
#[derive(Clone, Debug)]
pub(super) struct Order {
    accept: Arc<str>,
    accepted: Arc<str>,
    arrivals: Arc<str>,
}

impl Order {
    pub(super) fn new(names: &Names) -> Self {
        Self {
            accept: sql::accept(names).into(),
            accepted: sql::accepted(names).into(),
            arrivals: names.arrivals.as_str().into(),
        }
    }
}

impl MySqlInbox {
    /// Tells where the event with this number stands among those of its aggregate, and accepts it if it is the next one:
    /// [`Arrival`] says what each answer means. The number is
    /// [`ReceivedEvent::sequence`](outbox_core::ReceivedEvent::sequence); events are numbered by writers whose settings say
    /// `sequence`, and the inbox needs that setting too.
    ///
    /// `key` names the aggregate: its id where all have one type, else type and id. Two transactions with one key wait for
    /// each other. What was accepted is rolled back with the transaction.
    ///
    /// # Errors
    ///
    /// `Rejected` when a name is too long; otherwise when the database refuses the statement or cannot be reached. Roll
    /// the transaction back then.
    pub async fn arrival(
        &self,
        transaction: &mut Transaction<'_, MySql>,
        consumer: &str,
        key: &str,
        sequence: Option<u64>,
    ) -> Result<Arrival, StoreError> {
        let Some(sequence) = sequence else { return Ok(Arrival::Unnumbered) };
        // Changes nothing that is there already, and locks it: nobody accepts another event before this transaction ends.
        self.accept(transaction, consumer, key, 0).await?;
        let (stored, _) = self.marks.arrival(consumer, key, sequence)?;
        let last: i64 = sqlx::query_scalar(AssertSqlSafe(Arc::clone(&self.order.accepted)))
            .bind(consumer.as_bytes())
            .bind(stored.as_bytes())
            .fetch_one(&mut **transaction)
            .await
            .map_err(|error| self.cannot_order(error))?;
        let arrival = Arrival::of(last.cast_unsigned(), sequence);
        if arrival == Arrival::Next {
            self.accept(transaction, consumer, key, sequence).await?;
        }
        Ok(arrival)
    }

    /// Accepts everything up to this number: what is missing is given up, and is a duplicate if it comes later.
    ///
    /// # Errors
    ///
    /// As [`arrival`](Self::arrival).
    pub async fn accept(
        &self,
        transaction: &mut Transaction<'_, MySql>,
        consumer: &str,
        key: &str,
        sequence: u64,
    ) -> Result<(), StoreError> {
        let (stored, number) = self.marks.arrival(consumer, key, sequence)?;
        sqlx::query(AssertSqlSafe(Arc::clone(&self.order.accept)))
            .bind(consumer.as_bytes())
            .bind(stored.as_bytes())
            .bind(number)
            .execute(&mut **transaction)
            .await
            .map_err(|error| self.cannot_order(error))?;
        Ok(())
    }

    fn cannot_order(&self, error: sqlx::Error) -> StoreError {
        let action = "look for the next event in (it needs the setting sequence)";
        store_error(action, &self.order.arrivals, error)
    }
}
