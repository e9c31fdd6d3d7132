//! Every setting of this adapter, with its unit and default.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use outbox_core::{InboxTable, StoreError};
use sqlx::mysql::MySqlConnectOptions;

/// Where the outbox is, and how it is kept.
///
/// ```
/// use outbox_mysql::{Keep, MySqlConfig};
/// let config = MySqlConfig::new("mysql://relay:secret@db/shop?ssl-mode=VERIFY_IDENTITY")?
///     .with_table("shop_outbox")?
///     .with_keep(Keep::Archive);
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok::<(), outbox_mysql::InvalidConfig>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct MySqlConfig {
    pub(crate) connect: MySqlConnectOptions,
    pub(crate) database: String,
    pub(crate) table: String,
    pub(crate) lanes: u16,
    pub(crate) payload: PayloadType,
    pub(crate) keep: Keep,
    pub(crate) pin_server: bool,
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
    /// The longest table name in characters: names have 64 at most, and the longest suffix takes 8.
    pub const MAX_TABLE_CHARS: usize = 56;

    /// The outbox at this URL: `mysql://user:password@host:port/database?ssl-mode=VERIFY_IDENTITY&ssl-ca=/path`.
    ///
    /// # Errors
    ///
    /// When the URL cannot be read or names no database; the error does not repeat it.
    pub fn new(url: &str) -> Result<Self, InvalidConfig> {
        let connect = MySqlConnectOptions::from_str(url).map_err(|_| {
            InvalidConfig::new(
                "url",
                "cannot be read; expected mysql://user:password@host:port/database?ssl-mode=…",
            )
        })?;
        Self::with_options(connect)
    }

    /// The outbox that these options connect to.
    ///
    /// # Errors
    ///
    /// When they name no database.
    pub fn with_options(connect: MySqlConnectOptions) -> Result<Self, InvalidConfig> {
        let database = connect.get_database().unwrap_or_default().to_owned();
        if database.is_empty() {
            return Err(InvalidConfig::new("url", "names no database; it stands behind the port"));
        }
        Ok(Self {
            connect,
            database,
            table: "outbox".to_owned(),
            lanes: 16,
            payload: PayloadType::default(),
            keep: Keep::default(),
            pin_server: true,
            pool_size: 5,
            connect_timeout: Duration::from_secs(3),
            statement_timeout: Duration::from_secs(4),
            lock_timeout: Duration::from_secs(2),
            migrate_timeout: Duration::from_secs(300),
        })
    }

    /// The name of the outbox table; the other tables carry it in front of theirs. Default: `outbox`.
    ///
    /// # Errors
    ///
    /// When the name is empty, longer than [`Self::MAX_TABLE_CHARS`], ends with a space or holds a NUL.
    pub fn with_table(mut self, table: &str) -> Result<Self, InvalidConfig> {
        check_name(table, Self::MAX_TABLE_CHARS)
            .map_err(|reason| InvalidConfig::new("table", reason))?;
        table.clone_into(&mut self.table);
        Ok(self)
    }

    /// How many lanes the table has, fixed when it is created. Default: 16.
    ///
    /// # Errors
    ///
    /// When it is 0 or more than [`Self::MAX_LANES`].
    pub fn with_lanes(mut self, lanes: u16) -> Result<Self, InvalidConfig> {
        if lanes == 0 || lanes > Self::MAX_LANES {
            let reason = format!("is {lanes}, 1 to {} are allowed", Self::MAX_LANES);
            return Err(InvalidConfig::new("lanes", reason));
        }
        self.lanes = lanes;
        Ok(self)
    }

    /// The type of the payload column, fixed when the table is created. Default: `longtext`.
    #[must_use]
    pub fn with_payload(mut self, payload: PayloadType) -> Self {
        self.payload = payload;
        self
    }

    /// What becomes of delivered events. Default: they are deleted.
    #[must_use]
    pub fn with_keep(mut self, keep: Keep) -> Self {
        self.keep = keep;
        self
    }

    /// Whether another server (another `server_uuid`) is refused until [`Schema::adopt`](crate::Schema::adopt) accepts it:
    /// a restored backup, or a copy. Turn it off where a replica may be promoted, which looks the same. MariaDB has no
    /// such identity, and nothing is compared there. Default: yes.
    #[must_use]
    pub fn with_pin_server(mut self, pin_server: bool) -> Self {
        self.pin_server = pin_server;
        self
    }

    /// Connections of one store at most, at least 2: one of them serves leases and nothing else, so that slow claims
    /// and settlements cannot cost a lease. A relay needs four a pipeline. Default: 5.
    #[must_use]
    pub fn with_pool_size(mut self, pool_size: u32) -> Self {
        self.pool_size = pool_size.max(2);
        self
    }

    /// How long to wait for a connection. Default: 3 s.
    #[must_use]
    pub fn with_connect_timeout(mut self, connect_timeout: Duration) -> Self {
        self.connect_timeout = connect_timeout;
        self
    }

    /// How long one statement may run. Default: 4 s, just below the relay's own deadline, so that the error tells the
    /// reason. MySQL itself ends reads only; a write that runs for longer loses its connection.
    #[must_use]
    pub fn with_statement_timeout(mut self, statement_timeout: Duration) -> Self {
        self.statement_timeout = statement_timeout;
        self
    }

    /// How long a statement of the relay waits for a lock, in whole seconds, at least one: so that an operator's open
    /// transaction costs one statement and not the lease. Default: 2 s.
    #[must_use]
    pub fn with_lock_timeout(mut self, lock_timeout: Duration) -> Self {
        self.lock_timeout = lock_timeout;
        self
    }

    /// How long one statement of [`Schema::migrate`](crate::Schema::migrate) and `adopt` may run: building an index on
    /// a full table, or waiting for another migration. Default: 5 min.
    #[must_use]
    pub fn with_migrate_timeout(mut self, migrate_timeout: Duration) -> Self {
        self.migrate_timeout = migrate_timeout;
        self
    }

    pub(crate) fn names(&self) -> Names {
        Names::new(&self.database, &self.table)
    }

    /// The inbox beside the outbox.
    pub(crate) fn inbox(&self) -> InboxTable {
        InboxTable::beside(&self.table)
    }

    /// The names of an inbox as they stand in a statement, its table with the database.
    pub(crate) fn quoted(&self, inbox: &InboxTable) -> Result<InboxTable, StoreError> {
        for (what, name) in inbox.names() {
            check_name(name, MAX_NAME_CHARS)
                .map_err(|reason| StoreError::misconfigured(format!("{what} {reason}")))?;
        }
        let mut quoted = inbox.quoted(quote);
        quoted.table = format!("{}.{}", quote(&self.database), quoted.table);
        Ok(quoted)
    }
}

impl fmt::Debug for MySqlConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MySqlConfig")
            .field("host", &self.connect.get_host())
            .field("port", &self.connect.get_port())
            .field("user", &self.connect.get_username())
            .field("database", &self.database)
            .field("table", &self.table)
            .field("lanes", &self.lanes)
            .field("payload", &self.payload)
            .field("keep", &self.keep)
            .field("pin_server", &self.pin_server)
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

fn check_name(name: &str, max: usize) -> Result<(), String> {
    if !(1..=max).contains(&name.chars().count())
        || name.contains('\0')
        || name.ends_with(' ')
        || name.chars().any(|c| u32::from(c) > 0xffff)
    {
        return Err(format!(
            "{name:?} must have 1 to {max} characters of the basic plane, no NUL, no space at its end"
        ));
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
fn quote(name: &str) -> String {
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

    fn config() -> MySqlConfig {
        MySqlConfig::new("mysql://relay:hunter2@db/shop").unwrap()
    }

    /// H162: a name is quoted, never pasted.
    #[test]
    fn a_name_with_quotes_stays_one_identifier() {
        assert_eq!(quote("a`; drop table x; --"), "`a``; drop table x; --`");
        assert_eq!(literal("it's"), "_utf8mb4 x'69742773'");
        assert_eq!(literal("plain"), "'plain'");
    }

    #[test]
    fn names_that_mysql_would_refuse_are_refused() {
        assert!(config().with_table(&"x".repeat(56)).is_ok());
        for table in ["", &"x".repeat(57), "a\0", "a ", "\u{1f980}"] {
            assert!(config().with_table(table).is_err(), "{table:?}");
        }
        assert!(MySqlConfig::new("mysql://relay@db").is_err(), "no database");
    }

    #[test]
    fn impossible_lane_counts_are_refused() {
        for (lanes, possible) in [(0, false), (1, true), (256, true), (257, false)] {
            assert_eq!(config().with_lanes(lanes).is_ok(), possible, "{lanes}");
        }
    }

    /// H163: neither Debug nor an error shows a password.
    #[test]
    fn no_secret_shows() {
        assert!(!format!("{:?}", config()).contains("hunter2"));
        let error = MySqlConfig::new("mysql://relay:hunter2@db:port/shop").unwrap_err();
        assert!(!format!("{error:?} {error}").contains("hunter2"));
    }
}
