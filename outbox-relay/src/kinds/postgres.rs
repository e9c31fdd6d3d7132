//! `kind = "postgres"`.

use std::sync::Arc;

use outbox::Store;
use outbox::postgres::{Keep, PayloadType, PostgresConfig, PostgresStore};

use super::{AdapterError, choices, settings};
use crate::config::{Secret, Settings, Span};

settings!(Postgres of PostgresConfig: url: Secret;
    schema: String,
    table: String,
    lanes: u16,
    payload: Payload,
    keep: Keeping,
    unique_id: bool,
    sequence: bool,
    pooled: bool,
    pin_timeline: bool,
    pool_size: u32,
    connect_timeout: Span,
    statement_timeout: Span,
    lock_timeout: Span,
);
choices!(Payload of PayloadType: Json, Jsonb, Text, Bytea);
choices!(Keeping of Keep: Delete, Archive);

impl Postgres {
    pub(crate) fn config(self) -> Result<PostgresConfig, AdapterError> {
        let mut config = PostgresConfig::from_url(self.url.reveal())?;
        self.fill(&mut config);
        Ok(config)
    }
}

pub(super) async fn store(settings: Settings) -> Result<Arc<dyn Store>, AdapterError> {
    let config = settings.read::<Postgres>()?.config()?;
    Ok(Arc::new(PostgresStore::new(&config)?))
}
