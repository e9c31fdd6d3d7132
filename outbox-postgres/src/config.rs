//! Every setting of this adapter, with its unit and default.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use outbox_core::{InboxTable, StoreError, Timing};
use sqlx::postgres::PgConnectOptions;

/// Where the outbox is, and how it is used. Writers, relay, inbox and operator use equal settings.
///
/// ```
/// use outbox_postgres::{Keep, PostgresConfig};
/// let config = PostgresConfig::from_url("postgres://relay:secret@db/shop?sslmode=verify-full")?
///     .with_schema("shop")
///     .with_keep(Keep::Archive);
/// assert_eq!(config.schema, "shop");
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok::<(), outbox_core::StoreError>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct PostgresConfig {
    /// How to connect: server, database, role, TLS.
    pub connect: PgConnectOptions,
    /// The schema of all tables, at most [`Self::MAX_SCHEMA_BYTES`]. Default: `public`.
    pub schema: String,
    /// The outbox table, and the prefix of the tables beside it (`<table>_lanes`, …), at most
    /// [`Self::MAX_TABLE_BYTES`]. Default: `outbox`.
    pub table: String,
    /// Lanes of the table, 1 to [`Self::MAX_LANES`], fixed when it is created. Default: 16.
    pub lanes: u16,
    /// The type of the payload column, fixed when the table is created. Default: [`PayloadType::Json`].
    pub payload: PayloadType,
    /// Whether ids are unique among pending events, so that appending an event twice keeps one. Costs an index
    /// (about 80 bytes of WAL per event), and holds only while the event is pending. Default: no.
    pub unique_id: bool,
    /// Whether writers number the events of each aggregate (header `outbox-sequence`), so that consumers notice what is
    /// missing: one more statement an append, and appends about one aggregate wait for each other. Not together with
    /// `unique_id`. Consumers set it too, for the table of what they have accepted. Default: no.
    pub sequence: bool,
    /// What becomes of delivered events. Default: [`Keep::Delete`].
    pub keep: Keep,
    /// Whether a pooler in transaction mode (pgbouncer) stands in between: then no session state is used, no
    /// statement is prepared by name, and each statement runs in a transaction of its own. Default: no.
    pub pooled: bool,
    /// Whether a new timeline (a failover, or a restore to a point in time) is refused until
    /// [`Schema::adopt`](crate::Schema::adopt) accepts it. Default: no, so that a failover needs nobody.
    pub pin_timeline: bool,
    /// Connections of one store at most, at least 2: one of them serves leases and nothing else, so that slow claims
    /// and settlements cannot cost a lease. A relay needs four a pipeline. Default: 5.
    pub pool_size: u32,
    /// How long to wait for a connection. Default: 3 s.
    pub connect_timeout: Duration,
    /// How long one statement may run on the server. Default: 4 s, just below the relay's own deadline
    /// (`Timing::statement_deadline`), so that the error tells the reason, and nothing runs on that nobody waits for.
    pub statement_timeout: Duration,
    /// How long a statement waits for a lock, so that an operator's open transaction costs one statement and not the
    /// lease. Default: 2 s.
    pub lock_timeout: Duration,
    /// How long one statement of [`Schema::migrate`](crate::Schema::migrate) and `adopt` may run: building an index on
    /// a full table, or waiting for another migration. Default: 5 min.
    pub migrate_timeout: Duration,
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

    /// The outbox that these options connect to, with the default of every setting.
    #[must_use]
    pub fn new(connect: PgConnectOptions) -> Self {
        Self {
            connect,
            schema: "public".to_owned(),
            table: "outbox".to_owned(),
            lanes: 16,
            payload: PayloadType::default(),
            unique_id: false,
            sequence: false,
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

    /// The outbox at this URL: `postgres://user:password@host:port/database?sslmode=verify-full&sslrootcert=/path`.
    ///
    /// What the URL leaves out comes from PostgreSQL's usual variables (`PGHOST`, `PGPASSWORD`, …).
    ///
    /// # Errors
    ///
    /// When the URL cannot be read; the error does not repeat it.
    pub fn from_url(url: &str) -> Result<Self, StoreError> {
        let connect = PgConnectOptions::from_str(url).map_err(|_| {
            StoreError::misconfigured(
                "the database url is no postgres url: write postgres://user:password@host:port/database?sslmode=…",
            )
        })?;
        Ok(Self::new(connect))
    }

    /// With this schema.
    #[must_use]
    pub fn with_schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// With this table name.
    #[must_use]
    pub fn with_table(mut self, table: impl Into<String>) -> Self {
        self.table = table.into();
        self
    }

    /// With this many lanes.
    #[must_use]
    pub fn with_lanes(mut self, lanes: u16) -> Self {
        self.lanes = lanes;
        self
    }

    /// With this type of the payload column.
    #[must_use]
    pub fn with_payload(mut self, payload: PayloadType) -> Self {
        self.payload = payload;
        self
    }

    /// With unique ids among pending events, or without.
    #[must_use]
    pub fn with_unique_id(mut self, unique_id: bool) -> Self {
        self.unique_id = unique_id;
        self
    }

    /// With events that are numbered by aggregate, or without.
    #[must_use]
    pub fn with_sequence(mut self, sequence: bool) -> Self {
        self.sequence = sequence;
        self
    }

    /// With this fate of delivered events.
    #[must_use]
    pub fn with_keep(mut self, keep: Keep) -> Self {
        self.keep = keep;
        self
    }

    /// With a pooler in transaction mode in between, or without.
    #[must_use]
    pub fn with_pooled(mut self, pooled: bool) -> Self {
        self.pooled = pooled;
        self
    }

    /// With a new timeline refused until it is adopted, or accepted.
    #[must_use]
    pub fn with_pin_timeline(mut self, pin_timeline: bool) -> Self {
        self.pin_timeline = pin_timeline;
        self
    }

    /// With this many connections at most.
    #[must_use]
    pub fn with_pool_size(mut self, pool_size: u32) -> Self {
        self.pool_size = pool_size;
        self
    }

    /// With this patience for a connection.
    #[must_use]
    pub fn with_connect_timeout(mut self, connect_timeout: Duration) -> Self {
        self.connect_timeout = connect_timeout;
        self
    }

    /// With this limit for a statement.
    #[must_use]
    pub fn with_statement_timeout(mut self, statement_timeout: Duration) -> Self {
        self.statement_timeout = statement_timeout;
        self
    }

    /// With this patience for locks.
    #[must_use]
    pub fn with_lock_timeout(mut self, lock_timeout: Duration) -> Self {
        self.lock_timeout = lock_timeout;
        self
    }

    /// With this limit for a statement of a migration.
    #[must_use]
    pub fn with_migrate_timeout(mut self, migrate_timeout: Duration) -> Self {
        self.migrate_timeout = migrate_timeout;
        self
    }

    pub(crate) fn validate(&self) -> Result<(), StoreError> {
        check_name("schema", &self.schema, Self::MAX_SCHEMA_BYTES)?;
        check_name("table", &self.table, Self::MAX_TABLE_BYTES)?;
        if !(1..=Self::MAX_LANES).contains(&self.lanes) {
            let (lanes, most) = (self.lanes, Self::MAX_LANES);
            return Err(StoreError::misconfigured(format!(
                "lanes is {lanes}, 1 to {most} are possible"
            )));
        }
        if self.sequence && self.unique_id {
            return Err(StoreError::misconfigured(
                "sequence and unique_id exclude each other: an event that is there already would leave a gap in the numbers",
            ));
        }
        if self.pool_size < 2 {
            let size = self.pool_size;
            return Err(StoreError::misconfigured(format!(
                "pool_size is {size}, at least 2 are needed: one connection serves leases only"
            )));
        }
        for (setting, time) in [
            ("connect_timeout", self.connect_timeout),
            ("statement_timeout", self.statement_timeout),
            ("lock_timeout", self.lock_timeout),
            ("migrate_timeout", self.migrate_timeout),
        ] {
            if !(Duration::from_millis(1)..=Timing::MAX).contains(&time) {
                return Err(StoreError::misconfigured(format!(
                    "{setting} is {time:?}, 1 ms to 1 day are possible"
                )));
            }
        }
        Ok(())
    }

    pub(crate) fn names(&self) -> Names {
        Names::new(&self.schema, &self.table)
    }

    /// The inbox beside the outbox.
    pub(crate) fn inbox(&self) -> InboxTable {
        InboxTable::beside(&self.table)
    }

    /// The names of an inbox as they stand in a statement, its table with the schema.
    pub(crate) fn quoted(&self, inbox: &InboxTable) -> Result<InboxTable, StoreError> {
        for (what, name) in inbox.names() {
            check_name(what, name, Self::MAX_SCHEMA_BYTES)?;
        }
        let mut quoted = inbox.quoted(quote);
        quoted.table = format!("{}.{}", quote(&self.schema), quoted.table);
        Ok(quoted)
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
            .field("sequence", &self.sequence)
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

fn check_name(setting: &'static str, name: &str, max: usize) -> Result<(), StoreError> {
    if name.is_empty() || name.len() > max || name.contains('\0') {
        return Err(StoreError::misconfigured(format!(
            "{setting} name {name:?} must have 1 to {max} bytes and no NUL"
        )));
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
    pub(crate) sequences: String,
    pub(crate) arrivals: String,
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
            sequences: name("_sequences"),
            arrivals: name("_arrivals"),
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
    fn settings_out_of_range_are_refused() {
        let config = || PostgresConfig::new(PgConnectOptions::new());
        assert!(config().with_table("x".repeat(47)).validate().is_ok());
        assert!(config().with_lanes(1024).with_pool_size(2).validate().is_ok());
        for wrong in [
            // PostgreSQL would cut them.
            config().with_table("x".repeat(48)),
            config().with_schema("x".repeat(64)),
            config().with_table(""),
            config().with_table("a\0"),
            config().with_lanes(0),
            config().with_lanes(1025),
            config().with_pool_size(1),
            config().with_sequence(true).with_unique_id(true),
        ] {
            assert!(wrong.validate().is_err(), "{wrong:?}");
        }
    }

    /// Zero would mean no limit to the server, and the longest there is would overflow.
    #[test]
    fn a_time_that_is_no_limit_is_refused_by_name() {
        type Change = fn(PostgresConfig, Duration) -> PostgresConfig;
        let changes: [(&str, Change); 4] = [
            ("connect_timeout", PostgresConfig::with_connect_timeout),
            ("statement_timeout", PostgresConfig::with_statement_timeout),
            ("lock_timeout", PostgresConfig::with_lock_timeout),
            ("migrate_timeout", PostgresConfig::with_migrate_timeout),
        ];
        let config = || PostgresConfig::new(PgConnectOptions::new());
        for (setting, change) in changes {
            for time in [Duration::ZERO, Duration::from_micros(999), Duration::MAX] {
                let error = change(config(), time).validate().unwrap_err().to_string();
                assert!(error.starts_with(setting), "{error}");
            }
            change(config(), Duration::from_millis(1)).validate().unwrap();
            change(config(), Duration::from_secs(86_400)).validate().unwrap();
        }
    }

    /// H163: neither Debug nor an error shows a password.
    #[test]
    fn no_secret_shows() {
        let config = PostgresConfig::from_url("postgres://relay:hunter2@db/shop").unwrap();
        assert!(!format!("{config:?}").contains("hunter2"));
        let error = PostgresConfig::from_url("postgres://relay:hunter2@db:port/shop").unwrap_err();
        assert!(!format!("{error:?} {error}").contains("hunter2"));
    }
}
