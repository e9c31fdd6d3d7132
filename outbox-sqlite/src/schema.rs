//! The tables: creating them, and finding out whether they are as they should be.

mod drift;

use std::time::{Duration, Instant};

use outbox_core::{Drift, StoreError, is_finish_marker};
use sqlx::sqlite::SqliteConnection;
use sqlx::{ConnectOptions, Connection, Row};

use crate::config::{Journal, SqliteConfig};
use crate::error::failed;
use crate::sql::{BEGIN, Sql, safe};

/// The version of the tables that this crate creates and reads.
const VERSION: &str = "1";

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
        self.refuse(&self.drift(&mut transaction).await?)?;
        transaction.commit().await.map_err(self.failed("create"))?;
        connection.close().await.map_err(self.failed("close"))
    }

    /// Compares the tables with what they should be, column by column; nothing is changed. Empty is well; a relay does
    /// not start on a [`hazard`](Drift::hazard), the rest is advice.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when there is no such file; `Unavailable` when it cannot be read.
    pub async fn check(&self) -> Result<Vec<Drift>, StoreError> {
        let mut connection =
            self.config.connect_options().connect().await.map_err(self.failed("open"))?;
        let drift = self.drift(&mut connection).await?;
        connection.close().await.map_err(self.failed("close"))?;
        Ok(drift)
    }

    /// Refuses tables with which a promise would be broken.
    pub(crate) async fn require(&self) -> Result<(), StoreError> {
        self.refuse(&self.check().await?)
    }

    fn refuse(&self, drift: &[Drift]) -> Result<(), StoreError> {
        match Drift::hazards(drift) {
            None => Ok(()),
            Some(hazards) => Err(StoreError::misconfigured(format!(
                "{} is refused: {hazards}",
                self.config.place()
            ))),
        }
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

fn is(wanted: Journal, journal: &str) -> bool {
    (wanted == Journal::Wal) == (journal == "wal")
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

async fn pragma(
    connection: &mut SqliteConnection,
    sql: &'static str,
) -> Result<String, sqlx::Error> {
    sqlx::query_scalar(sql).fetch_one(connection).await
}
