//! All pipelines of the daemon, and how a changed file is applied to them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::config::{Config, ConfigError};
use crate::kinds::Daemon;
use crate::pipeline::{Pipeline, Status};

/// How often it is looked at whether pipelines move.
const LOOK: Duration = Duration::from_secs(1);

/// The pipelines by name. Clones share them.
#[derive(Clone)]
pub(crate) struct Supervisor {
    daemon: Daemon,
    pipelines: Arc<Mutex<Pipelines>>,
}

#[derive(Default)]
struct Pipelines {
    by_name: BTreeMap<String, Pipeline>,
    /// Those that the last file had no more, or had changed; some may not have ended.
    old: Vec<Pipeline>,
}

impl Supervisor {
    pub(crate) fn new(daemon: Daemon) -> Self {
        Self { daemon, pipelines: Arc::default() }
    }

    /// Makes the pipelines those of this file: new ones start, removed ones stop, a changed one starts when its old self has
    /// stopped, and the others are not touched.
    ///
    /// # Errors
    ///
    /// When an adapter refuses its settings; nothing has changed then.
    pub(crate) async fn apply(&self, config: Config) -> Result<(), ConfigError> {
        let running = self.pipelines().by_name.clone();
        let mut next = BTreeMap::new();
        let mut starting = Vec::new();
        for pipeline in config.pipelines {
            let name = pipeline.pipeline.name().to_owned();
            match running.get(&name).filter(|running| running.config.is_same(&pipeline)) {
                Some(unchanged) => _ = next.insert(name, unchanged.clone()),
                None => starting.push((name, self.daemon.ends(&pipeline).await?, pipeline)),
            }
        }
        let is_old = |(name, _): &(&String, &Pipeline)| !next.contains_key(*name);
        let old: Vec<Pipeline> =
            running.iter().filter(is_old).map(|(_, pipeline)| pipeline.clone()).collect();
        for pipeline in &old {
            tracing::info!(pipeline = pipeline.name(), "the file has changed it or has it no more");
            pipeline.stop();
        }
        for (name, ends, pipeline) in starting {
            // One of a new name may take over the types of one that was removed.
            let after = match running.get(&name) {
                Some(earlier) => vec![earlier.clone()],
                None => old.clone(),
            };
            let pipeline = Pipeline::start(self.daemon.clone(), pipeline, ends, after);
            next.insert(name, pipeline);
        }
        let mut pipelines = self.pipelines();
        pipelines.by_name = next;
        pipelines.old.retain(|pipeline| !pipeline.has_ended());
        pipelines.old.extend(old);
        Ok(())
    }

    /// Stops all pipelines, and returns when each has ended what it had begun.
    pub(crate) async fn stop(&self) {
        let all: Vec<Pipeline> = {
            let pipelines = self.pipelines();
            pipelines.by_name.values().chain(&pipelines.old).cloned().collect()
        };
        all.iter().for_each(Pipeline::stop);
        for pipeline in all {
            pipeline.ended().await;
        }
    }

    /// Looks every second whether pipelines move. Never returns.
    pub(crate) async fn watch(&self) {
        let mut ticks = tokio::time::interval(LOOK);
        loop {
            let now = ticks.tick().await.into_std();
            self.pipelines().by_name.values().for_each(|pipeline| pipeline.look(now));
        }
    }

    pub(crate) fn statuses(&self) -> Vec<Status> {
        let now = Instant::now();
        self.pipelines().by_name.values().map(|pipeline| pipeline.status(now)).collect()
    }

    /// Events that all pipelines together have delivered.
    #[cfg(feature = "sqlite")]
    pub(crate) fn delivered(&self) -> u64 {
        self.statuses().iter().map(|status| status.delivered).sum()
    }

    fn pipelines(&self) -> MutexGuard<'_, Pipelines> {
        self.pipelines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use outbox::memory::{MemoryPublisher, MemoryStore};
    use outbox::{
        ClaimRequest, Claimed, NewEvent, Publisher, Settled, Settlements, Store, StoreError,
        Worker, Writer as _, async_trait,
    };
    use serde_json::json;

    use super::Supervisor;
    use crate::{AdapterError, Config, Daemon, Settings};

    /// A store that panics when a relay joins it.
    #[derive(Debug)]
    struct Panics;

    #[async_trait]
    impl Store for Panics {
        async fn join(&self, _: &Worker) -> Result<u16, StoreError> {
            panic!("a test's own panic");
        }

        async fn claim(&self, _: &ClaimRequest) -> Result<Claimed, StoreError> {
            unreachable!("nobody joins")
        }

        async fn settle(&self, _: &Settlements) -> Result<Settled, StoreError> {
            unreachable!("nobody joins")
        }
    }

    /// A store that no relay may join.
    #[derive(Debug)]
    struct Refuses;

    #[async_trait]
    impl Store for Refuses {
        async fn join(&self, _: &Worker) -> Result<u16, StoreError> {
            Err(StoreError::misconfigured("a test's own refusal"))
        }

        async fn claim(&self, _: &ClaimRequest) -> Result<Claimed, StoreError> {
            unreachable!("nobody joins")
        }

        async fn settle(&self, _: &Settlements) -> Result<Settled, StoreError> {
            unreachable!("nobody joins")
        }
    }

    #[tokio::test]
    async fn a_panic_in_one_pipeline_leaves_the_others_delivering() {
        let (store, publisher) = (MemoryStore::new(), MemoryPublisher::new());
        let supervisor = Supervisor::new(daemon(&store, &publisher));
        let pipelines = [("well", "memory"), ("joining", "panics"), ("starting", "panics_later")];
        supervisor.apply(config(&pipelines)).await.unwrap();
        let reason = |name: &str| {
            let statuses = json!(supervisor.statuses());
            let mut statuses = statuses.as_array().unwrap().iter();
            let status = statuses.find(|status| status["name"] == name).unwrap();
            status["reason"].as_str().unwrap_or_default().to_owned()
        };
        until(|| reason("joining").contains("the pipeline panicked")).await;
        until(|| reason("starting").contains("its factory panicked")).await;

        let mut transaction = store.begin();
        let event = NewEvent::builder("order", "order-1", "Paid").build().unwrap();
        store.append(&mut transaction, &[event]).await.unwrap();
        transaction.commit();
        publisher.wait_for(1, Duration::from_secs(30)).await;
        supervisor.stop().await;
        assert_eq!(reason("well"), "");
    }

    #[tokio::test]
    async fn what_cannot_start_stops_at_once() {
        let supervisor = Supervisor::new(daemon(&MemoryStore::new(), &MemoryPublisher::new()));
        supervisor.apply(config(&[("refused", "panics_later")])).await.unwrap();
        until(|| json!(supervisor.statuses())[0]["state"] == "failed").await;
        let stopped = tokio::time::timeout(Duration::from_millis(500), supervisor.stop()).await;
        assert!(stopped.is_ok(), "it does not wait for the next start");
    }

    fn daemon(store: &MemoryStore, publisher: &MemoryPublisher) -> Daemon {
        let (store, publisher) = (store.clone(), publisher.clone());
        let calls = Arc::new(AtomicUsize::new(0));
        Daemon::new()
            .register_store("memory", move |_: Settings| made(Arc::new(store.clone())))
            .register_store("panics", |_: Settings| made(Arc::new(Panics)))
            .register_store("panics_later", move |_: Settings| {
                assert!(calls.fetch_add(1, Ordering::Relaxed) == 0, "a test's own panic");
                made(Arc::new(Refuses))
            })
            .register_publisher("memory", move |_: Settings| {
                let publisher: Arc<dyn Publisher> = Arc::new(publisher.clone());
                std::future::ready(Ok(publisher))
            })
    }

    fn made(store: Arc<dyn Store>) -> std::future::Ready<Result<Arc<dyn Store>, AdapterError>> {
        std::future::ready(Ok(store))
    }

    /// Pipelines of these names from these kinds of sources.
    fn config(pipelines: &[(&str, &str)]) -> Config {
        let table = |(name, kind): &(&str, &str)| {
            format!(
                "[[pipeline]]\nname = {name:?}\n[pipeline.source]\nkind = {kind:?}\n\
                 [pipeline.publisher]\nkind = \"memory\"\n"
            )
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, pipelines.iter().map(table).collect::<String>()).unwrap();
        Config::read(file.path()).unwrap()
    }

    async fn until(is: impl Fn() -> bool) {
        let begin = Instant::now();
        while !is() {
            assert!(begin.elapsed() < Duration::from_secs(30), "not within 30 s");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
