//! The messages of one publish call, and the verdicts on them.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::headers;
use crate::publisher::Failure;
use crate::{Event, EventId};

/// An event with its destination.
#[derive(Clone, Debug)]
pub struct Message {
    event: Event,
    destination: Arc<str>,
}

impl Message {
    /// The message that carries `event` to `destination`.
    #[must_use]
    pub fn new(event: Event, destination: Arc<str>) -> Self {
        Self { event, destination }
    }

    /// Topic, exchange or queue, as the router named it.
    #[must_use]
    pub fn destination(&self) -> &Arc<str> {
        &self.destination
    }

    /// The message's key: the aggregate id. `None` is no key, an empty one is a key of zero bytes.
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        self.event.aggregate_id().map(str::as_bytes)
    }

    /// The message's body; `None` is a tombstone, an empty one a body of zero bytes.
    #[must_use]
    pub fn payload(&self) -> Option<&[u8]> {
        self.event.payload()
    }

    /// The event's identity: header `id` on the wire.
    #[must_use]
    pub fn id(&self) -> &EventId {
        self.event.id()
    }

    /// The event's type: header `eventType` on the wire.
    #[must_use]
    pub fn event_type(&self) -> &str {
        self.event.event_type()
    }

    /// When the event was written, by the database's clock, in microseconds since 1970.
    #[must_use]
    pub fn created_at_micros(&self) -> i64 {
        self.event.created_at_micros()
    }

    /// Counted failed attempts so far.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.event.attempts()
    }

    /// Calls `each` with name and value of every header of the event's own, in their order.
    ///
    /// The relay has checked them before the call: they are well-formed.
    pub fn for_each_header(&self, mut each: impl FnMut(&str, &str)) {
        if let Some(json) = self.event.headers() {
            // Checked by the relay before the call; a broken tail adds nothing.
            let _ = headers::for_each(json, &mut each);
        }
    }

    /// The value of the header `name`, if the event carries it.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<String> {
        let mut found = None;
        self.for_each_header(|header, value| {
            if header == name {
                found = Some(value.to_owned());
            }
        });
        found
    }

    /// The payload's media type, from the event's own header `content-type`.
    #[must_use]
    pub fn content_type(&self) -> Option<String> {
        self.header("content-type")
    }

    /// Which replay of the event this is, from 1; `None` is its first life.
    #[must_use]
    pub fn replay(&self) -> Option<u32> {
        self.header(headers::REPLAY)?.parse().ok()
    }

    /// The event itself.
    #[must_use]
    pub fn event(&self) -> &Event {
        &self.event
    }
}

/// The messages of one publish call, and a slot for the verdict on each. Cloning shares both.
///
/// The first verdict on a message stands; later ones are ignored. All methods may be called from any thread.
#[derive(Clone)]
pub struct Batch(Arc<Inner>);

struct Inner {
    messages: Vec<Message>,
    slots: Vec<AtomicU8>,
    failures: Mutex<HashMap<usize, Failure>>,
    /// Messages without a verdict.
    open: AtomicUsize,
    all_settled: Notify,
}

const OPEN: u8 = 0;
const CONFIRMED: u8 = 1;
const FAILED: u8 = 2;
/// Claimed by a refusal whose reason is not stored yet.
const FAILING: u8 = 3;

impl Batch {
    /// A batch without verdicts.
    #[must_use]
    pub fn new(messages: Vec<Message>) -> Self {
        let slots = messages.iter().map(|_| AtomicU8::new(OPEN)).collect();
        let open = AtomicUsize::new(messages.len());
        Self(Arc::new(Inner {
            messages,
            slots,
            failures: Mutex::default(),
            open,
            all_settled: Notify::new(),
        }))
    }

    /// The messages, to be sent in this order.
    #[must_use]
    pub fn messages(&self) -> &[Message] {
        &self.0.messages
    }

    /// How many messages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.messages.len()
    }

    /// Whether there is no message.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.messages.is_empty()
    }

    /// Records that the broker has taken the message at `index` for good; `false` when it had a verdict already.
    ///
    /// # Panics
    ///
    /// When there is no such message: a publisher's bug, caught at its call.
    pub fn confirm(&self, index: usize) -> bool {
        let slot = &self.0.slots[index];
        let new =
            slot.compare_exchange(OPEN, CONFIRMED, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if new {
            self.settled_one();
        }
        new
    }

    /// Records that the message at `index` failed; `false` when it had a verdict already.
    ///
    /// # Panics
    ///
    /// When there is no such message: a publisher's bug, caught at its call.
    pub fn refuse(&self, index: usize, failure: Failure) -> bool {
        let slot = &self.0.slots[index];
        let new = slot.compare_exchange(OPEN, FAILING, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if new {
            self.failures().insert(index, failure);
            slot.store(FAILED, Ordering::Release);
            self.settled_one();
        }
        new
    }

    /// Records `failure` for every message that has no verdict.
    pub fn refuse_open(&self, failure: &Failure) {
        for index in 0..self.len() {
            if self.0.slots[index].load(Ordering::Acquire) == OPEN {
                self.refuse(index, failure.clone());
            }
        }
    }

    /// The verdict on the message at `index`; `None` while it is open.
    #[must_use]
    pub fn verdict(&self, index: usize) -> Option<Verdict> {
        match self.0.slots[index].load(Ordering::Acquire) {
            CONFIRMED => Some(Verdict::Confirmed),
            FAILED => self.failures().get(&index).cloned().map(Verdict::Failed),
            _ => None,
        }
    }

    /// How many messages have no verdict.
    #[must_use]
    pub fn open(&self) -> usize {
        self.0.open.load(Ordering::Acquire)
    }

    /// Returns when every message has a verdict. Cancel safe.
    pub async fn all_settled(&self) {
        loop {
            let all_settled = self.0.all_settled.notified();
            if self.open() == 0 {
                return;
            }
            all_settled.await;
        }
    }

    /// Whether nobody else holds the batch, so that no verdict can come any more.
    pub(crate) fn is_orphaned(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    fn settled_one(&self) {
        let was = self.0.open.fetch_sub(1, Ordering::AcqRel);
        if was == 1 {
            self.0.all_settled.notify_waiters();
        }
    }

    fn failures(&self) -> std::sync::MutexGuard<'_, HashMap<usize, Failure>> {
        self.0.failures.lock().expect("no panic while the failures are locked")
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("len", &self.len()).field("open", &self.open()).finish()
    }
}

/// The verdict on one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The broker has taken it for good.
    Confirmed,
    /// It was not taken, and it will not be any more.
    Failed(Failure),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publisher::FailureClass;
    use crate::testing::event;

    fn batch(len: usize) -> Batch {
        Batch::new((0..len).map(|at| Message::new(event(at as i64 + 1), "t".into())).collect())
    }

    #[test]
    fn the_first_verdict_stands() {
        let batch = batch(2);
        let failure = Failure::new(FailureClass::Transient, "x");
        assert!(batch.confirm(0));
        assert!(!batch.refuse(0, failure.clone()));
        assert!(batch.refuse(1, failure.clone()));
        assert!(!batch.confirm(1));
        assert_eq!(batch.verdict(0), Some(Verdict::Confirmed));
        assert_eq!(batch.verdict(1), Some(Verdict::Failed(failure)));
        assert_eq!(batch.open(), 0);
    }

    #[tokio::test]
    async fn the_last_verdict_wakes_who_waits_for_all() {
        let batch = batch(2);
        let waiting = tokio::spawn({
            let batch = batch.clone();
            async move { batch.all_settled().await }
        });
        tokio::task::yield_now().await;
        batch.confirm(1);
        batch.confirm(0);
        waiting.await.unwrap();
    }

    #[test]
    fn a_batch_is_orphaned_once_its_publisher_let_go_of_it() {
        let batch = batch(1);
        let publisher = batch.clone();
        assert!(!batch.is_orphaned());
        drop(publisher);
        assert!(batch.is_orphaned());
    }
}
