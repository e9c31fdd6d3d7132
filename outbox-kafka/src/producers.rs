//! The producers of a publisher: one for all topics, one for those that refused, and new ones in their place.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use outbox_core::{Failure, FailureClass, PublishError};
use rdkafka::ClientConfig;
use tokio::task::spawn_blocking;

use crate::live::{Live, Role};
use crate::refusals::Refusals;

/// Producers that may break per [`REPLACEMENT_PERIOD`] by anything but the refusals of a topic.
const MAX_REPLACEMENTS: usize = 20;
const REPLACEMENT_PERIOD: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Producers {
    client: ClientConfig,
    main: Mutex<Arc<Live>>,
    /// Made when a topic first refuses.
    careful: Mutex<Option<Arc<Live>>>,
    refusals: Arc<Refusals>,
    /// When the latest producers broke. Locked while one is replaced or abandoned.
    broken: Mutex<VecDeque<Instant>>,
    /// How often the messages were abandoned.
    abandons: AtomicU64,
}

impl Producers {
    pub(crate) fn open(client: ClientConfig) -> Result<Self, PublishError> {
        let refusals = Arc::default();
        Ok(Self {
            main: Mutex::new(Live::open(&client, Role::Main, 0, &refusals)?),
            careful: Mutex::default(),
            client,
            refusals,
            broken: Mutex::default(),
            abandons: AtomicU64::new(0),
        })
    }

    /// The producer for all topics; it may be closed.
    pub(crate) fn main(&self) -> Arc<Live> {
        lock(&self.main).clone()
    }

    /// The latest refusals.
    pub(crate) fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// How often the messages were abandoned.
    pub(crate) fn era(&self) -> u64 {
        self.abandons.load(Ordering::SeqCst)
    }

    /// A producer that serves calls, a new one if need be. A call from before an `abandon` gets none: it counts among what
    /// was abandoned.
    pub(crate) async fn usable(
        self: &Arc<Self>,
        role: Role,
        era: u64,
    ) -> Result<Arc<Live>, Failure> {
        let live = match self.current(role).filter(|live| !live.is_closing()) {
            Some(live) => live,
            None => {
                let producers = self.clone();
                spawn_blocking(move || producers.replace(role)).await.unwrap_or_else(|_| {
                    Err(Failure::new(FailureClass::Unavailable, "no kafka producer could be made"))
                })?
            }
        };
        if live.era() == era { Ok(live) } else { Err(abandoned()) }
    }

    /// Ends what is open, and with it every call that has begun. Blocks.
    pub(crate) fn abandon(&self) {
        // First: a producer that is made from now on serves no call from before.
        self.abandons.fetch_add(1, Ordering::SeqCst);
        let _replacing = lock(&self.broken);
        for live in self.all() {
            live.abandon(self.era());
        }
    }

    pub(crate) fn close_in_background(&self, failure: &Failure) {
        for live in self.all() {
            live.close_in_background(failure.clone());
        }
    }

    /// The figures of the producer for all topics, and how many topics refuse.
    pub(crate) fn stats(&self) -> Vec<(&'static str, f64)> {
        let mut stats = self.main().context().latest_stats();
        stats.push(("refusing_topics", self.refusals.closed() as f64));
        stats
    }

    fn all(&self) -> impl Iterator<Item = Arc<Live>> {
        [Role::Main, Role::Careful].into_iter().filter_map(|role| self.current(role))
    }

    fn current(&self, role: Role) -> Option<Arc<Live>> {
        match role {
            Role::Main => Some(self.main()),
            Role::Careful => lock(&self.careful).clone(),
        }
    }

    /// Makes a producer in place of one that is closed or not there. Blocks.
    fn replace(&self, role: Role) -> Result<Arc<Live>, Failure> {
        let mut broken = lock(&self.broken);
        if let Some(old) = self.current(role) {
            if !old.is_closing() {
                return Ok(old);
            }
            old.close(Some(&closed_early()));
            let was_abandoned = old.era() != self.era();
            if !was_abandoned && !old.broke_by_topic() {
                count(&mut broken)?;
            }
        }
        let live = Live::open(&self.client, role, self.era(), &self.refusals)
            .map_err(|error| Failure::new(FailureClass::Unavailable, error.to_string()))?;
        match role {
            Role::Main => *lock(&self.main) = live.clone(),
            Role::Careful => *lock(&self.careful) = Some(live.clone()),
        }
        Ok(live)
    }
}

fn count(broken: &mut VecDeque<Instant>) -> Result<(), Failure> {
    broken.retain(|broken| broken.elapsed() < REPLACEMENT_PERIOD);
    if broken.len() >= MAX_REPLACEMENTS {
        return Err(Failure::new(
            FailureClass::Unavailable,
            format!("the kafka producer broke {MAX_REPLACEMENTS} times within a minute"),
        ));
    }
    broken.push_back(Instant::now());
    Ok(())
}

fn abandoned() -> Failure {
    Failure::new(FailureClass::Unavailable, "the message was abandoned before it was sent")
}

pub(crate) fn closed_early() -> Failure {
    Failure::new(
        FailureClass::Unavailable,
        "the kafka producer was closed before the message was sent",
    )
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic while it is locked")
}

#[cfg(test)]
mod tests {
    use outbox_core::Batch;

    use super::*;
    use crate::KafkaConfig;
    use crate::wire::tests::message;

    /// The relay abandons when it starts: that must not cost a second producer.
    #[tokio::test]
    async fn a_producer_that_no_call_has_used_outlives_an_abandon() {
        let client = KafkaConfig::new("127.0.0.1:1").client().unwrap();
        let producers = Arc::new(Producers::open(client).unwrap());
        let first = producers.main();
        producers.abandon();
        let again = producers.usable(Role::Main, 1).await.unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        assert!(producers.usable(Role::Main, 0).await.is_err(), "a call from before");

        again.context().slots.open(&Batch::new(vec![message("t")]), 1, 1).unwrap();
        let abandoning = producers.clone();
        spawn_blocking(move || abandoning.abandon()).await.unwrap();
        let another = producers.usable(Role::Main, 2).await.unwrap();
        assert!(!Arc::ptr_eq(&first, &another));
    }
}
