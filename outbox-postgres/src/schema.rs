//! The tables: printed, created, compared, adopted.

use futures_util::future::BoxFuture;
use outbox_core::{Drift, StoreError, is_finish_marker};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use crate::config::PostgresConfig;
use crate::database::Database;
use crate::drift;
use crate::sql::ddl;

/// The tables of one outbox.
#[derive(Debug)]
pub struct Schema {
    config: PostgresConfig,
    database: Database,
}

impl Schema {
    /// The tables that `config` names. Call it within a Tokio runtime.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when a setting is out of range.
    pub fn new(config: &PostgresConfig) -> Result<Self, StoreError> {
        config.validate()?;
        let patient = config.clone().with_statement_timeout(config.migrate_timeout);
        Ok(Self { database: Database::new(&patient, 1), config: config.clone() })
    }

    pub(crate) fn on(config: PostgresConfig, database: Database) -> Self {
        Self { config, database }
    }

    /// Everything that [`migrate`](Self::migrate) does, as SQL to read, to review or to run by other means. Safe to repeat.
    #[must_use]
    pub fn sql(&self) -> String {
        let mut sql = ddl::create(&self.config).join(";\n\n");
        sql.push_str(";\n");
        sql
    }

    /// Creates what is missing, in one transaction. Any number of processes may do so at once; repeating it changes nothing.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when a table of that name was there before and cannot be taken over as it is, or when the
    /// database is a copy of another one: the message says which way out fits. Nothing has changed then.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        self.create(false).await
    }

    /// Accepts this database as the outbox's own, with the rows that are in the table: after a restore, a copy, a new
    /// timeline, or when a table with rows in it is taken over. **Every row in it will be published.**
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
            .transaction("check", move |connection| {
                Box::pin(async move {
                    let survey = one(connection, ddl::survey(&config)).await?;
                    let mut drift = drift::find(connection, &config).await?;
                    if survey.try_get("ours")? {
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
            .transaction("migrate", move |connection| {
                Box::pin(async move {
                    run(connection, ddl::prepare(&config)).await?;
                    if let Some(refusal) = survey(connection, &config, adopt).await? {
                        return Ok(Some(refusal));
                    }
                    for statement in ddl::create(&config) {
                        run(connection, statement).await?;
                    }
                    if adopt {
                        let overwrite = "on conflict (key) do update set value = excluded.value";
                        run(connection, ddl::adopt(&config, overwrite)).await?;
                    }
                    Ok(None)
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

fn run(connection: &mut PgConnection, sql: String) -> BoxFuture<'_, Result<(), sqlx::Error>> {
    Box::pin(async move {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await?;
        Ok(())
    })
}

async fn one(connection: &mut PgConnection, sql: String) -> Result<PgRow, sqlx::Error> {
    sqlx::query(AssertSqlSafe(sql)).persistent(false).fetch_one(connection).await
}

/// Why the tables that are there cannot be taken over; `None` when they can, or when there are none.
async fn survey(
    connection: &mut PgConnection,
    config: &PostgresConfig,
    adopt: bool,
) -> Result<Option<String>, sqlx::Error> {
    let row = one(connection, ddl::survey(config)).await?;
    if row.try_get("replica")? {
        return Ok(Some(REPLICA.to_owned()));
    }
    let columns: Option<Vec<String>> = row.try_get("columns")?;
    let Some(columns) = columns else { return Ok(None) };
    if let Some(marker) = columns.iter().find(|column| is_finish_marker(column)) {
        return Ok(Some(format!(
            "its column {marker} marks rows as done, and a row of an outbox is pending for as long as it is there; \
             choose another name with the setting table, or delete the finished rows and drop the column"
        )));
    }
    if let Some(missing) = ddl::NEEDED.iter().find(|needed| !columns.iter().any(|c| c == *needed)) {
        return Ok(Some(format!(
            "it has no column {missing}, so it was not made by this schema; choose another name with the setting table, \
             or rename it and insert its pending rows into the new one"
        )));
    }
    if adopt {
        return Ok(None);
    }
    if row.try_get("ours")? {
        return identity(connection, config).await;
    }
    let rows = one(connection, ddl::has_rows(config)).await?;
    Ok(rows.try_get::<bool, _>(0)?.then(|| {
        "it has rows from before, which would all be published; delete those that were published already, then run \
         adopt (Schema::adopt) to accept the rest"
            .to_owned()
    }))
}

/// Why this database is not the one to which the outbox belongs; `None` when it is.
async fn identity(
    connection: &mut PgConnection,
    config: &PostgresConfig,
) -> Result<Option<String>, sqlx::Error> {
    let row = one(connection, ddl::identity(config)).await?;
    let text = |column: &str| row.try_get::<Option<String>, _>(column);
    if text("timeline_now")?.is_none() {
        return Ok(Some(REPLICA.to_owned()));
    }
    let version = text("schema_version")?;
    if version.as_deref() != Some(ddl::VERSION) {
        return Ok(Some(format!(
            "its tables have version {}, this program needs {}",
            version.as_deref().unwrap_or("none"),
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
    for (what, column, checked) in [
        ("the cluster", "system", true),
        ("the database", "database", true),
        ("the timeline", "timeline", config.pin_timeline),
    ] {
        let then = text(&format!("{column}_then"))?.unwrap_or_else(|| "none".to_owned());
        let now = text(&format!("{column}_now"))?.unwrap_or_else(|| "none".to_owned());
        if checked && then != now {
            return Ok(Some(format!(
                "it belongs to another database, of which this is a copy or a restore: {what} was {then} and is {now}; \
                 its pending rows may have been published already. If this copy is to publish them, run adopt \
                 (Schema::adopt)"
            )));
        }
    }
    Ok(None)
}

const REPLICA: &str = "the server is a read replica: connect to the primary";
