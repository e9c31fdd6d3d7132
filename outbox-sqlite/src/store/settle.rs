//! Writing verdicts, fenced.

use outbox_core::{LaneId, Receipt, Settled, Settlements, StoreError};
use serde_json::{Value, json};
use sqlx::{SqlStr, Sqlite, Transaction};

use super::SqliteStore;
use crate::config::Keep;
use crate::writer::micros;

impl SqliteStore {
    /// One transaction: the fence first, then the lists of the lanes that passed it.
    pub(super) async fn write_verdicts(
        &self,
        settlements: &Settlements,
    ) -> Result<Settled, StoreError> {
        let mut transaction = self.write().await?;
        let held = sqlx::query_scalar::<_, LaneId>(self.sql.fence.clone())
            .bind(settlements.worker.pipeline.name().to_owned())
            .bind(settlements.worker.id.to_string())
            .bind(json!(settlements.lanes).to_string())
            .fetch_all(&mut *transaction)
            .await
            .map_err(self.failed("read the lanes of"))?;
        let lists = Lists::of(settlements, &held);

        let mut found = 0;
        if self.keep == Keep::Archive {
            self.execute(&mut transaction, &self.sql.archive, &lists.delivered).await?;
        }
        found += self.execute(&mut transaction, &self.sql.delete, &lists.delivered).await?;
        found += self.execute(&mut transaction, &self.sql.wait, &lists.retries).await?;
        self.execute(&mut transaction, &self.sql.bury, &lists.dead).await?;
        found += self.execute(&mut transaction, &self.sql.delete, &lists.dead).await?;
        let recovered: Vec<_> =
            settlements.recovered.iter().filter(|lane| held.contains(lane)).collect();
        if !recovered.is_empty() {
            sqlx::query(self.sql.recover.clone())
                .bind(settlements.worker.pipeline.name().to_owned())
                .bind(json!(recovered).to_string())
                .execute(&mut *transaction)
                .await
                .map_err(self.failed("settle in"))?;
        }
        self.commit(transaction).await?;
        Ok(Settled::new(held, lists.len().saturating_sub(found)))
    }

    /// Executes one statement on a list of `[position, id, lane, …]`; returns the rows it touched.
    async fn execute(
        &self,
        transaction: &mut Transaction<'static, Sqlite>,
        sql: &SqlStr,
        list: &[Value],
    ) -> Result<u64, StoreError> {
        if list.is_empty() {
            return Ok(0);
        }
        let done = sqlx::query(sql.clone())
            .bind(json!(list).to_string())
            .execute(&mut **transaction)
            .await
            .map_err(self.failed("settle in"))?;
        Ok(done.rows_affected())
    }
}

/// The events of a settlement whose lanes are held, as JSON arrays for the statements.
struct Lists {
    delivered: Vec<Value>,
    retries: Vec<Value>,
    dead: Vec<Value>,
}

impl Lists {
    fn of(settlements: &Settlements, held: &[LaneId]) -> Self {
        let is_held = |receipt: &Receipt| held.binary_search(&receipt.lane).is_ok();
        let delivered = settlements.delivered.iter().filter(|event| is_held(&event.receipt));
        let retries = settlements.retries.iter().filter(|event| is_held(&event.receipt));
        let dead = settlements.dead.iter().filter(|event| is_held(&event.receipt));
        Self {
            delivered: delivered
                .map(|event| named(&event.receipt, [json!(*event.destination)]))
                .collect(),
            retries: retries
                .map(|event| {
                    let delay = json!(event.delay.map(micros));
                    named(&event.receipt, [json!(event.attempts), delay, json!(event.reason)])
                })
                .collect(),
            dead: dead
                .map(|event| named(&event.receipt, [json!(event.attempts), json!(event.reason)]))
                .collect(),
        }
    }

    fn len(&self) -> u64 {
        (self.delivered.len() + self.retries.len() + self.dead.len()) as u64
    }
}

fn named<const N: usize>(receipt: &Receipt, rest: [Value; N]) -> Value {
    let mut list =
        vec![json!(receipt.position), json!(receipt.id.to_string()), json!(receipt.lane)];
    list.extend(rest);
    Value::Array(list)
}
