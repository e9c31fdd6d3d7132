//! What a seed decides before its run begins: the size of everything, and which faults may happen.

use std::time::Duration;

use fastrand::Rng;
use outbox_core::{
    Capabilities, Exhausted, KeyOrder, Limits, RetryPolicies, RetryPolicy, Timing, Watermark,
};

/// One run.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    pub(crate) faults: Faults,
    pub(crate) lanes: u16,
    pub(crate) aggregates: usize,
    pub(crate) relays: usize,
    pub(crate) pipelines: usize,
    pub(crate) steps: usize,
    pub(crate) watermark: Watermark,
    pub(crate) key_order: KeyOrder,
    pub(crate) exhausted: Exhausted,
    pub(crate) max_attempts: u32,
    pub(crate) limits: Limits,
    pub(crate) timing: Timing,
    /// Longest delay of a statement before its snapshot, and again before its reply.
    pub(crate) statement: Duration,
    /// Longest delay of a message on its way, and again of its verdict.
    pub(crate) message: Duration,
    /// Of a thousand messages so many are refused for their own sake.
    pub(crate) refusals: u32,
    /// Whether transactions may stay open for longer than the relay waits for them.
    pub(crate) long_transactions: bool,
    /// Whether an operator requeues and discards.
    pub(crate) operator: bool,
    /// Whether the store tells of commits.
    pub(crate) bell: bool,
    /// A claim that would go through more rows than this gets no answer.
    pub(crate) look: usize,
}

/// What may go wrong. A run without any of these has no duplicate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    pub(crate) kills: bool,
    pub(crate) freezes: bool,
    /// Statements fail, lose their reply, hang, or are applied after their caller has given up.
    pub(crate) statements: bool,
    /// The database refuses the data of some settles.
    pub(crate) rejects: bool,
    /// Messages or confirmations are lost, come late or twice, calls panic or forget their messages.
    pub(crate) broker: bool,
    /// Single messages are refused as unavailable.
    pub(crate) unavailable: bool,
    /// Another server answers now and then.
    pub(crate) servers: bool,
    /// Some events kill whoever sends them.
    pub(crate) killers: bool,
}

impl Faults {
    pub(crate) fn none(self) -> bool {
        self == Self::default()
    }
}

impl Scenario {
    pub(crate) fn of(seed: u64) -> Self {
        let rng = &mut Rng::with_seed(seed);
        let faults = faults(seed, rng);
        let lease = Duration::from_secs(3);
        let mut timing = Timing::default()
            .with_lease(lease)
            .with_outage(Duration::from_millis(50), Duration::from_millis(1500))
            .with_poll(
                Duration::from_millis(rng.u64(1..20)),
                Duration::from_millis(rng.u64(20..400)),
            );
        // The sweep would hide what the rules miss: most runs do without.
        let operator = rng.u32(..3) == 0;
        let sweep = if rng.u32(..4) == 0 { rng.u64(200..3000) } else { 3_600_000 };
        timing.sweep = Duration::from_millis(sweep);
        timing.shutdown_deadline = Duration::from_secs(3);
        timing.backlog = if rng.bool() { Duration::ZERO } else { Duration::from_secs(1) };
        let window = rng.usize(2..40);
        let batch = rng.usize(1..=window.min(12));
        let mut limits =
            Limits::default().with_window(window).with_batch(batch).with_calls(rng.usize(1..5));
        limits.window_events = window;
        limits.settle_events = rng.usize(1..40);
        if rng.u32(..5) == 0 {
            limits = limits.with_bytes(rng.usize(100..2000), rng.usize(60..500));
        }
        let watermark = match rng.u32(..6) {
            0 => Watermark::None,
            1 => Watermark::CommitOrder,
            _ => Watermark::Writers,
        };
        let lanes = rng.u16(1..=4);
        Self {
            seed,
            faults,
            lanes,
            aggregates: rng.usize(1..=5),
            relays: rng.usize(1..=3),
            pipelines: if rng.u32(..4) == 0 { 2 } else { 1 },
            steps: rng.usize(30..120),
            watermark,
            key_order: if rng.u32(..3) == 0 { KeyOrder::Unordered } else { KeyOrder::Prefix },
            exhausted: if rng.u32(..4) == 0 { Exhausted::Hold } else { Exhausted::DeadLetter },
            max_attempts: rng.u32(2..=4),
            limits,
            timing,
            statement: Duration::from_millis(*pick(rng, &[1, 20, 100, 300])),
            message: Duration::from_millis(*pick(rng, &[0, 1, 20, 60])),
            refusals: *pick(rng, &[0, 50, 200]),
            long_transactions: rng.u32(..3) == 0,
            operator,
            bell: rng.bool(),
            // A store without a watermark reads everything each time: it must be able to.
            look: if watermark != Watermark::None && rng.u32(..4) == 0 {
                // The smallest claim goes through one row of each lane.
                rng.usize(usize::from(lanes).max(3)..40)
            } else {
                usize::MAX
            },
        }
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        Capabilities::default()
            .with_leases(true)
            .with_watermark(self.watermark)
            .with_savepoints(true)
    }

    pub(crate) fn retry(&self) -> RetryPolicies {
        let policy = RetryPolicy::default()
            .with_delays(Duration::from_millis(40), Duration::from_millis(1000))
            .with_max_attempts(self.max_attempts)
            .with_exhausted(self.exhausted);
        RetryPolicies::new(policy)
    }

    /// Within this, once nothing goes wrong any more, every event is settled.
    pub(crate) fn patience(&self) -> Duration {
        // Two leases, scheduled events, and verdicts that the database refused stay aside for a minute.
        let quarantine = if self.faults.rejects { 61 } else { 0 };
        self.timing.lease * 2 + Duration::from_secs(24 + quarantine)
    }
}

/// Half of the runs are free of faults, a quarter has one kind, a quarter any mixture.
fn faults(seed: u64, rng: &mut Rng) -> Faults {
    let mut faults = Faults::default();
    let all: [&mut bool; 8] = [
        &mut faults.kills,
        &mut faults.freezes,
        &mut faults.statements,
        &mut faults.rejects,
        &mut faults.broker,
        &mut faults.unavailable,
        &mut faults.servers,
        &mut faults.killers,
    ];
    match seed % 4 {
        0 | 1 => {}
        2 => *all[rng.usize(..8)] = true,
        _ => all.into_iter().for_each(|fault| *fault = rng.bool()),
    }
    faults
}

fn pick<'a, T>(rng: &mut Rng, among: &'a [T]) -> &'a T {
    &among[rng.usize(..among.len())]
}
