//! A relay in the test's own process.

use std::sync::Arc;

use outbox::kafka::{KafkaConfig, KafkaPublisher};
use outbox::postgres::PostgresStore;
use outbox::{Relay, StoreError};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::database::Database;

/// A relay of this database to this broker, with the defaults.
pub(crate) fn relay(database: &Database, bootstrap: &str) -> Relay {
    let publisher = KafkaPublisher::new(&KafkaConfig::new(bootstrap)).unwrap();
    Relay::new(Arc::new(PostgresStore::new(&database.config).unwrap()), Arc::new(publisher))
}

/// A relay at work.
#[derive(Debug)]
pub(crate) struct RelayTask {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), StoreError>>,
}

impl RelayTask {
    pub(crate) fn start(relay: Relay) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        Self { stop, task: tokio::spawn(relay.run(async { _ = stopped.await })) }
    }

    /// Ends it cleanly.
    pub(crate) async fn stop(self) {
        drop(self.stop);
        self.task.await.unwrap().unwrap();
    }
}
