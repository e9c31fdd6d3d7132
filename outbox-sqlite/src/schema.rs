//! The tables: creating them, and finding out whether they are as they should be.

use std::time::{Duration, Instant};

use outbox_core::StoreError;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection, Row};

use crate::config::{Journal, SqliteConfig};
use crate::error::failed;
use crate::sql::{BEGIN, Sql, safe};

/// The version of the tables that this crate creates and reads.
const VERSION: &str = "1";

/// The tables beside the outbox, by what follows its name.
const TABLES: [&str; 7] = ["", "_lanes", "_workers", "_dead", "_archive", "_inbox", "_meta"];

/// Columns by which other outboxes mark a row as finished. Here a row in the table is pending, whatever they say.
const FINISH_MARKERS: [&str; 10] = [
    "processed",
    "processed_at",
    "published",
    "published_at",
    "delivered_at",
    "dispatched_at",
    "sent",
    "sent_at",
    "completed_at",
    "status",
];

/// How long to wait between two tries to change the file's journal.
const JOURNAL_RETRY: Duration = Duration::from_millis(10);

/// The tables of an outbox in one database file.
///
/// A random identity is written when they are created. A *copied* file carries it along, with all pending events: a
/// relay on the copy publishes them a second time, and nothing here can notice. Empty the outbox table of a copy
/// before a relay sees it.
#[derive(Debug)]
pub struct Schema {
    config: SqliteConfig,
    sql: Sql,
}

impl Schema {
    /// The tables that `config` names.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when a setting is out of range.
    pub fn new(config: &SqliteConfig) -> Result<Self, StoreError> {
        Ok(Self { config: config.clone(), sql: Sql::new(config)? })
    }

    /// The statements that create the tables, to be reviewed or run by hand; they can be repeated. What
    /// [`migrate`](Self::migrate) does besides: it sets the journal, refuses a foreign table, and writes the version,
    /// the lane count and the identity into `<table>_meta`.
    #[must_use]
    pub fn sql(&self) -> String {
        self.sql.schema()
    }

    /// Creates the file and the tables where they are missing, and checks them. Several processes may do it at once.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when there is a table of that name that is not ours, or one that differs; `Unavailable` when
    /// another process keeps the file locked.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        let options = self.config.connect_options().create_if_missing(true);
        let mut connection = options.connect().await.map_err(self.failed("open"))?;
        self.set_journal(&mut connection).await?;
        let mut transaction = connection.begin_with(BEGIN).await.map_err(self.failed("lock"))?;
        self.refuse_foreign_table(&mut transaction).await?;
        sqlx::raw_sql(safe(self.sql()))
            .execute(&mut *transaction)
            .await
            .map_err(self.failed("create"))?;
        let identity = uuid::Uuid::new_v4().to_string();
        let lanes = self.config.lanes.to_string();
        for (key, value) in [("version", VERSION), ("lanes", &lanes), ("identity", &identity)] {
            sqlx::query(self.sql.set_meta.clone())
                .bind(key)
                .bind(value.to_owned())
                .execute(&mut *transaction)
                .await
                .map_err(self.failed("create"))?;
        }
        self.check_on(&mut transaction).await?;
        transaction.commit().await.map_err(self.failed("create"))?;
        connection.close().await.map_err(self.failed("close"))
    }

    /// Compares the tables with what this crate expects, and names every difference.
    ///
    /// # Errors
    ///
    /// `Misconfigured` with all differences in its message; `Unavailable` when the file cannot be read.
    pub async fn check(&self) -> Result<(), StoreError> {
        let mut connection =
            self.config.connect_options().connect().await.map_err(self.failed("open"))?;
        self.check_on(&mut connection).await?;
        connection.close().await.map_err(self.failed("close"))
    }

    async fn check_on(&self, connection: &mut SqliteConnection) -> Result<(), StoreError> {
        let drift = self.drift(connection).await?;
        if drift.is_empty() {
            return Ok(());
        }
        Err(StoreError::misconfigured(format!(
            "{} is not as expected: {}",
            self.config.place(),
            drift.join("; ")
        )))
    }

    async fn drift(&self, connection: &mut SqliteConnection) -> Result<Vec<String>, StoreError> {
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
                drift.push(format!("table {table:?} is missing: run `migrate`"));
                continue;
            }
            compare(&table, &actual, &wanted, &mut drift);
            let actual = indexes(connection, &table).await.map_err(self.failed("describe"))?;
            let wanted = indexes(&mut expected, &table).await.map_err(self.failed("describe"))?;
            for (name, sql) in wanted {
                match actual.iter().find(|(other, _)| *other == name) {
                    None => drift.push(format!("index {name:?} is missing: run `migrate`")),
                    Some((_, other)) if *other != sql => {
                        drift.push(format!("index {name:?} is {other:?} instead of {sql:?}"));
                    }
                    Some(_) => {}
                }
            }
        }
        if drift.is_empty() {
            self.compare_settings(connection, &mut drift).await?;
        }
        Ok(drift)
    }

    async fn compare_settings(
        &self,
        connection: &mut SqliteConnection,
        drift: &mut Vec<String>,
    ) -> Result<(), StoreError> {
        let table = &self.config.table;
        let version = self.meta(connection, "version").await?;
        if version.as_deref() != Some(VERSION) {
            let version = version.as_deref().unwrap_or("none");
            drift.push(format!(
                "the tables have version {version}, this program reads version {VERSION}"
            ));
        }
        let lanes = self.meta(connection, "lanes").await?.unwrap_or_default();
        if lanes != self.config.lanes.to_string() {
            drift.push(format!(
                "the table has {lanes} lanes and the setting `lanes` says {}: their number is fixed at creation",
                self.config.lanes
            ));
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
            drift.push(format!(
                "column \"position\" of table {table:?} is not autoincrement: it could repeat"
            ));
        }
        if !sql.contains(&plain(&self.sql.lane_expression())) {
            drift.push(format!(
                "column \"lane\" of table {table:?} is generated by another expression"
            ));
        }
        let encoding = pragma(connection, "pragma encoding").await.map_err(self.failed("read"))?;
        if encoding != "UTF-8" {
            drift.push(format!(
                "the file's text encoding is {encoding}, only UTF-8 gives bytes back untouched"
            ));
        }
        let journal =
            pragma(connection, "pragma journal_mode").await.map_err(self.failed("read"))?;
        if !is(self.config.journal, &journal) {
            drift.push(format!(
                "the file's journal is {journal:?} and the setting `journal` says {:?}: run `migrate`, or change the \
                 setting",
                self.config.journal
            ));
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

    /// Changing the journal needs the file for itself, and SQLite does not wait for that.
    async fn set_journal(&self, connection: &mut SqliteConnection) -> Result<(), StoreError> {
        let change = match self.config.journal {
            Journal::Wal => "pragma journal_mode = wal",
            Journal::Rollback => "pragma journal_mode = delete",
        };
        let deadline = Instant::now() + self.config.busy_timeout;
        loop {
            let journal = match pragma(connection, "pragma journal_mode").await {
                Ok(journal) if is(self.config.journal, &journal) => return Ok(()),
                Ok(_) => pragma(connection, change).await,
                Err(error) => Err(error),
            };
            match journal {
                Ok(journal) if is(self.config.journal, &journal) => return Ok(()),
                Err(error) if Instant::now() >= deadline => {
                    return Err(self.failed("change the journal of")(error));
                }
                Ok(journal) if Instant::now() >= deadline => {
                    return Err(StoreError::unavailable(format!(
                        "the journal of {} stays {journal:?}: another process has the file open, or its disk cannot \
                         do it",
                        self.config.place()
                    )));
                }
                _ => tokio::time::sleep(JOURNAL_RETRY).await,
            }
        }
    }

    async fn refuse_foreign_table(
        &self,
        connection: &mut SqliteConnection,
    ) -> Result<(), StoreError> {
        let table = &self.config.table;
        let existing = columns(connection, table).await.map_err(self.failed("describe"))?;
        let ours =
            columns(connection, &format!("{table}_meta")).await.map_err(self.failed("describe"))?;
        if existing.is_empty() || !ours.is_empty() {
            return Ok(());
        }
        let rows: i64 = sqlx::query_scalar(safe(format!("select count(*) from \"{table}\"")))
            .fetch_one(connection)
            .await
            .map_err(self.failed("count the rows of"))?;
        let marker = existing.iter().find(|column| is_finish_marker(&column.name));
        let danger = match marker {
            Some(column) => format!(
                "its column {:?} marks finished rows, which here would all be published again",
                column.name
            ),
            None => format!("it holds {rows} rows from before"),
        };
        Err(StoreError::misconfigured(format!(
            "{} exists already and was not created by this program: {danger}. Either choose another name with the \
             setting `table`, or rename it (alter table \"{table}\" rename to \"{table}_old\"), run `migrate`, and \
             copy over the rows that are still to be published: insert into \"{table}\" (id, aggregatetype, \
             aggregateid, type, payload) select … from \"{table}_old\" where …",
            self.config.place()
        )))
    }

    fn failed(&self, what: &str) -> impl FnOnce(sqlx::Error) -> StoreError {
        failed(format!("{what} {}", self.config.place()))
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Column {
    name: String,
    /// Type, not null, default, place in the primary key, kind of generated column.
    shape: (String, bool, Option<String>, i64, i64),
}

impl Column {
    /// Whether an insert may leave the column out.
    fn is_optional(&self) -> bool {
        let (_, not_null, default, ..) = &self.shape;
        !not_null || default.is_some()
    }
}

fn compare(table: &str, actual: &[Column], wanted: &[Column], drift: &mut Vec<String>) {
    for column in wanted {
        match actual.iter().find(|other| other.name == column.name) {
            None => drift.push(format!("column {:?} of table {table:?} is missing", column.name)),
            Some(other) if other != column => drift.push(format!(
                "column {:?} of table {table:?} is {:?} instead of {:?}",
                column.name, other.shape, column.shape
            )),
            Some(_) => {}
        }
    }
    for column in
        actual.iter().filter(|column| wanted.iter().all(|other| other.name != column.name))
    {
        if is_finish_marker(&column.name) {
            drift.push(format!(
                "column {:?} of table {table:?} looks like a mark of finished rows: here every row is pending",
                column.name
            ));
        } else if !column.is_optional() {
            drift.push(format!(
                "column {:?} of table {table:?} must be nullable or have a default",
                column.name
            ));
        }
    }
}

fn is_finish_marker(column: &str) -> bool {
    FINISH_MARKERS.contains(&column.to_ascii_lowercase().as_str())
}

fn is(wanted: Journal, journal: &str) -> bool {
    (wanted == Journal::Wal) == (journal == "wal")
}

fn plain(sql: &str) -> String {
    sql.split_whitespace().collect::<Vec<_>>().join(" ").to_ascii_lowercase()
}

async fn columns(
    connection: &mut SqliteConnection,
    table: &str,
) -> Result<Vec<Column>, sqlx::Error> {
    let rows = sqlx::query(
        "select name, type, \"notnull\", dflt_value, pk, hidden from pragma_table_xinfo(?1) order by cid",
    )
    .bind(table.to_owned())
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| {
            let kind: String = row.try_get(1)?;
            let shape = (
                kind.to_ascii_lowercase(),
                row.try_get(2)?,
                row.try_get(3)?,
                row.try_get(4)?,
                row.try_get(5)?,
            );
            Ok(Column { name: row.try_get(0)?, shape })
        })
        .collect()
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

async fn pragma(
    connection: &mut SqliteConnection,
    sql: &'static str,
) -> Result<String, sqlx::Error> {
    sqlx::query_scalar(sql).fetch_one(connection).await
}
