//! The command `check`: whether a file could be run, without delivering anything.

use std::future::Future;
use std::path::Path;
use std::time::Duration;

use outbox::{Store, StoreError, Worker};

use crate::config::{Config, PipelineConfig};
use crate::kinds::{Daemon, Ends, chain};

/// How long each end may take to answer.
const PATIENCE: Duration = Duration::from_secs(15);

/// Prints a line for each end of each pipeline, and returns whether all are well.
pub(crate) async fn check(daemon: &Daemon, file: &Path) -> anyhow::Result<bool> {
    let config = Config::read(file)?;
    let mut ends = Vec::new();
    for pipeline in &config.pipelines {
        ends.push(daemon.ends(pipeline).await?);
    }
    let mut well = true;
    for (pipeline, Ends { store, publisher }) in config.pipelines.iter().zip(ends) {
        let (name, source) = (pipeline.pipeline.name(), pipeline.source.kind());
        well &= tell(name, "source", source, &within(join(pipeline, &*store)).await);
        let kind = pipeline.publisher.kind();
        well &= tell(name, "publisher", kind, &within(publisher.check()).await);
    }
    println!("{}: {} pipelines", file.display(), config.pipelines.len());
    Ok(well)
}

fn tell(pipeline: &str, end: &str, kind: &str, result: &Result<(), String>) -> bool {
    match result {
        Ok(()) => println!("{pipeline}: {end} {kind}: well"),
        Err(reason) => println!("{pipeline}: {end} {kind}: {reason}"),
    }
    result.is_ok()
}

/// What a relay does first: it looks at tables and rights, enters itself as a worker, and, other than a relay, signs off
/// at once. It takes no lane.
async fn join(pipeline: &PipelineConfig, store: &dyn Store) -> Result<(), StoreError> {
    let worker = Worker::new(pipeline.pipeline.clone(), "outbox-relay check".to_owned());
    store.join(&worker).await?;
    store.leave(&worker).await
}

async fn within<E: std::error::Error + 'static>(
    probe: impl Future<Output = Result<(), E>>,
) -> Result<(), String> {
    match tokio::time::timeout(PATIENCE, probe).await {
        Ok(result) => result.map_err(|error| chain(&error)),
        Err(_) => Err(format!("no answer within {PATIENCE:?}")),
    }
}
