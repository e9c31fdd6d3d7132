//! The broker: it remembers what it took, and fails as it is told.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Notify, watch};

use super::fault::{Fault, FaultRule};
use crate::{Batch, Failure, FailureClass, KeyOrder, Message, PublishError, Publisher};

/// A broker in memory. Cloning gives another handle on the same broker.
///
/// ```
/// # use outbox_core::{Failure, FailureClass};
/// use outbox_core::memory::{Fault, FaultRule, MemoryPublisher};
/// let publisher = MemoryPublisher::new();
/// let failure = Failure::new(FailureClass::Transient, "not today");
/// publisher.script(FaultRule::on_type("OrderCreated", Fault::Refuse(failure)).times(2));
/// publisher.outage(true); // everything is refused as unavailable until it is switched off
/// # publisher.outage(false);
/// ```
#[derive(Clone)]
pub struct MemoryPublisher(Arc<Inner>);

struct Inner {
    key_order: KeyOrder,
    state: Mutex<State>,
    /// A message was taken.
    taken: Notify,
    /// How often open messages were abandoned.
    abandoned: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    messages: Vec<Message>,
    rules: Vec<FaultRule>,
    outage: bool,
    calls: u64,
    tried: u64,
}

impl MemoryPublisher {
    /// A broker that keeps the order of each key: [`KeyOrder::Prefix`].
    #[must_use]
    pub fn new() -> Self {
        Self::with_key_order(KeyOrder::Prefix)
    }

    /// A broker that keeps this order.
    #[must_use]
    pub fn with_key_order(key_order: KeyOrder) -> Self {
        Self(Arc::new(Inner {
            key_order,
            state: Mutex::new(State::default()),
            taken: Notify::new(),
            abandoned: watch::Sender::new(0),
        }))
    }

    /// Adds a rule to the script. The first rule that matches a message counts.
    pub fn script(&self, rule: FaultRule) {
        self.0.state().rules.push(rule);
    }

    /// Forgets all rules.
    pub fn clear_script(&self) {
        self.0.state().rules.clear();
    }

    /// Switches an outage on or off: meanwhile everything is refused as unavailable.
    pub fn outage(&self, on: bool) {
        self.0.state().outage = on;
    }

    /// Everything that was taken so far, in that order; of a message that was sent twice, both.
    #[must_use]
    pub fn messages(&self) -> Vec<Message> {
        self.0.state().messages.clone()
    }

    /// What `destination` has taken so far, in that order.
    #[must_use]
    pub fn messages_to(&self, destination: &str) -> Vec<Message> {
        let mut messages = self.messages();
        messages.retain(|message| &**message.destination() == destination);
        messages
    }

    /// How many publish calls were made.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.0.state().calls
    }

    /// How often [`abandon`](Publisher::abandon) was called.
    #[must_use]
    pub fn abandoned(&self) -> u64 {
        *self.0.abandoned.borrow()
    }

    /// Waits until at least `n` messages were taken, and returns all of them.
    ///
    /// # Panics
    ///
    /// When that takes longer than `within`: the text names what came.
    pub async fn wait_for(&self, n: usize, within: Duration) -> Vec<Message> {
        let enough = async {
            loop {
                let taken = self.0.taken.notified();
                let messages = self.messages();
                if messages.len() >= n {
                    return messages;
                }
                taken.await;
            }
        };
        match tokio::time::timeout(within, enough).await {
            Ok(messages) => messages,
            Err(_) => panic!("{}", too_few(n, within, &self.messages())),
        }
    }
}

fn too_few(n: usize, within: Duration, messages: &[Message]) -> String {
    let came: Vec<String> = messages
        .iter()
        .map(|message| {
            format!("{} {} to {}", message.event_type(), message.id(), message.destination())
        })
        .collect();
    format!(
        "{} of {n} messages were published within {within:?}: [{}]",
        came.len(),
        came.join(", ")
    )
}

#[async_trait]
impl Publisher for MemoryPublisher {
    async fn publish(&self, batch: Batch) {
        let call = {
            self.0.state().calls += 1;
            Call { broker: Arc::clone(&self.0), abandoned: self.abandoned(), batch }
        };
        let mut chains = BTreeMap::new();
        for index in 0..call.batch.len() {
            let chain = chains.entry(call.key(index)).or_insert(Chain::Open);
            call.step(chain, index);
        }
        for (_, chain) in chains {
            if let Chain::Slow(delay, queue) = chain {
                tokio::spawn(call.clone().finish(delay, queue));
            }
        }
        tokio::select! {
            biased;
            () = call.batch.all_settled() => {}
            () = call.is_abandoned() => {}
        }
    }

    async fn abandon(&self) {
        // Under the lock of the messages: nothing is taken for an abandoned call from here on.
        let _state = self.0.state();
        self.0.abandoned.send_modify(|count| *count += 1);
    }

    fn key_order(&self) -> KeyOrder {
        self.0.key_order
    }

    async fn check(&self) -> Result<(), PublishError> {
        if self.0.state().outage {
            return Err(PublishError::unavailable(
                "the memory publisher has an outage: outage(false) ends it",
            ));
        }
        Ok(())
    }
}

/// One publish call, also after its future was dropped.
#[derive(Clone)]
struct Call {
    broker: Arc<Inner>,
    /// The count of abandonings when the call began: when it rises, this call sends no more.
    abandoned: u64,
    batch: Batch,
}

/// Messages of one call that keep their order among themselves: those of one key, or a single one.
enum Chain {
    Open,
    /// One failed: what is behind it is not sent.
    Failed,
    /// One gets no verdict: what is behind it is neither sent nor refused.
    Stuck,
    /// The first of these is taken after the delay, the rest wait behind it.
    Slow(Duration, Vec<usize>),
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum ChainKey {
    /// Destination and key.
    Of(Arc<str>, Vec<u8>),
    Single(usize),
}

impl Call {
    /// What the message at `index` is chained by; nothing chains messages of an unordered publisher.
    fn key(&self, index: usize) -> ChainKey {
        let message = &self.batch.messages()[index];
        match message.key() {
            Some(key) if self.broker.key_order == KeyOrder::Prefix => {
                ChainKey::Of(Arc::clone(message.destination()), key.to_vec())
            }
            _ => ChainKey::Single(index),
        }
    }

    fn step(&self, chain: &mut Chain, index: usize) {
        match chain {
            Chain::Open => *chain = self.send(index),
            Chain::Failed => {
                let failure = Failure::new(FailureClass::Unsent, "one of its key before it failed");
                self.batch.refuse(index, failure);
            }
            Chain::Stuck => {}
            Chain::Slow(_, queue) => queue.push(index),
        }
    }

    /// Sends one message, and says how its chain goes on.
    fn send(&self, index: usize) -> Chain {
        let fault = self.broker.state().fault(&self.batch.messages()[index]);
        match fault {
            None => {
                if self.take(index) {
                    self.batch.confirm(index);
                }
                Chain::Open
            }
            Some(Fault::Refuse(failure)) => {
                let harmless = failure.class == FailureClass::Permanent;
                self.batch.refuse(index, failure);
                if harmless { Chain::Open } else { Chain::Failed }
            }
            Some(Fault::Slow(delay)) => Chain::Slow(delay, vec![index]),
            Some(Fault::Silent) => Chain::Stuck,
            Some(Fault::Lost) => {
                self.take(index);
                Chain::Stuck
            }
            Some(Fault::Panic) => panic!("the memory publisher panics, as its script says"),
        }
    }

    /// The broker takes the message, unless the call was abandoned.
    fn take(&self, index: usize) -> bool {
        let mut state = self.broker.state();
        let mine = *self.broker.abandoned.borrow() == self.abandoned;
        if mine {
            let message = &self.batch.messages()[index];
            let kept = Message::new(message.event().detach(), Arc::clone(message.destination()));
            state.messages.push(kept);
            drop(state);
            self.broker.taken.notify_waiters();
        }
        mine
    }

    async fn finish(self, mut delay: Duration, queue: Vec<usize>) {
        let mut queue = queue.into_iter();
        while let Some(slow) = queue.next() {
            tokio::select! {
                biased;
                () = tokio::time::sleep(delay) => {}
                () = self.is_abandoned() => return,
            }
            if self.take(slow) {
                self.batch.confirm(slow);
            }
            let mut chain = Chain::Open;
            for index in queue.by_ref() {
                self.step(&mut chain, index);
            }
            let Chain::Slow(next, rest) = chain else { return };
            (delay, queue) = (next, rest.into_iter());
        }
    }

    async fn is_abandoned(&self) {
        let mut abandoned = self.broker.abandoned.subscribe();
        // The sender lives in the broker, and the broker in this call.
        let _ = abandoned.wait_for(|count| *count != self.abandoned).await;
    }
}

impl State {
    fn fault(&mut self, message: &Message) -> Option<Fault> {
        self.tried += 1;
        if self.outage {
            let failure =
                Failure::new(FailureClass::Unavailable, "the memory publisher has an outage");
            return Some(Fault::Refuse(failure));
        }
        let tried = self.tried;
        self.rules.iter_mut().find_map(|rule| rule.strike(message, tried))
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while the state is locked")
    }
}

impl Default for MemoryPublisher {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryPublisher")
            .field("key_order", &self.0.key_order)
            .finish_non_exhaustive()
    }
}
