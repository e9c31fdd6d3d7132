//! `kind = "mysql"`, for MySQL and MariaDB.

use std::sync::Arc;

use outbox::Store;
use outbox::mysql::{Keep, MySqlConfig, MySqlStore, PayloadType};

use super::{AdapterError, choices, settings};
use crate::config::{Secret, Settings, Span};

settings!(MySql of MySqlConfig: url: Secret;
    table: String,
    lanes: u16,
    payload: Payload,
    keep: Keeping,
    sequence: bool,
    pin_server: bool,
    pool_size: u32,
    connect_timeout: Span,
    statement_timeout: Span,
    lock_timeout: Span,
);
choices!(Payload of PayloadType: LongText, LongBlob);
choices!(Keeping of Keep: Delete, Archive);

impl MySql {
    pub(crate) fn config(self) -> Result<MySqlConfig, AdapterError> {
        let mut config = MySqlConfig::from_url(self.url.reveal())?;
        self.fill(&mut config);
        Ok(config)
    }
}

pub(super) async fn store(settings: Settings) -> Result<Arc<dyn Store>, AdapterError> {
    let config = settings.read::<MySql>()?.config()?;
    Ok(Arc::new(MySqlStore::new(&config)?))
}
