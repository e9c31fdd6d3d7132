//! What calls bring back: verdicts are taken in, and every event that has one goes on, waits, or dies.

use std::sync::Arc;
use std::time::Duration;

use super::calls::Run;
use super::known::{Handle, Stage};
use super::pipeline::Pipeline;
use super::settles::Judged;
use super::verdict::{Fate, judge, unreadable};
use crate::{Batch, Event, Failure, FailureClass, Verdict, headers};

/// An open message waits this many publish deadlines for its verdict. Then its publisher has lost it, or is stuck with
/// it: its aggregate would stand still for ever.
const OPEN_DEADLINES: u32 = 5;

impl Pipeline {
    /// The publisher's future is over: it returned, panicked, or ran into its deadline.
    pub(super) fn called(&mut self, id: u64, now: Duration) {
        let Some(call) = self.calls.open.get_mut(&id) else { return };
        call.running = false;
        self.take_verdicts(id, now);
        let Some(call) = self.calls.open.get_mut(&id) else { return };
        let open = call.batch.open();
        let silent = self.calls.last_confirmed < call.started;
        if open > 0 && silent && !std::mem::replace(&mut call.counted, true) {
            let lone = (call.batch.len() == 1).then(|| call.batch.messages()[0].event().position());
            let reason = format!("{open} messages without a verdict at the publish deadline");
            let (sent, began) = (call.batch.len(), call.started);
            self.destination_failed(sent, lone, &reason, began, now);
        }
    }

    /// Takes in the verdicts that a call has so far, and forgets the call when it has all.
    pub(super) fn take_verdicts(&mut self, id: u64, now: Duration) {
        let Some(mut call) = self.calls.open.remove(&id) else { return };
        let mut outcome = Outcome { began: call.started, ..Outcome::default() };
        for run in &mut call.runs {
            self.take_run(&call.batch, &call.handles, run, now, &mut outcome);
        }
        call.runs.retain(|run| run.next < run.end);
        call.confirmed |= outcome.confirmed > 0;
        let sent = call.batch.len();
        let lone = (sent == 1).then(|| call.batch.messages()[0].event().position());
        if outcome.confirmed > 0 {
            self.calls.last_confirmed = now;
            self.telemetry.delivered(outcome.confirmed);
        }
        let over = call.runs.is_empty();
        if let Some(reason) = outcome.unavailable {
            if !std::mem::replace(&mut call.counted, true) {
                self.destination_failed(sent, lone, &reason, call.started, now);
            }
        } else if outcome.confirmed > 0 && (over || call.counted) {
            if std::mem::replace(&mut call.counted, true) {
                self.destination_answers();
            } else {
                self.destination_passed(sent, lone);
            }
        }
        if !over {
            self.calls.open.insert(id, call);
        }
    }

    /// Ends open messages of calls that are over and of which nothing will be heard any more.
    pub(super) fn end_forgotten(&mut self, now: Duration) {
        if self.calls.is_abandoning() {
            return;
        }
        let timing = &self.parts.timing;
        let (soon, late) = (timing.outage_base, timing.publish_deadline * OPEN_DEADLINES);
        let ended = || self.calls.open.values().filter(|call| !call.running);
        // A publisher that answers nothing, at once and each time, is not asked again at once each time.
        if ended().any(|call| now >= call.started + soon && call.batch.is_orphaned()) {
            self.abandon("a publish call ended without a verdict on every message");
        } else if ended().any(|call| now >= call.started + late) {
            self.abandon("messages stayed open for many publish deadlines");
        }
    }

    /// Takes in a run from the front: what is confirmed is delivered; the first that failed decides, once all behind it
    /// have a verdict too.
    fn take_run(
        &mut self,
        batch: &Batch,
        handles: &[Handle],
        run: &mut Run,
        now: Duration,
        outcome: &mut Outcome,
    ) {
        while run.next < run.end {
            let index = run.next;
            match batch.verdict(index) {
                None => return,
                Some(Verdict::Confirmed) => {
                    self.deliver(batch, index, handles[index], now, outcome);
                    run.next += 1;
                }
                Some(Verdict::Failed(failure)) => {
                    let behind = index + 1..run.end;
                    if behind.clone().any(|index| batch.verdict(index).is_none()) {
                        return;
                    }
                    // What failed together is sent again first, one by one: so the one that is to blame shows.
                    self.known.prefer(batch.len() > 1);
                    self.fail(batch, index, handles[index], &failure, now, outcome);
                    for index in behind {
                        match batch.verdict(index) {
                            Some(Verdict::Confirmed) => {
                                self.deliver(batch, index, handles[index], now, outcome);
                            }
                            _ => self.give_back(handles[index]),
                        }
                    }
                    self.known.prefer(false);
                    run.next = run.end;
                }
            }
        }
    }

    fn deliver(
        &mut self,
        batch: &Batch,
        index: usize,
        handle: Handle,
        now: Duration,
        outcome: &mut Outcome,
    ) {
        outcome.confirmed += 1;
        if !self.known.is_known(handle) {
            return;
        }
        let message = &batch.messages()[index];
        let acked = self.calls.clock_offset + i64::try_from(now.as_micros()).unwrap_or(0);
        let took = acked.saturating_sub(message.created_at_micros()).max(0);
        if self.calls.clock_offset != 0 {
            self.telemetry.created_to_ack.record(took as f64 / 1e6);
        }
        let destination = message.destination().clone();
        if self.destinations.accepted(&destination) {
            let pipeline = self.worker.pipeline.name();
            tracing::info!(pipeline, %destination, "a destination that refused takes messages");
        }
        let ends_wait = message.event().is_waiting() || self.known.is_charged(handle);
        if message.event().holds_aggregate() || self.known.is_charged(handle) {
            // The table holds back what is behind it, unless a statement that got no answer has ended the wait.
            self.known.condemned(handle);
        } else {
            self.known.delivered(handle);
        }
        self.settler.push(Judged::delivered(handle, destination, ends_wait));
    }

    fn fail(
        &mut self,
        batch: &Batch,
        index: usize,
        handle: Handle,
        failure: &Failure,
        now: Duration,
        outcome: &mut Outcome,
    ) {
        if failure.class == FailureClass::Unavailable {
            outcome.unavailable = Some(failure.reason.clone());
        }
        if !self.known.is_known(handle) {
            return;
        }
        let destination = batch.messages()[index].destination();
        let refusals = match failure.class {
            FailureClass::Refused => {
                let event = self.known.event(handle);
                let policy = self.parts.retry.policy(event.event_type(), destination);
                let refusals = self.destinations.refused(destination, policy, outcome.began, now);
                if self.destinations.is_news(destination) {
                    tracing::warn!(
                        pipeline = self.worker.pipeline.name(),
                        %destination,
                        reason = %failure.reason,
                        "a destination refuses: its aggregates wait and nothing is given up, others go on"
                    );
                }
                refusals
            }
            _ => 0,
        };
        let fate = self.fate(handle, destination, failure.class, refusals, &failure.reason);
        match fate {
            Fate::Back => self.give_back(handle),
            _ => {
                self.known.condemned(handle);
                self.settler.push(Judged::failed(handle, fate, &failure.reason));
            }
        }
    }

    /// Judges a queued event without a call.
    pub(super) fn condemn_queued(&mut self, handle: Handle, class: FailureClass, reason: &str) {
        let destination = self.destinations.of(&self.parts.router, self.known.event(handle));
        let fate = self.fate(handle, &destination, class, 0, reason);
        if fate != Fate::Back {
            self.known.judge_queued(handle);
            self.settler.push(Judged::failed(handle, fate, reason));
        }
    }

    /// Judges a queued event that nobody can read.
    pub(super) fn bury_unreadable(&mut self, handle: Handle, reason: &str) {
        let event = self.known.event(handle);
        let (pipeline, destination) = (self.worker.pipeline.name(), "");
        log_failure(pipeline, event, destination, FailureClass::Permanent, "dead", reason);
        let fate = unreadable(event.attempts());
        self.telemetry.attempt("dead");
        self.known.judge_queued(handle);
        self.settler.push(Judged::failed(handle, fate, reason));
    }

    /// Decides what becomes of a failed event, and tells.
    fn fate(
        &mut self,
        handle: Handle,
        destination: &Arc<str>,
        class: FailureClass,
        refusals: u32,
        reason: &str,
    ) -> Fate {
        let charged = self.known.is_charged(handle);
        let event = self.known.event(handle);
        let policy = self.parts.retry.policy(event.event_type(), destination);
        // A charged event's attempt is in the table already: what was no fault of the event takes it back, down to the
        // one that keeps it holding its aggregate.
        let fate = match judge(class, event.attempts(), refusals, policy, fastrand::f64()) {
            Fate::Back if charged => Fate::Wait {
                attempts: event.attempts().max(1),
                delay: Some(policy.delay(1, fastrand::f64())),
            },
            fate => fate,
        };
        let outcome = match fate {
            Fate::Dead { .. } => "dead",
            Fate::Wait { delay: None, .. } => "blocked",
            Fate::Wait { .. } if class == FailureClass::Refused => "refused",
            Fate::Wait { .. } => "retry",
            Fate::Back => return fate,
        };
        self.telemetry.attempt(outcome);
        let pipeline = self.worker.pipeline.name();
        log_failure(pipeline, event, destination, class, outcome, reason);
        fate
    }

    fn give_back(&mut self, handle: Handle) {
        if self.known.is_known(handle) {
            self.known.back(handle);
        }
    }

    fn destination_failed(
        &mut self,
        sent: usize,
        lone: Option<i64>,
        reason: &str,
        began: Duration,
        now: Duration,
    ) {
        let was_down = self.outage.is_down();
        self.outage.failed(sent, lone, began, now, fastrand::f64());
        let pipeline = self.worker.pipeline.name();
        let pause = self.outage.paused_until(now).unwrap_or(now) - now;
        self.telemetry.monitor.tell(|report| report.destination_down = Some(reason.to_owned()));
        if was_down {
            tracing::debug!(pipeline, sent, ?pause, reason, "the destination is still unavailable");
        } else {
            tracing::warn!(
                pipeline,
                sent,
                ?pause,
                reason,
                "the destination is unavailable: nothing is counted against events"
            );
        }
    }

    /// A confirmation came late: it ends the outage that its silence began, but says nothing about how much may be sent.
    fn destination_answers(&mut self) {
        if self.outage.is_down() {
            let pipeline = self.worker.pipeline.name();
            tracing::info!(pipeline, "the destination takes messages");
        }
        self.outage.answers();
    }

    fn destination_passed(&mut self, sent: usize, lone: Option<i64>) {
        self.destination_answers();
        let counted = self.outage.passed(sent, lone).and_then(|failed| self.known.find(failed));
        if let Some(handle) = counted.filter(|handle| self.known.stage(*handle) == Stage::Queued) {
            let reason = "each time this event was sent alone its destination became unavailable, while others passed";
            self.condemn_queued(handle, FailureClass::Transient, reason);
        }
        if self.outage.limit().is_some() {
            let suspects: Vec<i64> = self.outage.suspects().collect();
            for suspect in suspects {
                if let Some(handle) = self.known.find(suspect) {
                    self.known.bring_forward(handle);
                }
            }
        }
    }
}

/// What one look at a call found.
#[derive(Debug, Default)]
struct Outcome {
    /// When the call began.
    began: Duration,
    confirmed: u64,
    unavailable: Option<Arc<str>>,
}

/// What a person needs to find an event elsewhere, beside its id and type.
pub(super) struct EventLog {
    pub(super) trace: String,
    pub(super) correlation_id: String,
}

impl EventLog {
    pub(super) fn of(event: &Event) -> Self {
        let mut log = Self { trace: String::new(), correlation_id: String::new() };
        let _ =
            headers::for_each(event.headers().unwrap_or("{}"), &mut |header, value| match header {
                headers::TRACEPARENT => value.clone_into(&mut log.trace),
                headers::CORRELATION_ID => value.clone_into(&mut log.correlation_id),
                _ => {}
            });
        log
    }
}

/// One line per failed event; what waits for a destination that refuses has one line together.
fn log_failure(
    pipeline: &str,
    event: &Event,
    destination: &str,
    class: FailureClass,
    outcome: &str,
    reason: &str,
) {
    let log = EventLog::of(event);
    if outcome == "refused" {
        tracing::debug!(
            pipeline,
            id = %event.id(),
            event_type = event.event_type(),
            destination,
            trace = log.trace,
            correlation_id = log.correlation_id,
            reason,
            "an event waits for its destination"
        );
        return;
    }
    tracing::warn!(
        pipeline,
        id = %event.id(),
        event_type = event.event_type(),
        destination,
        class = class.as_str(),
        attempts = event.attempts(),
        outcome,
        trace = log.trace,
        correlation_id = log.correlation_id,
        reason,
        "an event failed"
    );
}
