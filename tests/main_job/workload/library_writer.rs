//! A service in Rust: business change and append in one sqlx transaction.

use std::ops::Range;
use std::time::Duration;

use outbox::postgres::PostgresOutbox;
use outbox::{NewEvent, async_trait};
use sqlx::postgres::PgPool;
use sqlx::{Postgres, Transaction};

use super::ROLLED_BACK;
use crate::support::checker::Intent;
use crate::support::event_maker::{EventMaker, new_event};
use crate::support::workload::Writer;

/// Of all transactions: those that stay open for [`LONG_MS`] after their append.
const LONG: f64 = 0.003;
const LONG_MS: Range<u64> = 200..2500;
/// Of all transactions: those that undo a part of their work by a savepoint.
const SAVEPOINT: f64 = 0.05;
/// Of all transactions: those with more events than the relay takes into its window at once.
const HUGE: f64 = 0.0005;
const HUGE_EVENTS: i64 = 1200;

pub(crate) struct LibraryWriter {
    pool: PgPool,
    outbox: PostgresOutbox,
    maker: EventMaker,
}

impl LibraryWriter {
    pub(crate) fn new(pool: PgPool, outbox: PostgresOutbox, maker: EventMaker) -> Self {
        Self { pool, outbox, maker }
    }

    /// Changes an order, which locks it, and appends what has happened to it.
    async fn change(
        &mut self,
        transaction: &mut Transaction<'_, Postgres>,
        aggregate: &(String, String),
    ) -> Vec<Intent> {
        let count = match self.maker.random.f64() {
            luck if luck < HUGE => HUGE_EVENTS,
            luck if luck < 0.7 => 1,
            _ => self.maker.random.i64(2..6),
        };
        let last: i64 = sqlx::query_scalar(
            "update orders set version = version + $3 where type = $1 and id = $2 returning version",
        )
        .bind(&aggregate.0)
        .bind(&aggregate.1)
        .bind(count)
        .fetch_one(&mut **transaction)
        .await
        .unwrap();
        let versions = last - count + 1..=last;
        let intents: Vec<Intent> =
            versions.map(|version| self.maker.event(aggregate, version)).collect();
        let events: Vec<NewEvent> = intents.iter().map(new_event).collect();
        self.outbox.append(transaction, &events).await.unwrap();
        intents
    }
}

#[async_trait]
impl Writer for LibraryWriter {
    async fn transaction(&mut self) -> Vec<Intent> {
        let mut transaction = self.pool.begin().await.unwrap();
        let aggregates = if self.maker.chance(0.1) { 3 } else { 1 };
        let mut aggregates = self.maker.aggregates(aggregates);
        let undone = if self.maker.chance(SAVEPOINT) { aggregates.pop() } else { None };
        let mut intents = Vec::new();
        for aggregate in aggregates {
            intents.extend(self.change(&mut transaction, &aggregate).await);
        }
        let mut rolled_back = Vec::new();
        if let Some(aggregate) = undone {
            let mut savepoint = sqlx::Connection::begin(&mut *transaction).await.unwrap();
            rolled_back = self.change(&mut savepoint, &aggregate).await;
            savepoint.rollback().await.unwrap();
        }
        if self.maker.chance(LONG) {
            let open_for = Duration::from_millis(self.maker.random.u64(LONG_MS));
            tokio::time::sleep(open_for).await;
        }
        if self.maker.chance(ROLLED_BACK) {
            transaction.rollback().await.unwrap();
        } else {
            transaction.commit().await.unwrap();
            for intent in &mut intents {
                intent.committed = true;
            }
        }
        intents.append(&mut rolled_back);
        intents
    }
}
