//! A reader that stamps messages when they come, of a broker that keeps neither place nor time of what it took.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outbox::ReceivedEvent;
use tokio::task::JoinHandle;

use super::checker::Arrival;
use super::event_maker::content_of;
use super::now_ms;

/// A reader at work.
pub(crate) struct Listener {
    ending: Ending,
    task: JoinHandle<Vec<Arrival>>,
}

/// Says whether nothing more will be sent.
#[derive(Clone, Default)]
pub(crate) struct Ending(Arc<AtomicBool>);

impl Ending {
    pub(crate) fn is_near(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

impl Listener {
    /// Starts a reader that ends when the queue is empty after the ending was near.
    pub(crate) fn start<R>(read: impl FnOnce(Ending) -> R) -> Self
    where
        R: Future<Output = Vec<Arrival>> + Send + 'static,
    {
        let ending = Ending::default();
        Self { task: tokio::spawn(read(ending.clone())), ending }
    }

    /// What came, to the last message; nothing more may be sent.
    pub(crate) async fn finish(self) -> Vec<Arrival> {
        self.ending.0.store(true, Ordering::SeqCst);
        self.task.await.unwrap()
    }
}

/// Adds an event that came just now.
pub(crate) fn stamp(arrivals: &mut Vec<Arrival>, event: ReceivedEvent, queue: &str) {
    let offset = i64::try_from(arrivals.len()).expect("so many fit in no memory");
    let content = content_of(event, queue);
    arrivals.push(Arrival { partition: 0, offset, at_ms: now_ms(), content });
}
