//! The broker as one relay process sees it: it delays, loses, doubles and refuses.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{Batch, Failure, FailureClass, KeyOrder, Publisher};

use super::ledger::number;
use super::world::{Outage, World, pass};

#[derive(Clone, Debug)]
pub(crate) struct SimBroker {
    pub(crate) world: World,
    pub(crate) process: usize,
    /// How often everything open was abandoned: what began before sends nothing any more.
    pub(crate) generation: Arc<AtomicU64>,
    pub(crate) calls: Arc<AtomicU64>,
}

/// One publish call, also after its future was dropped.
#[derive(Clone)]
struct Call {
    broker: SimBroker,
    batch: Batch,
    number: u64,
    generation: u64,
}

/// What happens to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Taken,
    TakenTwice,
    /// It is taken, the confirmation comes after the call's deadline.
    ConfirmedLate,
    /// It is sent after the call's deadline.
    SentLate,
    /// It is taken, no verdict comes.
    ConfirmationLost,
    /// It is not taken, no verdict comes.
    Silence,
    Refused(FailureClass),
    /// It is taken, and refused.
    TakenAndRefused(FailureClass),
}

#[async_trait]
impl Publisher for SimBroker {
    async fn publish(&self, batch: Batch) {
        self.world.thawed(self.process).await;
        let call = Call {
            broker: self.clone(),
            number: self.calls.fetch_add(1, Ordering::Relaxed),
            generation: self.generation.load(Ordering::Relaxed),
            batch,
        };
        call.enter();
        let broken = self.world.state().faults.broker;
        if broken && self.world.chance(10) {
            self.world.tell(|| format!("r{} call {} panics", self.process, call.number));
            // The panic hook is for panics of the code under test.
            std::panic::resume_unwind(Box::new("simulated"));
        }
        let forgets = broken && self.world.chance(10);
        for chain in call.chains() {
            tokio::spawn(call.clone().send(chain));
        }
        if forgets {
            self.world.tell(|| format!("r{} call {} returns early", self.process, call.number));
            return;
        }
        call.batch.all_settled().await;
    }

    async fn abandon(&self) {
        self.world.thawed(self.process).await;
        let slow = self.world.state().faults.broker && self.world.chance(200);
        let takes =
            if slow { self.world.scenario().timing.publish_deadline * 2 } else { Duration::ZERO };
        pass(self.world.delay(takes)).await;
        self.world.tell(|| format!("r{} has abandoned what was open", self.process));
        self.end();
    }

    fn key_order(&self) -> KeyOrder {
        self.world.scenario().key_order
    }
}

impl SimBroker {
    pub(crate) fn new(world: World, process: usize) -> Self {
        Self { world, process, generation: Arc::default(), calls: Arc::default() }
    }

    /// From now on nothing of what was open is sent.
    pub(crate) fn end(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.world.state().ledger.abandoned(self.process);
    }
}

impl Call {
    fn enter(&self) {
        let (world, process) = (&self.broker.world, self.broker.process);
        world.tell(|| {
            let ids = self.batch.messages().iter().map(|message| message.id().to_string());
            format!("r{process} call {} {:?}", self.number, ids.collect::<Vec<_>>())
        });
        let now = world.now();
        let checked = world.state().ledger.call(process, self.number, self.batch.messages(), now);
        world.check(checked);
        let killer = |message: &outbox_core::Message| number(message.id()) % 23 == 7;
        let mut state = world.state();
        if state.faults.killers && self.batch.messages().iter().any(killer) {
            state.killed.push(process);
        }
    }

    /// The messages in the order in which they are sent, each key by itself.
    fn chains(&self) -> Vec<Vec<usize>> {
        let mut by_key: BTreeMap<(&str, &[u8]), Vec<usize>> = BTreeMap::new();
        let mut singles = Vec::new();
        for (index, message) in self.batch.messages().iter().enumerate() {
            match message.key() {
                Some(key) if self.broker.key_order() == KeyOrder::Prefix => {
                    by_key.entry((message.destination(), key)).or_default().push(index);
                }
                _ => singles.push(vec![index]),
            }
        }
        singles.extend(by_key.into_values());
        singles
    }

    async fn send(self, chain: Vec<usize>) {
        let world = self.broker.world.clone();
        let longest = world.scenario().message;
        let deadline = world.scenario().timing.publish_deadline;
        let mut ahead = chain.as_slice();
        while let Some((index, behind)) = ahead.split_first() {
            let index = *index;
            ahead = behind;
            pass(world.delay(longest)).await;
            let fate = self.fate(index);
            if fate == Fate::SentLate {
                pass(deadline + world.delay(deadline)).await;
            }
            world.thawed(self.broker.process).await;
            if self.broker.generation.load(Ordering::Relaxed) != self.generation {
                return;
            }
            match fate {
                Fate::Silence => return,
                Fate::ConfirmationLost => {
                    self.take(index, false);
                    return;
                }
                Fate::Refused(class) => {
                    self.refuse(index, class, behind);
                    if class != FailureClass::Permanent {
                        return;
                    }
                }
                Fate::TakenAndRefused(class) => {
                    self.take(index, false);
                    self.refuse(index, class, behind);
                    return;
                }
                Fate::Taken | Fate::TakenTwice | Fate::ConfirmedLate | Fate::SentLate => {
                    self.take(index, false);
                    if fate == Fate::TakenTwice {
                        self.take(index, true);
                    }
                    let late = if fate == Fate::ConfirmedLate { deadline } else { Duration::ZERO };
                    pass(late + world.delay(longest)).await;
                    self.confirm(index);
                }
            }
        }
    }

    fn fate(&self, index: usize) -> Fate {
        let world = &self.broker.world;
        let mut state = world.state();
        match state.outage {
            Outage::Refuses => return Fate::Refused(FailureClass::Unavailable),
            Outage::Silent => return Fate::Silence,
            Outage::None => {}
        }
        if state.healed {
            return Fate::Taken;
        }
        if state.rng.u32(..1000) < world.scenario().refusals {
            return Fate::Refused(match state.rng.u32(..5) {
                0..3 => FailureClass::Transient,
                3 => FailureClass::Refused,
                _ => FailureClass::Permanent,
            });
        }
        let poison = number(self.batch.messages()[index].id()) % 19 == 3;
        if state.faults.unavailable && (poison || state.rng.u32(..1000) < 30) {
            return Fate::Refused(FailureClass::Unavailable);
        }
        if state.faults.broker && state.rng.u32(..1000) < 60 {
            return match state.rng.u32(..7) {
                0 => Fate::TakenTwice,
                1 => Fate::ConfirmedLate,
                2 => Fate::SentLate,
                3 => Fate::ConfirmationLost,
                4 => Fate::Silence,
                5 => Fate::TakenAndRefused(FailureClass::Transient),
                _ => Fate::TakenAndRefused(FailureClass::Unavailable),
            };
        }
        Fate::Taken
    }

    /// The broker keeps the message.
    fn take(&self, index: usize, again: bool) {
        let message = &self.batch.messages()[index];
        let world = &self.broker.world;
        world.tell(|| format!("r{} {} arrives", self.broker.process, message.id()));
        let now = world.now();
        let checked = world.state().ledger.appeared(message, again, now);
        world.check(checked);
    }

    fn confirm(&self, index: usize) {
        if self.batch.confirm(index) {
            let number = number(self.batch.messages()[index].id());
            let world = &self.broker.world;
            world.tell(|| format!("r{} e{number} confirmed", self.broker.process));
            world.state().ledger.confirmed(self.broker.process, self.number, number);
        }
    }

    /// Refuses a message, and what is behind it unless its neighbours are not hurt.
    fn refuse(&self, index: usize, class: FailureClass, behind: &[usize]) {
        let world = &self.broker.world;
        let refuse = |index: usize, class: FailureClass, first: bool| {
            if self.batch.refuse(index, Failure::new(class, "simulated")) {
                let number = number(self.batch.messages()[index].id());
                world.tell(|| format!("r{} e{number} refused: {class:?}", self.broker.process));
                let mut state = world.state();
                state.ledger.refused(self.broker.process, self.number, number, class, first);
            }
        };
        refuse(index, class, true);
        if class != FailureClass::Permanent {
            // Some brokers fail the rest of a batch the same way.
            let same = world.chance(300);
            for index in behind {
                refuse(*index, if same { class } else { FailureClass::Unsent }, false);
            }
        }
    }
}
