//! The tables: printed, created, compared, adopted.

use outbox_core::{Drift, StoreError, is_finish_marker};
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, MySqlConnection, Row as _};

use crate::config::MySqlConfig;
use crate::database::{Database, query_once};
use crate::drift;
use crate::row;
use crate::sql::ddl;

/// The tables of one outbox.
#[derive(Debug)]
pub struct Schema {
    config: MySqlConfig,
    database: Database,
}

impl Schema {
    /// The tables that `config` names. Call it within a Tokio runtime.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when a setting is out of range.
    pub fn new(config: &MySqlConfig) -> Result<Self, StoreError> {
        config.validate()?;
        let patient = config.clone().with_statement_timeout(config.migrate_timeout);
        Ok(Self { database: Database::new(&patient, 1), config: config.clone() })
    }

    pub(crate) fn on(config: MySqlConfig, database: Database) -> Self {
        Self { config, database }
    }

    /// Everything that [`migrate`](Self::migrate) does, as SQL to read, to review or to run by other means: for both servers,
    /// which each read the comments that are meant for them. Safe to repeat.
    #[must_use]
    pub fn sql(&self) -> String {
        let mut sql = ddl::create(&self.config).join(";\n\n");
        sql.push_str(";\n");
        sql
    }

    /// Creates what is missing. Any number of processes may do so at once; repeating it changes nothing, and goes on where an
    /// interrupted one stopped.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when a table of that name was there before and cannot be taken over as it is, or when the
    /// database is a copy of another one: the message says which way out fits. Nothing has changed then.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        self.create(false).await
    }

    /// Accepts this database as the outbox's own, with the rows that are in the table: after a restore, a copy, a change of
    /// the server, or when a table with rows in it is taken over. **Every row in it will be published.**
    ///
    /// # Errors
    ///
    /// `Misconfigured` when the table has other columns than an outbox.
    pub async fn adopt(&self) -> Result<(), StoreError> {
        self.create(true).await
    }

    /// Compares the tables with what they should be, column by column; nothing is changed. Empty is well; a relay does
    /// not start on a [`hazard`](Drift::hazard), the rest is advice.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when the database is a copy of another one, or a replica; `Unavailable` when it does not answer.
    pub async fn check(&self) -> Result<Vec<Drift>, StoreError> {
        let config = self.config.clone();
        let (refusal, drift) = self
            .database
            .run("check", move |connection| {
                let config = config.clone();
                Box::pin(async move {
                    let survey = one(connection, ddl::survey(&config)).await?;
                    let mut drift = drift::find(connection, &config).await?;
                    if row::int(&survey, 1)? == Some(1) {
                        return Ok((identity(connection, &config).await?, drift));
                    }
                    drift.push(Drift::missing(&config.names().meta));
                    Ok((None, drift))
                })
            })
            .await?;
        refusal.map_or(Ok(drift), |refusal| Err(self.refused(&refusal)))
    }

    async fn create(&self, adopt: bool) -> Result<(), StoreError> {
        let config = self.config.clone();
        let refusal = self
            .database
            .run("migrate", move |connection| {
                let config = config.clone();
                Box::pin(async move {
                    lock(connection, &config).await?;
                    let created = create(connection, &config, adopt).await;
                    // The lock belongs to the session, which goes on.
                    query_once(ddl::unlock(&config)).execute(connection).await?;
                    created
                })
            })
            .await?;
        refusal.map_or(Ok(()), |refusal| Err(self.refused(&refusal)))
    }

    /// Refuses a database in which a promise would be broken, and returns the number of lanes.
    pub(crate) async fn require(&self) -> Result<u16, StoreError> {
        match Drift::hazards(&self.check().await?) {
            None => Ok(self.config.lanes),
            Some(hazards) => Err(self.refused(&hazards)),
        }
    }

    fn refused(&self, reason: &str) -> StoreError {
        StoreError::misconfigured(format!("{} is refused: {reason}", self.database.table()))
    }
}

async fn lock(connection: &mut MySqlConnection, config: &MySqlConfig) -> Result<(), sqlx::Error> {
    let seconds = i64::try_from(config.migrate_timeout.as_secs()).unwrap_or(i64::MAX).max(1);
    let locked = query_once(ddl::lock(config)).bind(seconds).fetch_one(connection).await?;
    if row::int(&locked, 0)? == Some(1) {
        return Ok(());
    }
    Err(sqlx::Error::Io(std::io::Error::new(
        std::io::ErrorKind::TimedOut,
        "another migration did not end within the migrate timeout",
    )))
}

async fn create(
    connection: &mut MySqlConnection,
    config: &MySqlConfig,
    adopt: bool,
) -> Result<Option<String>, sqlx::Error> {
    if let Some(refusal) = survey(connection, config, adopt).await? {
        return Ok(Some(refusal));
    }
    for statement in ddl::create(config) {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *connection).await?;
    }
    if adopt {
        sqlx::raw_sql(AssertSqlSafe(ddl::adopt(config))).execute(connection).await?;
    }
    Ok(None)
}

async fn one(connection: &mut MySqlConnection, sql: String) -> Result<MySqlRow, sqlx::Error> {
    query_once(sql).fetch_one(connection).await
}

/// Why the tables that are there cannot be taken over; `None` when they can, or when there are none.
async fn survey(
    connection: &mut MySqlConnection,
    config: &MySqlConfig,
    adopt: bool,
) -> Result<Option<String>, sqlx::Error> {
    let found = one(connection, ddl::survey(config)).await?;
    if row::int(&found, 0)? == Some(1) {
        return Ok(Some("the server is read-only: connect to the primary".to_owned()));
    }
    let Some(columns) = row::lossy(&found, 2)? else { return Ok(None) };
    let columns: Vec<&str> = columns.lines().collect();
    if let Some(marker) = columns.iter().find(|column| is_finish_marker(column)) {
        return Ok(Some(format!(
            "its column {marker} marks rows as done, and a row of an outbox is pending for as long as it is there; \
             choose another name with the setting table, or delete the finished rows and drop the column"
        )));
    }
    if let Some(missing) = ddl::NEEDED.iter().find(|needed| !columns.contains(*needed)) {
        return Ok(Some(format!(
            "it has no column {missing}, so it was not made by this schema; choose another name with the setting table, \
             or rename it and insert its pending rows into the new one"
        )));
    }
    if adopt {
        return Ok(None);
    }
    if row::int(&found, 1)? == Some(1) {
        return identity(connection, config).await;
    }
    let rows = one(connection, ddl::has_rows(config)).await?;
    Ok((row::int(&rows, 0)? == Some(1)).then(|| {
        "it has rows from before, which would all be published; delete those that were published already, then run \
         adopt (Schema::adopt) to accept the rest"
            .to_owned()
    }))
}

/// Why this database is not the one to which the outbox belongs; `None` when it is.
async fn identity(
    connection: &mut MySqlConnection,
    config: &MySqlConfig,
) -> Result<Option<String>, sqlx::Error> {
    let found = one(connection, ddl::identity(config)).await?;
    let text = |column: &str| {
        let index = found.columns().iter().position(|it| sqlx::Column::name(it) == column);
        row::lossy(&found, index.expect("the statement names its columns"))
    };
    // A migration that was interrupted before it wrote anything here goes on.
    let Some(version) = text("schema_version")? else { return Ok(None) };
    if version != ddl::VERSION {
        return Ok(Some(format!(
            "its tables have version {version}, this program needs {}",
            ddl::VERSION
        )));
    }
    let lanes = text("lanes")?.unwrap_or_default();
    if lanes != config.lanes.to_string() {
        return Ok(Some(format!(
            "it was created with {lanes} lanes, the setting lanes says {}: set lanes to {lanes}",
            config.lanes
        )));
    }
    for (what, column, checked) in
        [("the server", "server", config.pin_server), ("the database", "database", true)]
    {
        let then = text(&format!("{column}_then"))?.unwrap_or_default();
        let now = text(&format!("{column}_now"))?.unwrap_or_default();
        if checked && then != now {
            return Ok(Some(format!(
                "it belongs to another database, of which this is a copy or a restore: {what} was {then:?} and is \
                 {now:?}; its pending rows may have been published already. If this copy is to publish them, run adopt \
                 (Schema::adopt)"
            )));
        }
    }
    Ok(None)
}
