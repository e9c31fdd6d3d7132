//! Writers at work, as many transactions as they are told to, and what they meant by them.

use std::sync::Arc;

use outbox::async_trait;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::checker::Intent;

/// A service that changes its data and appends events about it.
#[async_trait]
pub(crate) trait Writer: Send {
    /// One business transaction, to its end; returns what it appended, rolled back or not.
    async fn transaction(&mut self) -> Vec<Intent>;
}

/// Writers at work.
pub(crate) struct Workload {
    gate: Arc<Semaphore>,
    written: watch::Receiver<usize>,
    writers: JoinSet<Vec<Intent>>,
}

impl Workload {
    /// The writers start, and wait for [`release`](Self::release).
    pub(crate) fn start(writers: impl IntoIterator<Item = Box<dyn Writer>>) -> Self {
        let gate = Arc::new(Semaphore::new(0));
        let (counter, written) = watch::channel(0);
        let writers = writers
            .into_iter()
            .map(|writer| write(writer, gate.clone(), counter.clone()))
            .collect();
        Self { gate, written, writers }
    }

    /// Lets the writers make this many transactions more.
    pub(crate) fn release(&self, transactions: usize) {
        self.gate.add_permits(transactions);
    }

    /// Returns when this many transactions have ended since the start.
    pub(crate) async fn written(&mut self, transactions: usize) {
        let enough = self.written.wait_for(|written| *written >= transactions);
        enough.await.expect("no writer ends before it is told to");
    }

    /// Ends the writers and returns what they appended.
    pub(crate) async fn finish(self) -> Vec<Intent> {
        self.gate.close();
        self.writers.join_all().await.concat()
    }
}

async fn write(
    mut writer: Box<dyn Writer>,
    gate: Arc<Semaphore>,
    counter: watch::Sender<usize>,
) -> Vec<Intent> {
    let mut intents = Vec::new();
    while let Ok(permit) = gate.acquire().await {
        permit.forget();
        intents.extend(writer.transaction().await);
        counter.send_modify(|written| *written += 1);
    }
    intents
}
