//! Numbers for the events of each aggregate, drawn in the application's transaction.

use outbox_core::{NewEvent, Numbers, StoreError};
use sqlx::{AssertSqlSafe, MySql, Transaction};

use crate::config::Names;
use crate::error::store_error;
use crate::sql;

/// Aggregates of one statement at most.
const AGGREGATES: usize = 200;

/// The headers of `events`, with their numbers. Each aggregate stays locked until the transaction ends.
pub(super) async fn headers(
    transaction: &mut Transaction<'_, MySql>,
    names: &Names,
    events: &[NewEvent],
) -> Result<Vec<Option<String>>, StoreError> {
    let numbers = Numbers::of(events);
    let wanted: Vec<_> = numbers.wanted().collect();
    let failed = |error| store_error("draw numbers from", &names.sequences, error);
    let mut drawn: Vec<(Vec<u8>, Vec<u8>, i64)> = Vec::with_capacity(wanted.len());
    for some in wanted.chunks(AGGREGATES) {
        // Other lengths would drive the application's own statements out of its cache.
        let is_usual = some.len() == 1;
        let draw = sqlx::query(AssertSqlSafe(sql::draw_numbers(names, some.len())));
        let draw = some.iter().fold(draw.persistent(is_usual), |query, (kind, id, count)| {
            query.bind(kind.as_bytes()).bind(id.as_bytes()).bind(count.cast_signed())
        });
        draw.execute(&mut **transaction).await.map_err(failed)?;
        let read = sqlx::query_as(AssertSqlSafe(sql::drawn_numbers(names, some.len())));
        let read = some.iter().fold(read.persistent(is_usual), |query, (kind, id, _)| {
            query.bind(kind.as_bytes()).bind(id.as_bytes())
        });
        drawn.extend(read.fetch_all(&mut **transaction).await.map_err(failed)?);
    }
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let drawn = drawn.into_iter();
    let drawn = drawn.map(|(kind, id, last)| (text(kind), text(id), last.cast_unsigned()));
    numbers.headers(&names.sequences, drawn)
}
