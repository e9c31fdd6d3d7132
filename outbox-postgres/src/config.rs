//! Every setting of this adapter, with its unit and default.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;

/// Where the outbox is, and how it is kept.
///
/// ```
/// use outbox_postgres::{Keep, PostgresConfig};
/// let config = PostgresConfig::new("postgres://relay:secret@db/shop?sslmode=verify-full")?
///     .schema("shop")?
///     .keep(Keep::Archive);
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok::<(), outbox_postgres::InvalidConfig>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct PostgresConfig {
    pub(crate) connect: PgConnectOptions,
    pub(crate) schema: String,
    pub(crate) table: String,
    pub(crate) lanes: u16,
    pub(crate) payload: PayloadType,
    pub(crate) unique_id: bool,
    pub(crate) keep: Keep,
    pub(crate) pooled: bool,
    pub(crate) pin_timeline: bool,
    pub(crate) pool_size: u32,
    pub(crate) connect_timeout: Duration,
    pub(crate) statement_timeout: Duration,
    pub(crate) lock_timeout: Duration,
    pub(crate) migrate_timeout: Duration,
}

/// The type of the payload column, chosen when the table is created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PayloadType {
    /// JSON text, kept byte for byte.
    #[default]
    Json,
    /// JSON as a value: what is published is PostgreSQL's own text of it.
    Jsonb,
    /// Text, kept byte for byte.
    Text,
    /// Any bytes.
    Bytea,
}

impl PayloadType {
    /// The type's name in SQL.
    #[must_use]
    pub fn as_sql(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Jsonb => "jsonb",
            Self::Text => "text",
            Self::Bytea => "bytea",
        }
    }
}

/// What becomes of a delivered event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Keep {
    /// The row is deleted.
    #[default]
    Delete,
    /// The row moves to the archive table, with the destination and the time.
    Archive,
}

impl PostgresConfig {
    /// The most lanes of a table.
    pub const MAX_LANES: u16 = 1024;
    /// The longest table name in bytes: PostgreSQL cuts names at 63, and the longest suffix takes 16.
    pub const MAX_TABLE_BYTES: usize = 47;
    /// The longest schema name in bytes.
    pub const MAX_SCHEMA_BYTES: usize = 63;

    /// The outbox at this URL: `postgres://user:password@host:port/database?sslmode=verify-full&sslrootcert=/path`.
    ///
    /// What the URL leaves out comes from PostgreSQL's usual variables (`PGHOST`, `PGPASSWORD`, …).
    ///
    /// # Errors
    ///
    /// When the URL cannot be read; the error does not repeat it.
    pub fn new(url: &str) -> Result<Self, InvalidConfig> {
        let connect = PgConnectOptions::from_str(url).map_err(|_| {
            InvalidConfig::new(
                "url",
                "cannot be read; expected postgres://user:password@host:port/database?sslmode=…",
            )
        })?;
        Ok(Self::with_options(connect))
    }

    /// The outbox that these options connect to.
    #[must_use]
    pub fn with_options(connect: PgConnectOptions) -> Self {
        Self {
            connect,
            schema: "public".to_owned(),
            table: "outbox".to_owned(),
            lanes: 16,
            payload: PayloadType::default(),
            unique_id: false,
            keep: Keep::default(),
            pooled: false,
            pin_timeline: false,
            pool_size: 5,
            connect_timeout: Duration::from_secs(3),
            statement_timeout: Duration::from_secs(4),
            lock_timeout: Duration::from_secs(2),
            migrate_timeout: Duration::from_secs(300),
        }
    }

    /// The schema of all tables. Default: `public`.
    ///
    /// # Errors
    ///
    /// When the name is empty, too long or holds a NUL.
    pub fn schema(mut self, schema: &str) -> Result<Self, InvalidConfig> {
        check_name("schema", schema, Self::MAX_SCHEMA_BYTES)?;
        schema.clone_into(&mut self.schema);
        Ok(self)
    }

    /// The name of the outbox table; the other tables carry it in front of theirs. Default: `outbox`.
    ///
    /// # Errors
    ///
    /// When the name is empty, longer than [`Self::MAX_TABLE_BYTES`] or holds a NUL.
    pub fn table(mut self, table: &str) -> Result<Self, InvalidConfig> {
        check_name("table", table, Self::MAX_TABLE_BYTES)?;
        table.clone_into(&mut self.table);
        Ok(self)
    }

    /// How many lanes the table has, fixed when it is created. Default: 16.
    ///
    /// # Errors
    ///
    /// When it is 0 or more than [`Self::MAX_LANES`].
    pub fn lanes(mut self, lanes: u16) -> Result<Self, InvalidConfig> {
        if lanes == 0 || lanes > Self::MAX_LANES {
            return Err(InvalidConfig::new(
                "lanes",
                format!("is {lanes}, 1 to {} are allowed", Self::MAX_LANES),
            ));
        }
        self.lanes = lanes;
        Ok(self)
    }

    /// The type of the payload column, fixed when the table is created. Default: `json`.
    #[must_use]
    pub fn payload(mut self, payload: PayloadType) -> Self {
        self.payload = payload;
        self
    }

    /// Whether ids are unique among pending events, so that appending an event twice keeps one. Costs an index
    /// (about 80 bytes of WAL per event), and holds only while the event is pending. Default: no.
    #[must_use]
    pub fn unique_id(mut self, unique_id: bool) -> Self {
        self.unique_id = unique_id;
        self
    }

    /// What becomes of delivered events. Default: they are deleted.
    #[must_use]
    pub fn keep(mut self, keep: Keep) -> Self {
        self.keep = keep;
        self
    }

    /// Whether a pooler in transaction mode (pgbouncer) stands in between: then no session state is used, no
    /// statement is prepared by name, and each statement runs in a transaction of its own. Default: no.
    #[must_use]
    pub fn pooled(mut self, pooled: bool) -> Self {
        self.pooled = pooled;
        self
    }

    /// Whether a new timeline (a failover, or a restore to a point in time) is refused until
    /// [`Schema::adopt`](crate::Schema::adopt) accepts it. Default: no, so that a failover needs nobody.
    #[must_use]
    pub fn pin_timeline(mut self, pin_timeline: bool) -> Self {
        self.pin_timeline = pin_timeline;
        self
    }

    /// Connections of one store at most, at least 2: one of them serves leases and nothing else, so that slow claims
    /// and settlements cannot cost a lease. A relay needs four a pipeline. Default: 5.
    #[must_use]
    pub fn pool_size(mut self, pool_size: u32) -> Self {
        self.pool_size = pool_size.max(2);
        self
    }

    /// How long to wait for a connection. Default: 3 s.
    #[must_use]
    pub fn connect_timeout(mut self, connect_timeout: Duration) -> Self {
        self.connect_timeout = connect_timeout;
        self
    }

    /// How long one statement may run on the server. Default: 4 s, just below the relay's own deadline
    /// (`Timing::statement_deadline`), so that the error tells the reason, and nothing runs on that nobody waits for.
    #[must_use]
    pub fn statement_timeout(mut self, statement_timeout: Duration) -> Self {
        self.statement_timeout = statement_timeout;
        self
    }

    /// How long a statement of the relay waits for a lock, so that an operator's open transaction costs one statement
    /// and not the lease. Default: 2 s.
    #[must_use]
    pub fn lock_timeout(mut self, lock_timeout: Duration) -> Self {
        self.lock_timeout = lock_timeout;
        self
    }

    /// How long one statement of [`Schema::migrate`](crate::Schema::migrate) and `adopt` may run: building an index on
    /// a full table, or waiting for another migration. Default: 5 min.
    #[must_use]
    pub fn migrate_timeout(mut self, migrate_timeout: Duration) -> Self {
        self.migrate_timeout = migrate_timeout;
        self
    }

    pub(crate) fn names(&self) -> Names {
        Names::new(&self.schema, &self.table)
    }
}

impl fmt::Debug for PostgresConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresConfig")
            .field("host", &self.connect.get_host())
            .field("port", &self.connect.get_port())
            .field("database", &self.connect.get_database())
            .field("user", &self.connect.get_username())
            .field("schema", &self.schema)
            .field("table", &self.table)
            .field("lanes", &self.lanes)
            .field("payload", &self.payload)
            .field("unique_id", &self.unique_id)
            .field("keep", &self.keep)
            .field("pooled", &self.pooled)
            .field("pin_timeline", &self.pin_timeline)
            .field("pool_size", &self.pool_size)
            .field("connect_timeout", &self.connect_timeout)
            .field("statement_timeout", &self.statement_timeout)
            .field("lock_timeout", &self.lock_timeout)
            .field("migrate_timeout", &self.migrate_timeout)
            .finish()
    }
}

/// A setting that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("setting {setting} {reason}")]
pub struct InvalidConfig {
    setting: &'static str,
    reason: String,
}

impl InvalidConfig {
    fn new(setting: &'static str, reason: impl Into<String>) -> Self {
        Self { setting, reason: reason.into() }
    }

    /// The setting.
    #[must_use]
    pub fn setting(&self) -> &'static str {
        self.setting
    }
}

fn check_name(setting: &'static str, name: &str, max: usize) -> Result<(), InvalidConfig> {
    if name.is_empty() || name.len() > max || name.contains('\0') {
        let reason = format!("{name:?} must have 1 to {max} bytes and no NUL");
        return Err(InvalidConfig::new(setting, reason));
    }
    Ok(())
}

/// The names of all tables, quoted, with their schema.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(crate) schema: String,
    pub(crate) live: String,
    pub(crate) lanes: String,
    pub(crate) workers: String,
    pub(crate) dead: String,
    pub(crate) archive: String,
    pub(crate) archive_rest: String,
    pub(crate) meta: String,
    pub(crate) inbox: String,
    plain_schema: String,
    table: String,
}

impl Names {
    fn new(schema: &str, table: &str) -> Self {
        let name =
            |suffix: &str| format!("{}.{}", quote(schema), quote(&format!("{table}{suffix}")));
        Self {
            schema: quote(schema),
            live: name(""),
            lanes: name("_lanes"),
            workers: name("_workers"),
            dead: name("_dead"),
            archive: name("_archive"),
            archive_rest: name("_archive_default"),
            meta: name("_meta"),
            inbox: name("_inbox"),
            plain_schema: schema.to_owned(),
            table: table.to_owned(),
        }
    }

    /// The schema's name as the catalogue has it.
    pub(crate) fn plain_schema(&self) -> &str {
        &self.plain_schema
    }

    /// A table's name as the catalogue has it.
    pub(crate) fn plain(&self, suffix: &str) -> String {
        format!("{}{suffix}", self.table)
    }

    /// The quoted name of an index, which carries no schema where it is created.
    pub(crate) fn index(&self, suffix: &str) -> String {
        quote(&self.plain(suffix))
    }
}

/// A name as an identifier in SQL.
fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text as a literal in SQL.
pub(crate) fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if quoted.contains('\\') {
        format!("E'{}'", quoted.replace('\\', "\\\\"))
    } else {
        format!("'{quoted}'")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// H162: a name is quoted, never pasted.
    #[test]
    fn a_name_with_quotes_stays_one_identifier() {
        assert_eq!(quote("a\"; drop table x; --"), "\"a\"\"; drop table x; --\"");
        assert_eq!(literal("it's"), "'it''s'");
        assert_eq!(literal("a\\'"), "E'a\\\\'''");
    }

    #[test]
    fn names_that_postgresql_would_cut_are_refused() {
        let config = PostgresConfig::with_options(PgConnectOptions::new());
        assert!(config.clone().table(&"x".repeat(47)).is_ok());
        assert!(config.clone().table(&"x".repeat(48)).is_err());
        assert!(config.clone().schema(&"x".repeat(64)).is_err());
        assert!(config.clone().table("").is_err());
        assert!(config.table("a\0").is_err());
    }

    /// H163: neither Debug nor an error shows a password.
    #[test]
    fn no_secret_shows() {
        let config = PostgresConfig::new("postgres://relay:hunter2@db/shop").unwrap();
        assert!(!format!("{config:?}").contains("hunter2"));
        let error = PostgresConfig::new("postgres://relay:hunter2@db:port/shop").unwrap_err();
        assert!(!format!("{error:?} {error}").contains("hunter2"));
    }
}
