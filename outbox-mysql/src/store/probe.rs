//! The probe: how far the table goes, and who writes to it, where the server tells.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use outbox_core::{OpenWriter, Position, Probe, StoreError, StoreErrorKind};
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, MySqlConnection};

use super::MySqlStore;
use crate::database::query;
use crate::row;
use crate::sql::{LOST_LOCKS, Statements};

/// Whether the server tells who writes to the table.
#[derive(Debug, Default)]
pub(super) struct Source(AtomicU8);

const NOT_ASKED: u8 = 0;
const TELLS: u8 = 1;
const SILENT: u8 = 2;

impl Source {
    pub(super) fn is_known(&self) -> bool {
        self.0.load(Ordering::Relaxed) == TELLS
    }
}

impl MySqlStore {
    /// Finds out whether the server tells of writers: a lock that this session takes itself must show. So it is certain that
    /// the table of locks may be read, that the server fills it, and under which name the outbox stands in it.
    pub(super) async fn find_source(&self) -> Result<(), StoreError> {
        if self.watermark.0.load(Ordering::Relaxed) != NOT_ASKED {
            return Ok(());
        }
        let statements = Arc::clone(&self.statements);
        let told = self
            .database
            .transaction("look for the writers of", move |connection| {
                let statements = Arc::clone(&statements);
                Box::pin(async move {
                    query(&statements.lock_table).fetch_all(&mut *connection).await?;
                    let (_, own) = writers(connection, &statements).await?;
                    Ok(own)
                })
            })
            .await;
        let source = match told {
            Ok(true) => TELLS,
            Ok(false) => SILENT,
            // No right to read it, or no such table.
            Err(error) if error.kind() == StoreErrorKind::Misconfigured => SILENT,
            Err(error) => return Err(error),
        };
        self.watermark.0.store(source, Ordering::Relaxed);
        Ok(())
    }

    pub(super) async fn look(&self, after: Position) -> Result<Probe, StoreError> {
        self.find_source().await?;
        if !self.watermark.is_known() {
            return Ok(Probe::new(after, Vec::new(), ""));
        }
        let statements = Arc::clone(&self.statements);
        let (top, server, writers) = self
            .database
            .run("probe", move |connection| {
                let statements = Arc::clone(&statements);
                Box::pin(async move {
                    // First the top, then the writers: whoever drew a position below it is among them, or visible.
                    let top =
                        query(&statements.top).bind(after).bind(after).fetch_one(&mut *connection);
                    let top = top.await?;
                    let server = row::lossy(&top, 1)?.unwrap_or_default();
                    let (writers, _) = writers(connection, &statements).await?;
                    Ok((row::int(&top, 0)?.unwrap_or(after), server, writers))
                })
            })
            .await?;
        let writers = writers.into_iter().map(|name| OpenWriter::new(name, None));
        let server = format!("{server}#{}", self.database.breaks());
        Ok(Probe::new(top, writers.collect(), server))
    }
}

/// The names of open writers, and whether this session is one.
async fn writers(
    connection: &mut MySqlConnection,
    statements: &Statements,
) -> Result<(Vec<String>, bool), sqlx::Error> {
    let rows = query(&statements.writers).fetch_all(&mut *connection).await?;
    let mut names = Vec::with_capacity(rows.len());
    let mut own = false;
    for writer in &rows {
        own |= row::int(writer, 1)? == Some(1);
        names.push(row::lossy(writer, 0)?.unwrap_or_default());
    }
    let lost = sqlx::raw_sql(AssertSqlSafe(LOST_LOCKS)).fetch_optional(connection).await?;
    if lost_some(lost.as_ref())? {
        // It never ends: nothing counts as closed any more.
        names.push("a lock that the server had no room to tell of".to_owned());
        own = false;
    }
    names.sort_unstable();
    names.dedup();
    Ok((names, own))
}

fn lost_some(status: Option<&MySqlRow>) -> Result<bool, sqlx::Error> {
    let Some(status) = status else { return Ok(false) };
    Ok(row::bytes(status, 1)?.is_some_and(|count| count != b"0"))
}
