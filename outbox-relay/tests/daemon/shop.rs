//! Services with an outbox in SQLite, and the daemon's file for them, in one folder.

use std::fmt::Write as _;
use std::path::PathBuf;

use outbox::NewEvent;
use outbox::sqlite::sqlx::{AssertSqlSafe, SqlitePool, query_scalar};
use outbox::sqlite::{Schema, SqliteConfig, SqliteOutbox};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// The head of a file whose daemon takes any free port and writes JSON log lines.
pub(crate) const HEAD: &str =
    "[http]\nlisten = \"127.0.0.1:0\"\n[log]\nformat = \"json\"\nlevel = \"info\"\n";

pub(crate) struct Folder {
    folder: TempDir,
    runtime: Runtime,
}

impl Folder {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), runtime: Runtime::new().unwrap() }
    }

    /// Writes the daemon's file.
    pub(crate) fn file(&self, text: &str) -> PathBuf {
        let file = self.folder.path().join("outbox-relay.toml");
        std::fs::write(&file, text).unwrap();
        file
    }

    /// The table of a pipeline from the database of its own name to standard output, with these lines in it.
    pub(crate) fn pipeline(&self, name: &str, lines: &str) -> String {
        self.pipeline_to(name, lines, "kind = \"stdout\"")
    }

    pub(crate) fn pipeline_to(&self, name: &str, lines: &str, publisher: &str) -> String {
        let mut text = String::new();
        let database = self.path(name);
        write!(
            text,
            "[[pipeline]]\nname = {name:?}\n{lines}\n[pipeline.source]\nkind = \"sqlite\"\nfile = {database:?}\n\
             [pipeline.publisher]\n{publisher}\n"
        )
        .unwrap();
        text
    }

    /// Makes the database of this name, with an outbox.
    pub(crate) fn database(&self, name: &str) -> Database<'_> {
        let config = SqliteConfig::new(self.path(name));
        let pool = self.runtime.block_on(async {
            Schema::new(&config).unwrap().migrate().await.unwrap();
            SqlitePool::connect_with(config.connect_options()).await.unwrap()
        });
        let outbox = SqliteOutbox::new(&config).unwrap();
        Database { pool, outbox, runtime: &self.runtime }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name).with_extension("db")
    }
}

pub(crate) struct Database<'a> {
    pool: SqlitePool,
    outbox: SqliteOutbox,
    runtime: &'a Runtime,
}

impl Database<'_> {
    /// Writes, in one transaction, an event about this aggregate for each number, with the number as its payload.
    pub(crate) fn write(&self, aggregate: &str, numbers: std::ops::Range<u32>) {
        self.write_payloads(aggregate, numbers.map(|number| number.to_string()));
    }

    pub(crate) fn write_payload(&self, aggregate: &str, payload: &str) {
        self.write_payloads(aggregate, [payload.to_owned()]);
    }

    fn write_payloads(&self, aggregate: &str, payloads: impl IntoIterator<Item = String>) {
        let event =
            |payload| NewEvent::builder("order", aggregate, "Counted").payload(payload).build();
        let events: Vec<NewEvent> =
            payloads.into_iter().map(|payload| event(payload).unwrap()).collect();
        self.runtime.block_on(async {
            let mut transaction = self.outbox.begin(&self.pool).await.unwrap();
            self.outbox.append(&mut transaction, &events).await.unwrap();
            self.outbox.commit(transaction).await.unwrap();
        });
    }

    /// The one number that this query gives.
    pub(crate) fn count(&self, sql: &str) -> i64 {
        let count = query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&self.pool);
        self.runtime.block_on(count).unwrap()
    }

    pub(crate) fn pending(&self) -> i64 {
        self.count("select count(*) from outbox")
    }
}
