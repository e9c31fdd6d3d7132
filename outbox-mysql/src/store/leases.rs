//! Who owns which lane.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::{LaneId, Leases, OwnedLane, StoreError, StoreErrorKind, Worker};
use sqlx::mysql::MySqlRow;

use super::{MySqlStore, filter_columns, filter_of};
use crate::database::query;
use crate::error::is_foreign_key_violation;
use crate::row;

/// How long a worker that has joined counts as live until its first heartbeat.
pub(super) const JOIN_LEASE: Duration = Duration::from_secs(10);

impl MySqlStore {
    /// Enters the worker, unless its types overlap with those of another live pipeline.
    pub(super) async fn enrol(&self, worker: &Worker, lease: Duration) -> Result<(), StoreError> {
        let (statements, lanes) = (Arc::clone(&self.statements), self.config.lanes);
        let (id, name, pipeline) =
            (worker.id.to_string(), worker.name.clone(), worker.pipeline.clone());
        let overlap = self
            .leases
            .transaction("join", move |connection| {
                let statements = Arc::clone(&statements);
                let (id, name, pipeline) = (id.clone(), name.clone(), pipeline.clone());
                Box::pin(async move {
                    let own = pipeline.name().to_owned();
                    query(&statements.lock_joins).fetch_one(&mut *connection).await?;
                    let others = query(&statements.live_pipelines)
                        .bind(own.clone())
                        .fetch_all(&mut *connection)
                        .await?;
                    for other in &others {
                        let text =
                            |column| row::lossy(other, column).map(Option::unwrap_or_default);
                        if filter_of(&text(1)?, &text(2)?).overlaps(pipeline.types()) {
                            return Ok(Some(text(0)?));
                        }
                    }
                    let mut create = query(&statements.create_lanes);
                    for _ in 0..lanes {
                        create = create.bind(own.clone());
                    }
                    create.execute(&mut *connection).await?;
                    let (rule, types) = filter_columns(pipeline.types());
                    query(&statements.enrol)
                        .bind(id)
                        .bind(own)
                        .bind(name)
                        .bind(rule)
                        .bind(types)
                        .bind(micros(lease))
                        .bind(micros(lease))
                        .execute(&mut *connection)
                        .await?;
                    Ok(None)
                })
            })
            .await?;
        match overlap {
            None => Ok(()),
            Some(other) => {
                Err(StoreError::overlapping(worker.pipeline.name(), &other, self.database.table()))
            }
        }
    }

    pub(super) async fn beat(
        &self,
        worker: &Worker,
        lease: Duration,
    ) -> Result<Leases, StoreError> {
        let (beat, id) = (Arc::clone(&self.statements.beat), worker.id.to_string());
        let extended = self
            .leases
            .run("extend the lease on", move |connection| {
                let beat = query(&beat).bind(micros(lease)).bind(id.clone());
                Box::pin(async move { Ok(beat.execute(connection).await?.rows_affected()) })
            })
            .await?;
        if extended == 0 {
            // Run out, buried, or never entered: its types may overlap with somebody's by now.
            self.enrol(worker, lease).await?;
        }
        let statements = Arc::clone(&self.statements);
        let (id, pipeline) = (worker.id.to_string(), worker.pipeline.name().to_owned());
        self.leases
            .run("read the leases of", move |connection| {
                let statements = Arc::clone(&statements);
                let (id, pipeline) = (id.clone(), pipeline.clone());
                Box::pin(async move {
                    let owned = query(&statements.owned)
                        .bind(pipeline.clone())
                        .bind(id.clone())
                        .fetch_all(&mut *connection)
                        .await?;
                    let roster =
                        query(&statements.roster).bind(pipeline).fetch_all(connection).await?;
                    leases_of(&owned, &roster, &id)
                })
            })
            .await
    }

    /// Frees the lanes of workers whose lease has run out. Nearly always there are none.
    pub(super) async fn bury(&self, worker: &Worker) -> Result<(), StoreError> {
        let statements = Arc::clone(&self.statements);
        let (id, pipeline) = (worker.id.to_string(), worker.pipeline.name().to_owned());
        self.leases
            .transaction("bury expired workers of", move |connection| {
                let statements = Arc::clone(&statements);
                let (id, pipeline) = (id.clone(), pipeline.clone());
                Box::pin(async move {
                    let expired = query(&statements.expired)
                        .bind(pipeline.clone())
                        .bind(id)
                        .fetch_all(&mut *connection)
                        .await?;
                    for worker in &expired {
                        let worker = row::lossy(worker, 0)?.unwrap_or_default();
                        query(&statements.loosen)
                            .bind(pipeline.clone())
                            .bind(worker.clone())
                            .execute(&mut *connection)
                            .await?;
                        query(&statements.strike_off)
                            .bind(worker)
                            .execute(&mut *connection)
                            .await?;
                    }
                    Ok(())
                })
            })
            .await
    }

    pub(super) async fn take(&self, worker: &Worker, count: u16) -> Result<(), StoreError> {
        let statements = Arc::clone(&self.statements);
        let (id, pipeline) = (worker.id.to_string(), worker.pipeline.name().to_owned());
        let taken = self
            .leases
            .transaction("take lanes of", move |connection| {
                let statements = Arc::clone(&statements);
                let (id, pipeline) = (id.clone(), pipeline.clone());
                Box::pin(async move {
                    let free = query(&statements.free)
                        .bind(pipeline.clone())
                        .bind(i64::from(count))
                        .fetch_all(&mut *connection)
                        .await?;
                    for lane in &free {
                        let take = query(&statements.take)
                            .bind(id.clone())
                            .bind(pipeline.clone())
                            .bind(row::int(lane, 0)?.unwrap_or_default());
                        match take.execute(&mut *connection).await {
                            Err(error) if is_foreign_key_violation(&error) => return Ok(false),
                            taken => taken?,
                        };
                    }
                    Ok(true)
                })
            })
            .await?;
        if taken {
            return Ok(());
        }
        Err(StoreError::new(
            StoreErrorKind::Stale,
            format!(
                "worker {} ({}) on {} has been buried: its lease had run out",
                worker.id,
                worker.name,
                self.database.table()
            ),
        ))
    }

    pub(super) async fn give_back(
        &self,
        worker: &Worker,
        lanes: &[LaneId],
    ) -> Result<(), StoreError> {
        let release = Arc::clone(&self.statements.release);
        let (id, pipeline) = (worker.id.to_string(), worker.pipeline.name().to_owned());
        let mut lanes = lanes.to_vec();
        lanes.sort_unstable();
        self.leases
            .transaction("release lanes of", move |connection| {
                let release = Arc::clone(&release);
                let (id, pipeline, lanes) = (id.clone(), pipeline.clone(), lanes.clone());
                Box::pin(async move {
                    for lane in lanes {
                        query(&release)
                            .bind(pipeline.clone())
                            .bind(lane)
                            .bind(id.clone())
                            .execute(&mut *connection)
                            .await?;
                    }
                    Ok(())
                })
            })
            .await
    }
}

fn leases_of(owned: &[MySqlRow], roster: &[MySqlRow], me: &str) -> Result<Leases, sqlx::Error> {
    let mut lanes = Vec::with_capacity(owned.len());
    for lane in owned {
        let number = |column| Ok::<_, sqlx::Error>(row::int(lane, column)?.unwrap_or_default());
        lanes.push(OwnedLane::new(
            u16::try_from(number(0)?).unwrap_or_default(),
            number(1)?,
            u16::try_from(number(2)?).unwrap_or(u16::MAX),
        ));
    }
    let mut rank = 0;
    for worker in roster {
        if row::bytes(worker, 0)? == Some(me.as_bytes()) {
            break;
        }
        rank += 1;
    }
    let workers = u16::try_from(roster.len()).unwrap_or(u16::MAX);
    Ok(Leases::new(lanes, workers, rank))
}

/// A lease in microseconds; a day is the longest that counts as live.
fn micros(lease: Duration) -> i64 {
    const LONGEST: i64 = 23 * 60 * 60 * 1_000_000;
    i64::try_from(lease.as_micros()).unwrap_or(LONGEST).min(LONGEST)
}
