//! Numbers for the events of each aggregate, drawn in the application's transaction.

use std::sync::Arc;

use outbox_core::{NewEvent, Numbers, StoreError};
use sqlx::{AssertSqlSafe, Postgres, Transaction};

use crate::error::store_error;

/// Draws numbers, where writers number events.
#[derive(Clone, Debug)]
pub(super) struct Sequences {
    pub(super) draw: Arc<str>,
    pub(super) table: Arc<str>,
    pub(super) persistent: bool,
}

impl Sequences {
    /// The headers of `events`, with their numbers. The statement locks each aggregate until the transaction ends.
    pub(super) async fn headers(
        &self,
        transaction: &mut Transaction<'_, Postgres>,
        events: &[NewEvent],
    ) -> Result<Vec<Option<String>>, StoreError> {
        let numbers = Numbers::of(events);
        let mut drawn: Vec<(String, String, i64)> = Vec::new();
        if numbers.wanted().len() > 0 {
            let counts = numbers.wanted().map(|(_, _, count)| count.cast_signed());
            drawn = sqlx::query_as(AssertSqlSafe(Arc::clone(&self.draw)))
                .persistent(self.persistent)
                .bind(numbers.wanted().map(|(kind, ..)| kind).collect::<Vec<_>>())
                .bind(numbers.wanted().map(|(_, id, _)| id).collect::<Vec<_>>())
                .bind(counts.collect::<Vec<_>>())
                .fetch_all(&mut **transaction)
                .await
                .map_err(|error| store_error("draw numbers from", &self.table, error))?;
        }
        let drawn = drawn.into_iter().map(|(kind, id, last)| (kind, id, last.cast_unsigned()));
        numbers.headers(&self.table, drawn)
    }
}
