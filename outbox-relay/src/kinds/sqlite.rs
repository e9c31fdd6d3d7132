//! `kind = "sqlite"`.

use std::path::PathBuf;
use std::sync::Arc;

use outbox::Store;
use outbox::sqlite::{Journal, Keep, SqliteConfig, SqliteStore};

use super::{AdapterError, choices, settings};
use crate::config::{Settings, Span};

settings!(Sqlite of SqliteConfig: file: PathBuf;
    table: String,
    lanes: u16,
    journal: JournalMode,
    keep: Keeping,
    sequence: bool,
    busy_timeout: Span,
);
choices!(JournalMode of Journal: Wal, Rollback);
choices!(Keeping of Keep: Delete, Archive);

impl Sqlite {
    pub(crate) fn config(self) -> SqliteConfig {
        let mut config = SqliteConfig::new(&self.file);
        self.fill(&mut config);
        config
    }
}

pub(super) async fn store(settings: Settings) -> Result<Arc<dyn Store>, AdapterError> {
    let config = settings.read::<Sqlite>()?.config();
    Ok(Arc::new(SqliteStore::new(&config)?))
}
