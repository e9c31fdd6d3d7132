//! Every setting of this adapter, with its unit and default.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use outbox_core::{InboxTable, StoreError, Timing};
use sqlx::mysql::MySqlConnectOptions;

/// Where the outbox is, and how it is used. Writers, relay, inbox and operator use equal settings.
///
/// ```
/// use outbox_mysql::{Keep, MySqlConfig};
/// let config = MySqlConfig::from_url("mysql://relay:secret@db/shop?ssl-mode=VERIFY_IDENTITY")?
///     .with_table("shop_outbox")
///     .with_keep(Keep::Archive);
/// assert_eq!(config.table, "shop_outbox");
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok::<(), outbox_core::StoreError>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct MySqlConfig {
    /// How to connect: server, database, user, TLS. The tables are in this database, so it must be named.
    pub connect: MySqlConnectOptions,
    /// The outbox table, and the prefix of the tables beside it (`<table>_lanes`, …), at most
    /// [`Self::MAX_TABLE_CHARS`]. Default: `outbox`.
    pub table: String,
    /// Lanes of the table, 1 to [`Self::MAX_LANES`], fixed when it is created. Default: 16.
    pub lanes: u16,
    /// The type of the payload column, fixed when the table is created. Default: [`PayloadType::LongText`].
    pub payload: PayloadType,
    /// What becomes of delivered events. Default: [`Keep::Delete`].
    pub keep: Keep,
    /// Whether writers number the events of each aggregate (header `outbox-sequence`), so that consumers notice what is
    /// missing: two more statements an append, and appends about one aggregate wait for each other. Consumers set it too,
    /// for the table of what they have accepted. Default: no.
    pub sequence: bool,
    /// Whether another server (another `server_uuid`) is refused until [`Schema::adopt`](crate::Schema::adopt) accepts it:
    /// a restored backup, or a copy. Turn it off where a replica may be promoted, which looks the same. MariaDB has no
    /// such identity, and nothing is compared there. Default: yes.
    pub pin_server: bool,
    /// Connections of one store at most, at least 2: one of them serves leases and nothing else, so that slow claims
    /// and settlements cannot cost a lease. A relay needs four a pipeline. Default: 5.
    pub pool_size: u32,
    /// How long to wait for a connection. Default: 3 s.
    pub connect_timeout: Duration,
    /// How long one statement may run. Default: 4 s, just below the relay's own deadline
    /// (`Timing::statement_deadline`), so that the error tells the reason. MySQL itself ends reads only; a write that
    /// runs for longer loses its connection.
    pub statement_timeout: Duration,
    /// How long a statement waits for a lock, in whole seconds, at least one: so that an operator's open transaction
    /// costs one statement and not the lease. Default: 2 s.
    pub lock_timeout: Duration,
    /// How long one statement of [`Schema::migrate`](crate::Schema::migrate) and `adopt` may run: building an index on
    /// a full table, or waiting for another migration. Default: 5 min.
    pub migrate_timeout: Duration,
}

/// The type of the payload column, chosen when the table is created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PayloadType {
    /// Text in UTF-8, kept byte for byte. The type `json` of MySQL would sort an object's keys.
    #[default]
    LongText,
    /// Any bytes.
    LongBlob,
}

impl PayloadType {
    /// The type's name in SQL.
    #[must_use]
    pub fn as_sql(self) -> &'static str {
        match self {
            Self::LongText => "longtext",
            Self::LongBlob => "longblob",
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

/// The longest name of anything.
const MAX_NAME_CHARS: usize = 64;

impl MySqlConfig {
    /// The most lanes of a table: a claim is one statement with a part for each.
    pub const MAX_LANES: u16 = 256;
    /// The longest table name in characters: names have 64 at most, and the longest suffix takes 10.
    pub const MAX_TABLE_CHARS: usize = 54;

    /// The outbox that these options connect to, with the default of every setting.
    #[must_use]
    pub fn new(connect: MySqlConnectOptions) -> Self {
        Self {
            connect,
            table: "outbox".to_owned(),
            lanes: 16,
            payload: PayloadType::default(),
            keep: Keep::default(),
            sequence: false,
            pin_server: true,
            pool_size: 5,
            connect_timeout: Duration::from_secs(3),
            statement_timeout: Duration::from_secs(4),
            lock_timeout: Duration::from_secs(2),
            migrate_timeout: Duration::from_secs(300),
        }
    }

    /// The outbox at this URL: `mysql://user:password@host:port/database?ssl-mode=VERIFY_IDENTITY&ssl-ca=/path`.
    ///
    /// # Errors
    ///
    /// When the URL cannot be read; the error does not repeat it.
    pub fn from_url(url: &str) -> Result<Self, StoreError> {
        let connect = MySqlConnectOptions::from_str(url).map_err(|_| {
            StoreError::misconfigured(
                "the database url is no mysql url: write mysql://user:password@host:port/database?ssl-mode=…",
            )
        })?;
        Ok(Self::new(connect))
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

    /// With this fate of delivered events.
    #[must_use]
    pub fn with_keep(mut self, keep: Keep) -> Self {
        self.keep = keep;
        self
    }

    /// With events that are numbered by aggregate, or without.
    #[must_use]
    pub fn with_sequence(mut self, sequence: bool) -> Self {
        self.sequence = sequence;
        self
    }

    /// With another server refused until it is adopted, or accepted.
    #[must_use]
    pub fn with_pin_server(mut self, pin_server: bool) -> Self {
        self.pin_server = pin_server;
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
        if self.database().is_empty() {
            return Err(StoreError::misconfigured(
                "the database url names no database: write it behind the port, mysql://user:password@host:port/database",
            ));
        }
        check_name("table", &self.table, Self::MAX_TABLE_CHARS)?;
        if !(1..=Self::MAX_LANES).contains(&self.lanes) {
            let (lanes, most) = (self.lanes, Self::MAX_LANES);
            return Err(StoreError::misconfigured(format!(
                "lanes is {lanes}, 1 to {most} are possible"
            )));
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

    /// The database of all tables.
    pub(crate) fn database(&self) -> &str {
        self.connect.get_database().unwrap_or_default()
    }

    pub(crate) fn names(&self) -> Names {
        Names::new(self.database(), &self.table)
    }

    /// The inbox beside the outbox.
    pub(crate) fn inbox(&self) -> InboxTable {
        InboxTable::beside(&self.table)
    }

    /// The names of an inbox as they stand in a statement, its table with the database.
    pub(crate) fn quoted(&self, inbox: &InboxTable) -> Result<InboxTable, StoreError> {
        for (what, name) in inbox.names() {
            check_name(what, name, MAX_NAME_CHARS)?;
        }
        let mut quoted = inbox.quoted(quote);
        quoted.table = format!("{}.{}", quote(self.database()), quoted.table);
        Ok(quoted)
    }
}

impl fmt::Debug for MySqlConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MySqlConfig")
            .field("host", &self.connect.get_host())
            .field("port", &self.connect.get_port())
            .field("database", &self.connect.get_database())
            .field("user", &self.connect.get_username())
            .field("table", &self.table)
            .field("lanes", &self.lanes)
            .field("payload", &self.payload)
            .field("keep", &self.keep)
            .field("sequence", &self.sequence)
            .field("pin_server", &self.pin_server)
            .field("pool_size", &self.pool_size)
            .field("connect_timeout", &self.connect_timeout)
            .field("statement_timeout", &self.statement_timeout)
            .field("lock_timeout", &self.lock_timeout)
            .field("migrate_timeout", &self.migrate_timeout)
            .finish()
    }
}

fn check_name(setting: &str, name: &str, max: usize) -> Result<(), StoreError> {
    if !(1..=max).contains(&name.chars().count())
        || name.contains('\0')
        || name.ends_with(' ')
        || name.chars().any(|c| u32::from(c) > 0xffff)
    {
        return Err(StoreError::misconfigured(format!(
            "{setting} name {name:?} must have 1 to {max} characters of the basic plane, no NUL and no space at its end"
        )));
    }
    Ok(())
}

/// The names of all tables, quoted, with their database.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(crate) live: String,
    pub(crate) lanes: String,
    pub(crate) workers: String,
    pub(crate) dead: String,
    pub(crate) archive: String,
    pub(crate) meta: String,
    pub(crate) inbox: String,
    pub(crate) sequences: String,
    pub(crate) arrivals: String,
    database: String,
    table: String,
}

impl Names {
    fn new(database: &str, table: &str) -> Self {
        let name =
            |suffix: &str| format!("{}.{}", quote(database), quote(&format!("{table}{suffix}")));
        Self {
            live: name(""),
            lanes: name("_lanes"),
            workers: name("_workers"),
            dead: name("_dead"),
            archive: name("_archive"),
            meta: name("_meta"),
            inbox: name("_inbox"),
            sequences: name("_sequences"),
            arrivals: name("_arrivals"),
            database: database.to_owned(),
            table: table.to_owned(),
        }
    }

    /// The database's name as the catalogue has it.
    pub(crate) fn database(&self) -> &str {
        &self.database
    }

    /// A table's name as the catalogue has it.
    pub(crate) fn plain(&self, suffix: &str) -> String {
        format!("{}{suffix}", self.table)
    }
}

/// A name as an identifier in SQL.
pub(crate) fn quote(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

/// A text as a literal in SQL, whatever `sql_mode` says of backslashes.
pub(crate) fn literal(text: &str) -> String {
    if text.contains(['\'', '\\']) || !text.is_ascii() {
        let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
        return format!("_utf8mb4 x'{hex}'");
    }
    format!("'{text}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// H162: a name is quoted, never pasted.
    #[test]
    fn a_name_with_quotes_stays_one_identifier() {
        assert_eq!(quote("a`; drop table x; --"), "`a``; drop table x; --`");
        assert_eq!(literal("it's"), "_utf8mb4 x'69742773'");
        assert_eq!(literal("plain"), "'plain'");
    }

    #[test]
    fn settings_out_of_range_are_refused() {
        let config = || MySqlConfig::new(MySqlConnectOptions::new().database("shop"));
        assert!(config().with_table("x".repeat(54)).validate().is_ok());
        assert!(config().with_lanes(256).with_pool_size(2).validate().is_ok());
        for wrong in [
            MySqlConfig::new(MySqlConnectOptions::new()),
            config().with_table("x".repeat(55)),
            config().with_table(""),
            config().with_table("a\0"),
            // MySQL itself refuses these two.
            config().with_table("a "),
            config().with_table("\u{1f980}"),
            config().with_lanes(0),
            config().with_lanes(257),
            config().with_pool_size(1),
        ] {
            assert!(wrong.validate().is_err(), "{wrong:?}");
        }
    }

    /// Zero would mean no limit to the server, and the longest there is would overflow.
    #[test]
    fn a_time_that_is_no_limit_is_refused_by_name() {
        type Change = fn(MySqlConfig, Duration) -> MySqlConfig;
        let changes: [(&str, Change); 4] = [
            ("connect_timeout", MySqlConfig::with_connect_timeout),
            ("statement_timeout", MySqlConfig::with_statement_timeout),
            ("lock_timeout", MySqlConfig::with_lock_timeout),
            ("migrate_timeout", MySqlConfig::with_migrate_timeout),
        ];
        let config = || MySqlConfig::new(MySqlConnectOptions::new().database("shop"));
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
        let config = MySqlConfig::from_url("mysql://relay:hunter2@db/shop").unwrap();
        assert!(!format!("{config:?}").contains("hunter2"));
        let error = MySqlConfig::from_url("mysql://relay:hunter2@db:port/shop").unwrap_err();
        assert!(!format!("{error:?} {error}").contains("hunter2"));
    }
}
