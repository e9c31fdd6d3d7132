//! What all actors of a run share: chance, time, the history, and the ledger.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fastrand::Rng;
use outbox_core::memory::MemoryStore;
use tokio::time::Instant;

use super::ledger::Ledger;
use super::scenario::{Faults, Scenario};

/// One run. Cloning shares it.
#[derive(Clone, Debug)]
pub(crate) struct World(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    scenario: Scenario,
    store: MemoryStore,
    started: Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) rng: Rng,
    pub(crate) ledger: Ledger,
    /// The faults that may happen now: none any more once the run is being healed.
    pub(crate) faults: Faults,
    pub(crate) healed: bool,
    pub(crate) outage: Outage,
    /// Which database server answers.
    pub(crate) server: u32,
    /// Relay processes that stand still, until when.
    pub(crate) frozen: Vec<(usize, Instant)>,
    /// Relay processes that their own message has killed.
    pub(crate) killed: Vec<usize>,
    traced: bool,
    history: String,
    failure: Option<String>,
}

/// How the broker fails as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outage {
    None,
    /// Every message is refused as unavailable.
    Refuses,
    /// No message is answered.
    Silent,
}

impl World {
    pub(crate) fn new(scenario: Scenario, traced: bool) -> Self {
        let store = MemoryStore::with_capabilities(scenario.lanes, scenario.capabilities());
        let state = State {
            rng: Rng::with_seed(scenario.seed ^ 0x5eed),
            ledger: Ledger::new(&scenario),
            faults: scenario.faults,
            healed: false,
            outage: Outage::None,
            server: 0,
            frozen: Vec::new(),
            killed: Vec::new(),
            traced,
            history: String::new(),
            failure: None,
        };
        let started = Instant::now();
        Self(Arc::new(Inner { scenario, store, started, state: Mutex::new(state) }))
    }

    pub(crate) fn scenario(&self) -> &Scenario {
        &self.0.scenario
    }

    pub(crate) fn store(&self) -> &MemoryStore {
        &self.0.store
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap()
    }

    /// Since the run began.
    pub(crate) fn now(&self) -> Duration {
        self.0.started.elapsed()
    }

    /// Adds a line to the history, if somebody will read it.
    pub(crate) fn tell(&self, line: impl FnOnce() -> String) {
        let now = self.now();
        self.state().tell(now, line);
    }

    /// A rule is broken. The first one counts.
    pub(crate) fn fail(&self, what: String) {
        let now = self.now();
        let mut state = self.state();
        state.tell(now, || format!("BROKEN {what}"));
        state.failure.get_or_insert(what);
    }

    /// Fails unless the check has passed.
    pub(crate) fn check(&self, checked: Result<(), String>) {
        if let Err(what) = checked {
            self.fail(what);
        }
    }

    pub(crate) fn failure(&self) -> Option<String> {
        self.state().failure.clone()
    }

    pub(crate) fn history(&self) -> String {
        std::mem::take(&mut self.state().history)
    }

    /// A random duration up to `longest`: often none, else of any length.
    pub(crate) fn delay(&self, longest: Duration) -> Duration {
        let mut state = self.state();
        match state.rng.u32(..4) {
            0 | 1 => Duration::ZERO,
            2 => longest.mul_f64(state.rng.f64() * 0.1),
            _ => longest.mul_f64(state.rng.f64()),
        }
    }

    /// Whether something that happens `times` in a thousand happens now.
    pub(crate) fn chance(&self, times: u32) -> bool {
        self.state().rng.u32(..1000) < times
    }

    /// Returns when the process does not stand still.
    pub(crate) async fn thawed(&self, process: usize) {
        loop {
            let until = self.state().frozen.iter().find(|(one, _)| *one == process).map(|it| it.1);
            match until {
                Some(until) if until > Instant::now() => tokio::time::sleep_until(until).await,
                _ => return,
            }
        }
    }
}

impl State {
    pub(crate) fn tell(&mut self, now: Duration, line: impl FnOnce() -> String) {
        if self.traced {
            let _ = writeln!(self.history, "{:>9.3} {}", now.as_secs_f64(), line());
        }
    }
}

/// Sleeps, but does not yield for nothing.
pub(crate) async fn pass(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}
