//! Which file, which tables, and how the file is used.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use outbox_core::{InboxTable, StoreError, Timing};
use sqlx::sqlite::{SqliteConnectOptions, SqliteSynchronous};

/// Where the outbox is, and how it is used. Writers, relay, inbox and operator use equal settings.
///
/// ```
/// use outbox_sqlite::{Keep, SqliteConfig};
/// let config = SqliteConfig::new("orders.db").with_table("order_outbox").with_keep(Keep::Archive);
/// assert_eq!(config.table, "order_outbox");
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SqliteConfig {
    /// The database file: the application's own, so that an event commits with the change it tells of.
    pub file: PathBuf,
    /// The outbox table, and the prefix of the tables beside it (`<table>_lanes`, …). Default: `outbox`.
    pub table: String,
    /// Lanes of the table, 1 to [`Self::MAX_LANES`], fixed when it is created. Default: 16.
    pub lanes: u16,
    /// The file's journal. Default: [`Journal::Wal`].
    pub journal: Journal,
    /// How long a statement waits for another writer before it fails as unavailable. Default: 4 s, just below the
    /// relay's deadline of a settle, so that the error tells the reason.
    pub busy_timeout: Duration,
    /// What becomes of delivered events. Default: [`Keep::Delete`].
    pub keep: Keep,
    /// Whether writers number the events of each aggregate (header `outbox-sequence`), so that consumers notice what is
    /// missing: one more statement an append. Consumers set it too, for the table of what they have accepted. Default: no.
    pub sequence: bool,
}

/// The journal of a database file. It is a property of the file: all processes see the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Journal {
    /// A write-ahead log: readers and the writer do not wait for each other. Needs shared memory, so a local disk.
    Wal,
    /// A rollback journal: a commit waits until the reads under way have ended, and reads wait for it. Where several
    /// processes write without a pause a read can find no gap within the busy time-out; the relay then tries again.
    Rollback,
}

/// What becomes of delivered events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Keep {
    /// They are deleted.
    Delete,
    /// They move to the archive table, where they stay until somebody removes them.
    Archive,
}

impl SqliteConfig {
    /// The most lanes that a table can have: a claim is one compound select, which SQLite limits to 500 parts.
    pub const MAX_LANES: u16 = 256;

    /// The longest table name in bytes.
    pub const MAX_TABLE_BYTES: usize = 48;

    /// The outbox in this file, with the default of every setting.
    #[must_use]
    pub fn new(file: impl Into<PathBuf>) -> Self {
        Self {
            file: file.into(),
            table: "outbox".to_owned(),
            lanes: 16,
            journal: Journal::Wal,
            busy_timeout: Duration::from_secs(4),
            keep: Keep::Delete,
            sequence: false,
        }
    }

    /// The outbox in the file that a URL such as `sqlite:///var/lib/orders.db` names.
    ///
    /// # Errors
    ///
    /// When the URL cannot be read, or names a database in memory: each connection would have one of its own. The error does
    /// not repeat the URL.
    pub fn from_url(url: &str) -> Result<Self, StoreError> {
        // sqlx would take the URL of another database for a file's name, which errors repeat.
        let options = url.starts_with("sqlite:").then(|| SqliteConnectOptions::from_str(url));
        let Some(Ok(options)) = options else {
            return Err(StoreError::misconfigured(
                "the database url is no sqlite url: write sqlite:///path/of/the/file",
            ));
        };
        if url.contains(":memory:") || url.contains("mode=memory") {
            return Err(StoreError::misconfigured(
                "the database url names a database in memory, which connections do not share: name a file",
            ));
        }
        Ok(Self::new(options.get_filename()))
    }

    /// With this table name: letters, digits and `_`, not a digit first, at most [`Self::MAX_TABLE_BYTES`].
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

    /// With this journal.
    #[must_use]
    pub fn with_journal(mut self, journal: Journal) -> Self {
        self.journal = journal;
        self
    }

    /// With this patience for other writers.
    #[must_use]
    pub fn with_busy_timeout(mut self, busy_timeout: Duration) -> Self {
        self.busy_timeout = busy_timeout;
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

    /// How to open the file, for the application's own pool: busy time-out as set, every commit on the disk
    /// (`synchronous = full`), and no file created where none is.
    #[must_use]
    pub fn connect_options(&self) -> SqliteConnectOptions {
        SqliteConnectOptions::new()
            .filename(&self.file)
            .busy_timeout(self.busy_timeout)
            .synchronous(SqliteSynchronous::Full)
    }

    /// For messages.
    pub(crate) fn place(&self) -> String {
        format!("table {:?} of {}", self.table, self.file.display())
    }

    /// The inbox beside the outbox.
    pub(crate) fn inbox(&self) -> InboxTable {
        InboxTable::beside(&self.table)
    }

    pub(crate) fn validate(&self) -> Result<(), StoreError> {
        check_name("table name", &self.table)?;
        if !(1..=Self::MAX_LANES).contains(&self.lanes) {
            let lanes = self.lanes;
            return Err(StoreError::misconfigured(format!(
                "lanes is {lanes}, 1 to {} are possible",
                Self::MAX_LANES
            )));
        }
        if self.file.as_os_str().is_empty() || self.file == Path::new(":memory:") {
            return Err(StoreError::misconfigured(
                "the database must be a file: connections do not share one in memory",
            ));
        }
        if !(Duration::from_millis(1)..=Timing::MAX).contains(&self.busy_timeout) {
            return Err(StoreError::misconfigured(format!(
                "busy_timeout is {:?}, 1 ms to 1 day are possible",
                self.busy_timeout
            )));
        }
        Ok(())
    }
}

/// Names that need no more than quotes, in every index that carries them.
pub(crate) fn check_name(what: &str, name: &str) -> Result<(), StoreError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let starts_well = name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
    if !starts_well
        || name.len() > SqliteConfig::MAX_TABLE_BYTES
        || !name.bytes().all(plain)
        || name.to_ascii_lowercase().starts_with("sqlite_")
    {
        return Err(StoreError::misconfigured(format!(
            "{what} {name:?} must have 1 to {} letters, digits or _, must not start with a digit or sqlite_",
            SqliteConfig::MAX_TABLE_BYTES
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_the_file() {
        let config = SqliteConfig::from_url("sqlite:///var/lib/orders.db").unwrap();
        assert_eq!(config.file, Path::new("/var/lib/orders.db"));
        assert!(SqliteConfig::from_url("sqlite::memory:").is_err());
    }

    #[test]
    fn the_url_of_another_database_is_no_file() {
        let error = SqliteConfig::from_url("postgres://alice:hush@db/shop").unwrap_err();
        assert!(!format!("{error:?}").contains("hush"), "{error:?}");
    }

    /// B231
    #[test]
    fn names_that_would_need_more_than_quotes_are_refused() {
        for table in ["", "1a", "a b", "a\"b", "sqlite_x", "ä", &"x".repeat(49)] {
            assert!(SqliteConfig::new("f").with_table(table).validate().is_err(), "{table}");
        }
        for table in ["a", "_", "Order", &"x".repeat(48)] {
            assert!(SqliteConfig::new("f").with_table(table).validate().is_ok(), "{table}");
        }
    }

    #[test]
    fn a_patience_without_an_end_is_refused_by_name() {
        let config = |time| SqliteConfig::new("f").with_busy_timeout(time).validate();
        for time in [Duration::ZERO, Duration::from_micros(999), Duration::MAX] {
            let error = config(time).unwrap_err().to_string();
            assert!(error.starts_with("busy_timeout"), "{error}");
        }
        config(Duration::from_millis(1)).unwrap();
        config(Duration::from_secs(86_400)).unwrap();
    }

    #[test]
    fn memory_and_impossible_lane_counts_are_refused() {
        assert!(SqliteConfig::new(":memory:").validate().is_err());
        assert!(SqliteConfig::new("f").with_lanes(0).validate().is_err());
        assert!(SqliteConfig::new("f").with_lanes(257).validate().is_err());
        assert!(SqliteConfig::new("f").with_lanes(256).validate().is_ok());
    }
}
