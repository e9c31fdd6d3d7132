//! The settlement: one fenced statement.

use std::time::Duration;

use outbox_core::{LaneId, Receipt, Settled, Settlements, StoreError, cut_reason};
use sqlx::Row as _;
use uuid::Uuid;

use super::{PostgresStore, int2};
use crate::Keep;

/// The longest delay that PostgreSQL's clock can add, in microseconds: ten thousand years.
const LONGEST_DELAY: i64 = 10_000 * 366 * 24 * 60 * 60 * 1_000_000;

impl PostgresStore {
    pub(super) async fn write(&self, settlements: &Settlements) -> Result<Settled, StoreError> {
        let Settlements { worker, lanes, delivered, retries, dead, recovered, .. } = settlements;
        let only_delivered = retries.is_empty() && dead.is_empty() && recovered.is_empty();
        let statement = if only_delivered {
            &self.statements.settle_delivered
        } else {
            &self.statements.settle
        };
        let gone = Keys::of(delivered.iter().map(|delivered| &delivered.receipt));
        let mut query = self
            .database
            .query(statement)
            .bind(worker.pipeline.name().to_owned())
            .bind(worker.id)
            .bind(lanes.iter().map(|(lane, _)| int2(*lane)).collect::<Vec<_>>())
            .bind(lanes.iter().map(|(_, epoch)| *epoch).collect::<Vec<_>>())
            .bind(gone.lanes)
            .bind(gone.positions)
            .bind(gone.ids);
        if !only_delivered {
            let later = Keys::of(retries.iter().map(|retry| &retry.receipt));
            let buried = Keys::of(dead.iter().map(|dead| &dead.receipt));
            query = query
                .bind(later.lanes)
                .bind(later.positions)
                .bind(later.ids)
                .bind(retries.iter().map(|retry| attempts(retry.attempts)).collect::<Vec<_>>())
                .bind(retries.iter().map(|retry| retry.delay.map(micros)).collect::<Vec<_>>())
                .bind(retries.iter().map(|retry| cut_reason(&retry.reason)).collect::<Vec<_>>())
                .bind(buried.lanes)
                .bind(buried.positions)
                .bind(buried.ids)
                .bind(dead.iter().map(|dead| attempts(dead.attempts)).collect::<Vec<_>>())
                .bind(dead.iter().map(|dead| cut_reason(&dead.reason)).collect::<Vec<_>>())
                .bind(recovered.iter().map(|lane| int2(*lane)).collect::<Vec<_>>());
        }
        if self.config.keep == Keep::Archive {
            query = query.bind(
                delivered.iter().map(|event| cut_reason(&event.destination)).collect::<Vec<_>>(),
            );
        }
        let (held, done) = self
            .database
            .run("settle events of", move |connection| {
                Box::pin(async move {
                    let row = query.fetch_one(connection).await?;
                    Ok((row.try_get::<Vec<i16>, _>("held")?, row.try_get::<i64, _>("done")?))
                })
            })
            .await?;
        let mut held: Vec<LaneId> = held.into_iter().map(i16::cast_unsigned).collect();
        held.sort_unstable();
        let named = receipts(settlements).filter(|receipt| held.contains(&receipt.lane)).count();
        let missing = (named as u64).saturating_sub(u64::try_from(done).unwrap_or_default());
        Ok(Settled::new(held, missing))
    }
}

fn receipts(settlements: &Settlements) -> impl Iterator<Item = &Receipt> {
    let Settlements { delivered, retries, dead, .. } = settlements;
    (delivered.iter().map(|delivered| &delivered.receipt))
        .chain(retries.iter().map(|retry| &retry.receipt))
        .chain(dead.iter().map(|dead| &dead.receipt))
}

/// Receipts as parallel arrays.
#[derive(Default)]
struct Keys {
    lanes: Vec<i16>,
    positions: Vec<i64>,
    ids: Vec<Uuid>,
}

impl Keys {
    fn of<'a>(receipts: impl ExactSizeIterator<Item = &'a Receipt>) -> Self {
        let count = receipts.len();
        let mut keys = Self {
            lanes: Vec::with_capacity(count),
            positions: Vec::with_capacity(count),
            ids: Vec::with_capacity(count),
        };
        for receipt in receipts {
            keys.lanes.push(int2(receipt.lane));
            keys.positions.push(receipt.position);
            // No row of this table has an id that is no UUID: it is missing, as any other row that is not there.
            keys.ids.push(receipt.id.as_uuid().unwrap_or_default());
        }
        keys
    }
}

fn attempts(attempts: u32) -> i32 {
    i32::try_from(attempts).unwrap_or(i32::MAX)
}

fn micros(delay: Duration) -> i64 {
    i64::try_from(delay.as_micros()).unwrap_or(LONGEST_DELAY).min(LONGEST_DELAY)
}
