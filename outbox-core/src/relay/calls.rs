//! Publishing: calls are formed, watched and abandoned. What they bring back stands in `outcomes.rs`.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::task::AbortHandle;

use super::known::Handle;
use super::pipeline::{Pipeline, Reply};
use crate::{Batch, Event, Failure, FailureClass, KeyOrder, LaneId, Message};

/// The publish calls that are not over.
#[derive(Debug)]
pub(super) struct Calls {
    pub(super) open: BTreeMap<u64, Call>,
    next: u64,
    key_order: KeyOrder,
    last_started: Duration,
    pub(super) last_confirmed: Duration,
    abandoning: Abandoning,
    /// The database's clock minus ours, in microseconds.
    pub(super) clock_offset: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Abandoning {
    No,
    Out,
    /// It failed; it is tried again at this time, and nothing is published before.
    Again(Duration),
}

#[derive(Debug)]
pub(super) struct Call {
    pub(super) batch: Batch,
    /// The events of the batch, in its order.
    pub(super) handles: Vec<Handle>,
    /// Of all its messages.
    bytes: usize,
    /// Those of one aggregate each, as long as they are not over.
    pub(super) runs: Vec<Run>,
    pub(super) started: Duration,
    pub(super) task: AbortHandle,
    /// Whether the publisher's future still runs.
    pub(super) running: bool,
    pub(super) confirmed: bool,
    /// Whether its outcome was told to the outage policy.
    pub(super) counted: bool,
}

impl Call {
    fn lingers(&self, now: Duration) -> bool {
        !self.running || (self.confirmed && now >= self.started + LINGERS_AFTER)
    }
}

/// The events of one aggregate in a call.
#[derive(Debug)]
pub(super) struct Run {
    /// The first whose verdict has not been taken in.
    pub(super) next: usize,
    pub(super) end: usize,
}

/// A call that has confirmed something but is not over by then gives its place to another.
const LINGERS_AFTER: Duration = Duration::from_secs(1);

/// How often a call that is not over is looked at.
const LOOK: Duration = Duration::from_millis(25);

/// While calls run, a remainder smaller than half a call waits this long for company.
const COMPANY: Duration = Duration::from_millis(4);

impl Calls {
    pub(super) fn new(key_order: KeyOrder) -> Self {
        Self {
            open: BTreeMap::new(),
            next: 0,
            key_order,
            last_started: Duration::ZERO,
            last_confirmed: Duration::ZERO,
            abandoning: Abandoning::No,
            clock_offset: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub(super) fn is_abandoning(&self) -> bool {
        self.abandoning != Abandoning::No
    }

    /// A statement told the database's clock.
    pub(super) fn set_database_clock(&mut self, micros: i64, now: Duration) {
        if micros != 0 {
            self.clock_offset = micros - i64::try_from(now.as_micros()).unwrap_or(0);
        }
    }

    fn active(&self, now: Duration) -> usize {
        self.open.values().filter(|call| !call.lingers(now)).count()
    }

    /// Bytes of the calls that have given their place to others: their messages stay in memory, confirmed or not, until the last
    /// of a call has its verdict.
    fn lingering_bytes(&self, now: Duration) -> usize {
        self.open.values().filter(|call| call.lingers(now)).map(|call| call.bytes).sum()
    }

    /// Messages whose publisher has returned or was cut off, without a verdict.
    fn overdue(&self) -> usize {
        self.open.values().filter(|call| !call.running).map(|call| call.batch.open()).sum()
    }
}

impl Pipeline {
    /// Takes in verdicts and forms calls; returns when to look again.
    pub(super) fn pump_calls(&mut self, now: Duration) -> Option<Duration> {
        if let Abandoning::Again(at) = self.calls.abandoning {
            if now < at {
                return Some(at);
            }
            self.abandon("the last try to abandon failed");
        }
        let due: Vec<u64> = self
            .calls
            .open
            .iter()
            .filter(|(_, call)| !call.running || now >= call.started + LOOK)
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            self.take_verdicts(id, now);
        }
        self.end_forgotten(now);
        self.telemetry.open_messages(self.calls.overdue());
        let look = (!self.calls.is_empty()).then(|| now + LOOK);
        let wait = self.form_calls(now);
        match (look, wait) {
            (Some(look), Some(wait)) => Some(look.min(wait)),
            (look, wait) => look.or(wait),
        }
    }

    /// Forms as many calls as may run; returns when time alone would allow another.
    fn form_calls(&mut self, now: Duration) -> Option<Duration> {
        let (limits, timing) = (self.parts.limits, self.parts.timing);
        loop {
            if self.stopping.is_some() || self.calls.is_abandoning() || !self.known.has_ready() {
                return None;
            }
            if let Some(until) = self.outage.paused_until(now) {
                return Some(until);
            }
            if self.lease_left(now) <= timing.publish_deadline + timing.margin() {
                return None;
            }
            let active = self.calls.active(now);
            let allowed = if self.outage.limit().is_some() { 1 } else { limits.calls };
            if active >= allowed || self.calls.lingering_bytes(now) >= limits.window_bytes {
                return None;
            }
            let company = self.calls.last_started + COMPANY;
            if active > 0 && self.known.queued() < limits.call_events / 2 && now < company {
                return Some(company);
            }
            let handles = self.pick(now);
            if handles.is_empty() {
                // What is in line is charged first, or waits for a call that runs: a reply wakes us.
                return None;
            }
            self.start_call(handles, now);
        }
    }

    /// Takes the events of the next call out of the queue.
    fn pick(&mut self, now: Duration) -> Vec<Handle> {
        let limits = self.parts.limits;
        let most = self.outage.limit().unwrap_or(usize::MAX).min(limits.call_events);
        let mut picked: Vec<Handle> = Vec::with_capacity(most.min(self.known.queued()));
        let mut bytes = limits.call_bytes;
        self.take_back_charge();
        if let Some(tried) = self.charge_out() {
            self.known.bring_forward(tried);
        }
        // An aggregate comes back into line only after the call: so this ends.
        for _ in 0..self.known.ready_len() {
            let Some(head) = self.known.peek() else { break };
            let event = self.known.event(head);
            let alone = self.outage.is_suspect(event.position());
            let careful = self.is_careful(event.lane());
            let other_is_tried = careful && self.charge_out().is_some_and(|tried| tried != head);
            let charge = careful && !self.known.is_charged(head);
            if (alone || careful)
                && (!picked.is_empty()
                    || other_is_tried
                    || (charge && !self.settler.refused.may_charge(now)))
            {
                self.known.rotate();
                continue;
            }
            if charge {
                self.charge(head);
                continue;
            }
            let single = alone || careful || self.calls.key_order == KeyOrder::Unordered;
            let room = if single { 1 } else { most - picked.len() };
            let before = picked.len();
            let (router, retry) = (self.parts.router.clone(), self.parts.retry.clone());
            let destinations = &mut self.destinations;
            // Behind an event that would hold its aggregate nothing may be on its way.
            let last =
                |event: &Event| retry.holds(event.event_type(), &destinations.of(&router, event));
            self.known.take(room, bytes, last, &mut picked);
            let taken: usize =
                picked[before..].iter().map(|handle| self.known.event(*handle).size()).sum();
            bytes = bytes.saturating_sub(taken);
            if alone || careful || picked.len() >= most || bytes == 0 {
                break;
            }
        }
        picked
    }

    fn start_call(&mut self, handles: Vec<Handle>, now: Duration) {
        let mut messages = Vec::with_capacity(handles.len());
        let mut runs: Vec<Run> = Vec::new();
        for (index, handle) in handles.iter().enumerate() {
            let event = self.known.event(*handle);
            let same = event.aggregate_id().is_some()
                && messages.last().is_some_and(|last: &Message| is_same_aggregate(last, event));
            match runs.last_mut() {
                Some(run) if same => run.end += 1,
                _ => runs.push(Run { next: index, end: index + 1 }),
            }
            let destination = self.destinations.of(&self.parts.router, event);
            messages.push(Message::new(event.clone(), destination));
        }
        self.telemetry.publish_batch.record(messages.len() as f64);
        let batch = Batch::new(messages);
        let id = self.calls.next;
        self.calls.next += 1;
        let (publisher, shared) = (self.parts.publisher.clone(), batch.clone());
        let (deadline, telemetry) = (self.parts.timing.publish_deadline, self.telemetry.clone());
        let pipeline = self.worker.pipeline.name().to_owned();
        let task = self.task(async move {
            let started = tokio::time::Instant::now();
            let call = AssertUnwindSafe(async move { publisher.publish(shared).await });
            if let Ok(Err(_)) = tokio::time::timeout(deadline, call.catch_unwind()).await {
                tracing::error!(pipeline, "the publisher panicked; its message is above");
            }
            telemetry.publish_duration.record(started.elapsed().as_secs_f64());
            Reply::Called(id)
        });
        self.calls.last_started = now;
        let call = Call {
            bytes: handles.iter().map(|handle| self.known.event(*handle).size()).sum(),
            batch,
            handles,
            runs,
            started: now,
            task,
            running: true,
            confirmed: false,
            counted: false,
        };
        self.calls.open.insert(id, call);
    }

    /// Whether messages of this lane are in calls without a verdict.
    pub(super) fn has_open(&self, lane: LaneId) -> bool {
        self.calls.open.values().any(|call| {
            call.runs.iter().flat_map(|run| run.next..run.end).any(|index| {
                call.batch.messages()[index].event().lane() == lane
                    && call.batch.verdict(index).is_none()
            })
        })
    }

    /// Ends every open message: after that, and not before, they may be published again.
    pub(super) fn abandon(&mut self, why: &str) {
        let pipeline = self.worker.pipeline.name();
        let open: usize = self.calls.open.values().map(|call| call.batch.open()).sum();
        tracing::warn!(pipeline, open, why, "abandoning open messages");
        self.calls.abandoning = Abandoning::Out;
        for call in self.calls.open.values_mut() {
            call.task.abort();
            call.running = false;
            // What the publisher says of messages that it was told to give up is no news about its broker.
            call.counted = true;
        }
        let publisher = self.parts.publisher.clone();
        let deadline = self.parts.timing.publish_deadline;
        self.task(async move {
            let abandon = AssertUnwindSafe(async move { publisher.abandon().await });
            let ended = tokio::time::timeout(deadline, abandon.catch_unwind()).await;
            Reply::Abandoned(matches!(ended, Ok(Ok(()))))
        });
    }

    pub(super) fn abandoned(&mut self, done: bool, now: Duration) {
        if !done {
            let pipeline = self.worker.pipeline.name();
            tracing::error!(
                pipeline,
                "the publisher cannot abandon its messages: nothing is published until it does"
            );
            self.calls.abandoning = Abandoning::Again(now + Duration::from_secs(1));
            return;
        }
        self.calls.abandoning = Abandoning::No;
        let unsent = Failure::new(FailureClass::Unsent, "abandoned");
        let ids: Vec<u64> = self.calls.open.keys().copied().collect();
        for id in ids {
            if let Some(call) = self.calls.open.get(&id) {
                call.batch.refuse_open(&unsent);
            }
            self.take_verdicts(id, now);
        }
    }
}

fn is_same_aggregate(message: &Message, event: &Event) -> bool {
    let other = message.event();
    other.aggregate_id() == event.aggregate_id() && other.aggregate_type() == event.aggregate_type()
}
