//! One run: it begins with the relays, goes on with writers and mishaps, is healed, and must come to its end.

use std::cell::RefCell;
use std::sync::Once;
use std::time::Duration;

use tokio::time::Instant;

use super::actors::{Locks, Process, operate, write};
use super::scenario::{Faults, Scenario};
use super::world::{Outage, World, pass};

/// What came of a run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) failure: Option<String>,
    pub(crate) history: String,
}

thread_local! {
    /// The relay catches panics and goes on: here they count.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

pub(crate) fn run(seed: u64, traced: bool) -> Run {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANIC.with(|panic| panic.borrow_mut().get_or_insert_with(|| info.to_string()).len());
            usual(info);
        }));
    });
    PANIC.take();
    // The relay's jitter comes from this thread's generator.
    fastrand::seed(seed);
    let scenario = Scenario::of(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let world = World::new(scenario, traced);
        world.tell(|| format!("{:?}", world.scenario()));
        let mut stage = Stage { world: world.clone(), processes: Vec::new(), started: 0 };
        if let Err(what) = stage.play().await {
            world.fail(what);
        }
        Run { failure: world.failure(), history: world.history() }
    })
}

struct Stage {
    world: World,
    processes: Vec<Process>,
    /// Relay processes so far.
    started: usize,
}

impl Stage {
    async fn play(&mut self) -> Result<(), String> {
        let world = self.world.clone();
        let scenario = world.scenario().clone();
        for _ in 0..scenario.relays {
            for pipeline in 0..scenario.pipelines {
                self.start(pipeline);
            }
        }
        let locks = Locks::default();
        for step in 0..scenario.steps {
            let pause = Duration::from_millis(world.state().rng.u64(..150));
            pass(pause).await;
            if world.chance(600) {
                tokio::spawn(write(world.clone(), locks.clone()));
            } else {
                self.mishap().await?;
            }
            self.look(step % 8 == 0)?;
        }
        self.heal();
        self.drain().await?;
        for process in std::mem::take(&mut self.processes) {
            process.stop(&world).await?;
        }
        self.look(true)?;
        let state = world.state();
        state.ledger.audit_end()
    }

    fn start(&mut self, pipeline: usize) {
        self.processes.push(Process::start(&self.world, self.started, pipeline));
        self.started += 1;
    }

    /// Something that happens to relays and brokers; or nothing.
    async fn mishap(&mut self) -> Result<(), String> {
        let world = self.world.clone();
        let faults = world.scenario().faults;
        let (what, who) = {
            let mut state = world.state();
            (state.rng.u32(..16), state.rng.usize(..self.processes.len().max(1)))
        };
        match what {
            0 if self.processes.len() < 4 => {
                let pipeline = world.state().rng.usize(..world.scenario().pipelines);
                self.start(pipeline);
            }
            1 if self.has_another(who) => self.processes.swap_remove(who).stop(&world).await?,
            2 => {
                let mut state = world.state();
                let now = world.now();
                state.tell(now, || "the broker is down".to_owned());
                state.outage = if state.faults.broker && state.rng.bool() {
                    Outage::Silent
                } else {
                    Outage::Refuses
                };
                state.ledger.outage();
            }
            3..6 => {
                world.tell(|| "the broker is up".to_owned());
                world.state().outage = Outage::None;
            }
            6 if faults.kills && who < self.processes.len() => {
                let process = self.processes.swap_remove(who);
                let pipeline = process.pipeline;
                process.kill(&world);
                self.start(pipeline);
            }
            7 if faults.freezes && who < self.processes.len() => {
                let lease = world.scenario().timing.lease;
                let process = self.processes[who].number;
                let time = lease.mul_f64(world.state().rng.f64() * 3.0);
                let now = world.now();
                let mut state = world.state();
                state.tell(now, || format!("r{process} stands still for {time:?}"));
                state.frozen.push((process, Instant::now() + time));
                state.ledger.disrupted(now + time + lease);
            }
            8 if faults.servers => {
                world.state().server += 1;
            }
            // The archive is full, or no longer is.
            12 if faults.rejects => {
                let mut state = world.state();
                let now = world.now();
                let refuses = !state.ledger.refuses_all;
                state.tell(now, || format!("the database refuses everything: {refuses}"));
                state.ledger.refuses_all = refuses;
                state.ledger.disrupted(now + world.scenario().timing.lease);
            }
            9..12 if world.scenario().operator => operate(&world, true),
            _ => {}
        }
        Ok(())
    }

    /// Whether the pipeline of this process has another one.
    fn has_another(&self, who: usize) -> bool {
        let Some(process) = self.processes.get(who) else { return false };
        self.processes.iter().filter(|other| other.pipeline == process.pipeline).count() > 1
    }

    /// Looks whether all is well; buries processes that an event has killed.
    fn look(&mut self, closely: bool) -> Result<(), String> {
        let world = self.world.clone();
        let killed = std::mem::take(&mut world.state().killed);
        for killed in killed {
            if let Some(at) = self.processes.iter().position(|process| process.number == killed) {
                let process = self.processes.swap_remove(at);
                let pipeline = process.pipeline;
                process.kill(&world);
                self.start(pipeline);
            }
        }
        if let Some(over) = self.processes.iter().find(|process| process.is_over()) {
            return Err(format!("r{} has ended by itself", over.number));
        }
        if let Some(panic) = PANIC.take() {
            return Err(panic);
        }
        if closely {
            world.state().ledger.audit(world.store())?;
        }
        world.failure().map_or(Ok(()), Err)
    }

    /// From now on nothing goes wrong.
    fn heal(&mut self) {
        self.world.tell(|| "healed".to_owned());
        let mut state = self.world.state();
        state.faults = Faults::default();
        state.healed = true;
        state.ledger.refuses_all = false;
        state.outage = Outage::None;
        let lease = self.world.scenario().timing.lease;
        // What has already gone wrong may still show.
        if !self.world.scenario().faults.none() {
            let now = self.world.now();
            state.ledger.disrupted(now + lease * 2);
        }
        drop(state);
    }

    /// Until every event is settled, and a little longer.
    async fn drain(&mut self) -> Result<(), String> {
        let world = self.world.clone();
        let patience = world.scenario().patience();
        let writers_end = world.now() + Duration::from_secs(5);
        let (mut pending, mut since) = (usize::MAX, world.now());
        while world.now() < writers_end || world.state().ledger.pending() > 0 {
            let now_pending = world.state().ledger.pending();
            if now_pending < pending {
                (pending, since) = (now_pending, world.now());
            }
            if world.now() > since + patience {
                world.state().ledger.audit(world.store())?;
                let still = world.store().pending();
                return Err(format!("nothing was settled for {patience:?}; pending: {still:?}"));
            }
            pass(Duration::from_millis(100)).await;
            if world.state().ledger.blocked() {
                operate(&world, false);
            }
            self.look(false)?;
        }
        pass(Duration::from_secs(2)).await;
        self.look(true)
    }
}
