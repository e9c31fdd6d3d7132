//! Numbers for the events of each aggregate, drawn in the application's transaction.

use std::collections::BTreeMap;
use std::sync::Arc;

use outbox_core::{NewEvent, headers};
use sqlx::{AssertSqlSafe, Postgres, Transaction};

/// The headers of `events`, with their numbers. `statement` locks each aggregate until the transaction ends, so that numbers,
/// positions and commits have one order; a rollback takes the numbers back.
pub(super) async fn headers(
    transaction: &mut Transaction<'_, Postgres>,
    statement: &Arc<str>,
    persistent: bool,
    events: &[NewEvent],
) -> Result<Vec<Option<String>>, sqlx::Error> {
    let mut counts = BTreeMap::<(&str, &str), i64>::new();
    for key in events.iter().filter_map(key) {
        *counts.entry(key).or_default() += 1;
    }
    let drawn: Vec<(String, String, i64)> = if counts.is_empty() {
        Vec::new()
    } else {
        sqlx::query_as(AssertSqlSafe(Arc::clone(statement)))
            .persistent(persistent)
            .bind(counts.keys().map(|(kind, _)| *kind).collect::<Vec<_>>())
            .bind(counts.keys().map(|(_, id)| *id).collect::<Vec<_>>())
            .bind(counts.values().copied().collect::<Vec<_>>())
            .fetch_all(&mut **transaction)
            .await?
    };
    // From here on the number before the next event's.
    for (kind, id, last) in &drawn {
        if let Some(count) = counts.get_mut(&(kind.as_str(), id.as_str())) {
            *count = last - *count;
        }
    }
    let with_number = |event| {
        let Some(key) = key(event) else { return event.headers().map(str::to_owned) };
        let number = counts.get_mut(&key).expect("every key was counted");
        *number += 1;
        Some(headers::with_sequence(event.headers(), number.cast_unsigned()))
    };
    Ok(events.iter().map(with_number).collect())
}

/// The aggregate in which an event has a place: an unordered one has none, and a scheduled one comes when it is due.
fn key(event: &NewEvent) -> Option<(&str, &str)> {
    let id = event.aggregate_id().filter(|_| event.due().is_none())?;
    Some((event.aggregate_type(), id))
}
