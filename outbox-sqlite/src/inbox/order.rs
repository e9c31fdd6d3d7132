//! Order and gaps: whether an event is the next one of its aggregate.

use outbox_core::{Arrival, StoreError};
use sqlx::{Sqlite, Transaction};

use super::SqliteInbox;
use crate::error::failed;

impl SqliteInbox {
    /// Tells where the event with this number stands among those of its aggregate, and accepts it if it is the next one:
    /// [`Arrival`] says what each answer means. The number is
    /// [`ReceivedEvent::sequence`](outbox_core::ReceivedEvent::sequence); events are numbered by writers whose settings say
    /// `sequence`, and the inbox needs that setting too.
    ///
    /// `key` names the aggregate: its id where all have one type, else type and id. What was accepted is rolled back with
    /// the transaction.
    ///
    /// # Errors
    ///
    /// `Rejected` when a name is too long; otherwise when the database refuses the statement or cannot be written. Roll
    /// the transaction back then.
    pub async fn arrival(
        &self,
        transaction: &mut Transaction<'_, Sqlite>,
        consumer: &str,
        key: &str,
        sequence: Option<u64>,
    ) -> Result<Arrival, StoreError> {
        let Some(sequence) = sequence else { return Ok(Arrival::Unnumbered) };
        // A statement that writes, although it changes nothing: nobody may accept another event before this transaction ends.
        let last = self.raise(transaction, consumer, key, 0).await?;
        let arrival = Arrival::of(last, sequence);
        if arrival == Arrival::Next {
            self.raise(transaction, consumer, key, sequence).await?;
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
        transaction: &mut Transaction<'_, Sqlite>,
        consumer: &str,
        key: &str,
        sequence: u64,
    ) -> Result<(), StoreError> {
        self.raise(transaction, consumer, key, sequence).await.map(drop)
    }

    /// Accepts everything up to this number, and says what the last accepted one is then.
    async fn raise(
        &self,
        transaction: &mut Transaction<'_, Sqlite>,
        consumer: &str,
        key: &str,
        sequence: u64,
    ) -> Result<u64, StoreError> {
        let (key, number) = self.marks.arrival(consumer, key, sequence)?;
        let last: i64 = sqlx::query_scalar(self.accept.clone())
            .bind(consumer.to_owned())
            .bind(key.into_owned())
            .bind(number)
            .fetch_one(&mut **transaction)
            .await
            .map_err(failed(format!(
                "look for the next event in table \"{}_arrivals\" of {}, which needs the setting sequence",
                self.config.table,
                self.config.file.display()
            )))?;
        Ok(last.cast_unsigned())
    }
}
