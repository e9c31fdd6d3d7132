//! How the tables of a file differ from those that this crate creates.

use std::fmt;

use outbox_core::StoreError;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Row};

use super::{Column, Schema, VERSION, columns, is, is_finish_marker, pragma};
use crate::sql::safe;

/// The tables beside the outbox, by what follows its name.
const TABLES: [&str; 7] = ["", "_lanes", "_workers", "_dead", "_archive", "_inbox", "_meta"];

/// Indexes that serve operators only, by what follows the table's name.
const FOR_OPERATORS: [&str; 4] = ["_dead_id", "_archive_id", "_archive_settled", "_inbox_seen"];

/// One thing in the file that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drift {
    /// Whether a promise depends on it: then no relay starts. Otherwise it costs time, and is for whoever runs the check.
    pub hazard: bool,
    /// What: `column "last_error" of table "outbox"`, say.
    pub what: String,
    /// How it is.
    pub found: String,
    /// How it should be, and where the way out is not obvious, the way out.
    pub expected: String,
}

impl Drift {
    fn new(what: impl Into<String>, found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { hazard: true, what: what.into(), found: found.into(), expected: expected.into() }
    }
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, expected {}", self.what, self.found, self.expected)
    }
}

impl Schema {
    /// Every difference. What is expected is what a database in memory has after the same statements.
    pub(super) async fn drift(
        &self,
        connection: &mut SqliteConnection,
    ) -> Result<Vec<Drift>, StoreError> {
        let mut drift = Vec::new();
        let mut expected = SqliteConnectOptions::new()
            .in_memory(true)
            .connect()
            .await
            .map_err(self.failed("open a database in memory beside"))?;
        sqlx::raw_sql(safe(self.sql()))
            .execute(&mut expected)
            .await
            .map_err(self.failed("build in memory"))?;
        for suffix in TABLES {
            let table = format!("{}{suffix}", self.config.table);
            let actual = columns(connection, &table).await.map_err(self.failed("describe"))?;
            let wanted = columns(&mut expected, &table).await.map_err(self.failed("describe"))?;
            if actual.is_empty() {
                let what = format!("table {table:?}");
                drift.push(Drift::new(what, "missing", "to exist: run `migrate`"));
                continue;
            }
            compare(&table, &actual, &wanted, &mut drift);
            let actual = indexes(connection, &table).await.map_err(self.failed("describe"))?;
            let wanted = indexes(&mut expected, &table).await.map_err(self.failed("describe"))?;
            for (name, sql) in wanted {
                let found = actual.iter().find(|(other, _)| *other == name);
                let found = found.map_or("missing", |(_, other)| other);
                if found != sql {
                    let suffix = name.strip_prefix(self.config.table.as_str());
                    let hazard = !suffix.is_some_and(|suffix| FOR_OPERATORS.contains(&suffix));
                    let difference = Drift::new(format!("index {name:?}"), found, sql);
                    drift.push(Drift { hazard, ..difference });
                }
            }
        }
        if drift.iter().all(|difference| !difference.hazard) {
            self.compare_settings(connection, &mut drift).await?;
        }
        Ok(drift)
    }

    async fn compare_settings(
        &self,
        connection: &mut SqliteConnection,
        drift: &mut Vec<Drift>,
    ) -> Result<(), StoreError> {
        let table = &self.config.table;
        let version = self.meta(connection, "version").await?;
        if version.as_deref() != Some(VERSION) {
            let version = version.as_deref().unwrap_or("none");
            drift.push(Drift::new("the version of the tables", version, VERSION));
        }
        let lanes = self.meta(connection, "lanes").await?.unwrap_or_default();
        if lanes != self.config.lanes.to_string() {
            let expected = format!("{lanes}: the table's number of lanes is fixed at creation");
            drift.push(Drift::new("the setting lanes", self.config.lanes.to_string(), expected));
            return Ok(());
        }
        let sql: String =
            sqlx::query_scalar("select sql from sqlite_schema where type = 'table' and name = ?1")
                .bind(table.clone())
                .fetch_one(&mut *connection)
                .await
                .map_err(self.failed("describe"))?;
        let sql = plain(&sql);
        if !sql.contains("autoincrement") {
            let what = format!("column \"position\" of table {table:?}");
            drift.push(Drift::new(what, "not autoincrement", "autoincrement: it could repeat"));
        }
        if !sql.contains(&plain(&self.sql.lane_expression())) {
            let what = format!("column \"lane\" of table {table:?}");
            let expected = format!("to be generated by {}", self.sql.lane_expression());
            drift.push(Drift::new(what, "generated by another expression", expected));
        }
        let encoding = pragma(connection, "pragma encoding").await.map_err(self.failed("read"))?;
        if encoding != "UTF-8" {
            let expected = "UTF-8: only it gives bytes back untouched";
            drift.push(Drift::new("the file's text encoding", encoding, expected));
        }
        let journal =
            pragma(connection, "pragma journal_mode").await.map_err(self.failed("read"))?;
        if !is(self.config.journal, &journal) {
            let expected =
                format!("{:?}: run `migrate`, or change the setting journal", self.config.journal);
            drift.push(Drift::new("the file's journal", format!("{journal:?}"), expected));
        }
        Ok(())
    }

    async fn meta(
        &self,
        connection: &mut SqliteConnection,
        key: &'static str,
    ) -> Result<Option<String>, StoreError> {
        sqlx::query_scalar(self.sql.meta.clone())
            .bind(key)
            .fetch_optional(connection)
            .await
            .map_err(self.failed("read the meta table of"))
    }
}

fn compare(table: &str, actual: &[Column], wanted: &[Column], drift: &mut Vec<Drift>) {
    let what = |column: &Column| format!("column {:?} of table {table:?}", column.name);
    let shape = |column: &Column| format!("{:?}", column.shape);
    for column in wanted {
        match actual.iter().find(|other| other.name == column.name) {
            None => drift.push(Drift::new(what(column), "missing", shape(column))),
            Some(other) if other != column => {
                drift.push(Drift::new(what(column), shape(other), shape(column)));
            }
            Some(_) => {}
        }
    }
    for column in
        actual.iter().filter(|column| wanted.iter().all(|other| other.name != column.name))
    {
        if is_finish_marker(&column.name) {
            let expected = "no such column: a row is pending for as long as it is there";
            drift.push(Drift::new(what(column), "a finish marker", expected));
        } else if !column.is_optional() {
            let expected = "nullable or with a default: an insert of the five columns must work";
            drift.push(Drift::new(what(column), shape(column), expected));
        }
    }
}

impl Column {
    /// Whether an insert may leave the column out.
    fn is_optional(&self) -> bool {
        let (_, not_null, default, ..) = &self.shape;
        !not_null || default.is_some()
    }
}

fn plain(sql: &str) -> String {
    sql.split_whitespace().collect::<Vec<_>>().join(" ").to_ascii_lowercase()
}

async fn indexes(
    connection: &mut SqliteConnection,
    table: &str,
) -> Result<Vec<(String, String)>, sqlx::Error> {
    let rows = sqlx::query(
        "select name, sql from sqlite_schema where type = 'index' and tbl_name = ?1 and sql is not null",
    )
    .bind(table.to_owned())
    .fetch_all(connection)
    .await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, plain(row.try_get(1)?)))).collect()
}
