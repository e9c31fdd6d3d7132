//! The settlement: delivered events in one fenced statement, everything else in one fenced transaction.

use std::sync::Arc;

use outbox_core::{Epoch, LaneId, Receipt, Settled, Settlements, StoreError, cut_reason};
use serde_json::{Value, json};
use sqlx::MySqlConnection;

use super::MySqlStore;
use crate::database::query;
use crate::row;
use crate::sql::Statements;
use crate::writer::{SMALLEST_PACKET, micros};

/// How long a list of one statement may be, in bytes of JSON: half of what every server takes.
const LIST_BYTES: usize = SMALLEST_PACKET / 2;

impl MySqlStore {
    pub(super) async fn write(&self, settlements: &Settlements) -> Result<Settled, StoreError> {
        let settlements = Arc::new(settlements.clone());
        let statements = Arc::clone(&self.statements);
        let keeps = Statements::keeps(&self.config);
        let simple = !keeps
            && settlements.retries.is_empty()
            && settlements.dead.is_empty()
            && settlements.recovered.is_empty();
        if simple {
            let lists = lists(delivered_with_epoch(&settlements));
            if let [list] = &lists[..] {
                let list: Arc<str> = list.as_str().into();
                return self.write_delivered(settlements, list).await;
            }
        }
        self.database
            .transaction("settle events of", move |connection| {
                let (statements, settlements) = (Arc::clone(&statements), Arc::clone(&settlements));
                Box::pin(
                    async move { write_all(connection, &statements, &settlements, keeps).await },
                )
            })
            .await
    }

    async fn write_delivered(
        &self,
        settlements: Arc<Settlements>,
        list: Arc<str>,
    ) -> Result<Settled, StoreError> {
        let statements = Arc::clone(&self.statements);
        self.database
            .run("settle events of", move |connection| {
                let (statements, settlements) = (Arc::clone(&statements), Arc::clone(&settlements));
                let list = Arc::clone(&list);
                Box::pin(async move {
                    let gone = query(&statements.settle_delivered)
                        .bind(list.to_string())
                        .bind(settlements.worker.pipeline.name().to_owned())
                        .bind(settlements.worker.id.to_string())
                        .execute(&mut *connection)
                        .await?
                        .rows_affected();
                    let named = settlements.delivered.len() as u64;
                    // Who deleted all that was named owned every lane of it.
                    let held = if gone == named && every_lane_has_an_event(&settlements) {
                        settlements.lanes.iter().map(|(lane, _)| *lane).collect()
                    } else {
                        held(connection, &statements.held, &settlements).await?
                    };
                    Ok(settled(&settlements, held, gone))
                })
            })
            .await
    }
}

/// The fence first, then the lists of the lanes that passed it.
async fn write_all(
    connection: &mut MySqlConnection,
    statements: &Statements,
    settlements: &Settlements,
    keeps: bool,
) -> Result<Settled, sqlx::Error> {
    let held = held(connection, &statements.fence, settlements).await?;
    let is_held = |receipt: &Receipt| held.binary_search(&receipt.lane).is_ok();
    let Settlements { delivered, retries, dead, recovered, worker, .. } = settlements;
    let delivered: Vec<Value> = delivered
        .iter()
        .filter(|event| is_held(&event.receipt))
        .map(|event| named(&event.receipt, [json!(*event.destination)]))
        .collect();
    let retries = retries.iter().filter(|event| is_held(&event.receipt)).map(|event| {
        let delay = json!(event.delay.map(micros));
        named(&event.receipt, [json!(event.attempts), delay, json!(cut_reason(&event.reason))])
    });
    let dead: Vec<Value> = dead
        .iter()
        .filter(|event| is_held(&event.receipt))
        .map(|event| {
            named(&event.receipt, [json!(event.attempts), json!(cut_reason(&event.reason))])
        })
        .collect();

    let mut done = 0;
    if keeps {
        execute(connection, &statements.archive, delivered.iter().cloned()).await?;
    }
    done += execute(connection, &statements.gone, delivered).await?;
    done += execute(connection, &statements.later, retries).await?;
    execute(connection, &statements.bury, dead.iter().cloned()).await?;
    done += execute(connection, &statements.gone, dead).await?;
    let recovered: Vec<&LaneId> = recovered.iter().filter(|lane| held.contains(lane)).collect();
    if !recovered.is_empty() {
        query(&statements.calm)
            .bind(json!(recovered).to_string())
            .bind(worker.pipeline.name().to_owned())
            .execute(&mut *connection)
            .await?;
    }
    Ok(settled(settlements, held, done))
}

/// Executes one statement on a list of events, in as many parts as it must have; returns the rows it touched.
async fn execute(
    connection: &mut MySqlConnection,
    sql: &Arc<str>,
    events: impl IntoIterator<Item = Value>,
) -> Result<u64, sqlx::Error> {
    let mut touched = 0;
    for list in lists(events) {
        touched += query(sql).bind(list).execute(&mut *connection).await?.rows_affected();
    }
    Ok(touched)
}

/// The lanes of the settlement that the worker owns, rising.
async fn held(
    connection: &mut MySqlConnection,
    sql: &Arc<str>,
    settlements: &Settlements,
) -> Result<Vec<LaneId>, sqlx::Error> {
    let mut lanes = settlements.lanes.clone();
    lanes.sort_unstable();
    let rows = query(sql)
        .bind(json!(lanes).to_string())
        .bind(settlements.worker.pipeline.name().to_owned())
        .bind(settlements.worker.id.to_string())
        .fetch_all(connection)
        .await?;
    let mut held = Vec::with_capacity(rows.len());
    for row in &rows {
        let lane = row::int(row, 0)?.unwrap_or_default();
        held.push(LaneId::try_from(lane).unwrap_or_default());
    }
    held.sort_unstable();
    held.dedup();
    Ok(held)
}

fn settled(settlements: &Settlements, held: Vec<LaneId>, done: u64) -> Settled {
    let named = receipts(settlements).filter(|receipt| held.contains(&receipt.lane)).count();
    Settled::new(held, (named as u64).saturating_sub(done))
}

fn receipts(settlements: &Settlements) -> impl Iterator<Item = &Receipt> {
    let Settlements { delivered, retries, dead, .. } = settlements;
    (delivered.iter().map(|delivered| &delivered.receipt))
        .chain(retries.iter().map(|retry| &retry.receipt))
        .chain(dead.iter().map(|dead| &dead.receipt))
}

fn every_lane_has_an_event(settlements: &Settlements) -> bool {
    let has = |lane| receipts(settlements).any(|receipt| receipt.lane == lane);
    settlements.lanes.iter().all(|(lane, _)| has(*lane))
}

/// Sorted by lane, so that lanes are locked in the order in which everybody locks them.
fn delivered_with_epoch(settlements: &Settlements) -> Vec<Value> {
    let epoch = |lane: LaneId| -> Option<Epoch> {
        settlements.lanes.iter().find(|(named, _)| *named == lane).map(|(_, epoch)| *epoch)
    };
    let mut receipts: Vec<&Receipt> =
        settlements.delivered.iter().map(|event| &event.receipt).collect();
    receipts.sort_unstable_by_key(|receipt| (receipt.lane, receipt.position));
    receipts.iter().map(|receipt| named(receipt, [json!(epoch(receipt.lane))])).collect()
}

fn named<const N: usize>(receipt: &Receipt, rest: [Value; N]) -> Value {
    let mut list =
        vec![json!(receipt.position), json!(receipt.lane), json!(receipt.id.to_string())];
    list.extend(rest);
    Value::Array(list)
}

/// The events as JSON arrays that are short enough for a packet.
fn lists(events: impl IntoIterator<Item = Value>) -> Vec<String> {
    let mut lists: Vec<String> = Vec::new();
    for event in events {
        let event = event.to_string();
        match lists.last_mut() {
            Some(list) if list.len() + event.len() < LIST_BYTES => {
                list.push(',');
                list.push_str(&event);
            }
            _ => lists.push(format!("[{event}")),
        }
    }
    for list in &mut lists {
        list.push(']');
    }
    lists
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_is_split_into_lists_that_fit_a_packet() {
        let events = || (0..1_000).map(|n| json!([n, "x".repeat(2_000)]));
        let lists = lists(events());
        assert!(lists.len() > 3 && lists.iter().all(|list| list.len() <= LIST_BYTES + 1));
        let parsed =
            lists.iter().flat_map(|list| serde_json::from_str::<Vec<Value>>(list).unwrap());
        assert!(parsed.eq(events()));
    }
}
