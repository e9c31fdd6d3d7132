//! Every setting of a relay, with its unit and its default.

use std::time::Duration;

/// How much a relay keeps in memory and in flight. Nothing may be zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Events from claim to settle; at least 2. Default 16,000.
    pub window_events: usize,
    /// Bytes of those events (texts and payloads). Default 64 MiB. One event larger than that is fetched singly. As many again
    /// may stay in memory in calls that are confirmed in part: beyond that no call starts.
    pub window_bytes: usize,
    /// Fresh events of one claim, and as many whose wait is over. Default 2,000.
    pub claim_events: usize,
    /// Bytes of one claim. Default 8 MiB, at most 1 GiB ([`Limits::MAX_CLAIM_BYTES`]).
    pub claim_bytes: usize,
    /// Events of one publish call. Default 2,000.
    pub call_events: usize,
    /// Bytes of one publish call. Default 8 MiB; a larger event is sent alone.
    pub call_bytes: usize,
    /// Publish calls that run at the same time. Default 4.
    pub calls: usize,
    /// Events of one settle. Default 8,000.
    pub settle_events: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            window_events: 16_000,
            window_bytes: 64 << 20,
            claim_events: 2_000,
            claim_bytes: 8 << 20,
            call_events: 2_000,
            call_bytes: 8 << 20,
            calls: 4,
            settle_events: 8_000,
        }
    }
}

impl Limits {
    /// With this window, and claims and calls no larger than a part of it.
    #[must_use]
    pub fn with_window(mut self, events: usize) -> Self {
        self.window_events = events.max(2);
        self.claim_events = self.claim_events.min(self.window_events.div_ceil(2));
        self.call_events = self.call_events.min(self.window_events.div_ceil(2));
        self
    }

    /// With this many events at most in a claim and in a call.
    #[must_use]
    pub fn with_batch(mut self, events: usize) -> Self {
        self.claim_events = events.max(1);
        self.call_events = events.max(1);
        self.window_events = self.window_events.max(events).max(2);
        self
    }

    /// With this many calls at the same time.
    #[must_use]
    pub fn with_calls(mut self, calls: usize) -> Self {
        self.calls = calls.max(1);
        self
    }

    /// With these byte budgets for the window, and for one claim and one call.
    #[must_use]
    pub fn with_bytes(mut self, window: usize, batch: usize) -> Self {
        self.window_bytes = window.max(1);
        self.call_bytes = batch.clamp(1, self.window_bytes);
        self.claim_bytes = self.call_bytes.min(Self::MAX_CLAIM_BYTES);
        self
    }

    /// The most events that any of these may be.
    pub const MAX_EVENTS: usize = 10_000_000;

    /// The most bytes that any of these may be: 1 TiB, or half of what the machine can address.
    pub const MAX_BYTES: usize = if usize::BITS > 32 { 1 << 40 } else { usize::MAX / 2 };

    /// The most bytes of one claim: its events share one buffer, which holds less than 4 GiB.
    pub const MAX_CLAIM_BYTES: usize = 1 << 30;

    /// Whether a relay can work with these; it asks this itself when it starts.
    ///
    /// # Errors
    ///
    /// Names the setting with which it cannot.
    pub fn check(&self) -> Result<(), String> {
        let settings = [
            // A claim brings fresh events and due ones: at least one of each must fit.
            ("window_events", self.window_events, 2, Self::MAX_EVENTS),
            ("claim_events", self.claim_events, 1, Self::MAX_EVENTS),
            ("call_events", self.call_events, 1, Self::MAX_EVENTS),
            ("calls", self.calls, 1, Self::MAX_EVENTS),
            ("settle_events", self.settle_events, 1, Self::MAX_EVENTS),
            ("window_bytes", self.window_bytes, 1, Self::MAX_BYTES),
            ("claim_bytes", self.claim_bytes, 1, Self::MAX_CLAIM_BYTES),
            ("call_bytes", self.call_bytes, 1, Self::MAX_BYTES),
        ];
        match settings.iter().find(|(_, value, least, most)| value < least || value > most) {
            Some((name, value, least, most)) => {
                Err(format!("limits: {name} is {value}: it must be from {least} to {most}"))
            }
            None => Ok(()),
        }
    }
}

/// Every duration of a relay: none is longer than a day ([`Timing::MAX`]), and none is zero unless it says what that means. The
/// lease must exceed heartbeat, publish deadline and a margin together.
///
/// ```
/// # use std::time::Duration;
/// let mut timing = outbox_core::Timing::default();
/// timing.sweep = Duration::from_secs(10);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timing {
    /// The shortest pause between two claims that found something. Default 2 ms.
    pub poll_min: Duration,
    /// The longest pause between two claims while there is nothing, before a random lengthening by up to a tenth.
    /// Default 500 ms. Equal to `poll_min` it is a fixed interval.
    pub poll_max: Duration,
    /// How long lanes stay with a worker that is silent. Default 30 s.
    pub lease: Duration,
    /// How often a worker extends its lease. Default 10 s.
    pub heartbeat: Duration,
    /// How long a publish call may run. Default 15 s. A call starts only if what is left of the lease exceeds it and a
    /// margin.
    pub publish_deadline: Duration,
    /// How long the relay waits for a statement. Default 5 s. What the server may still do after that is the store's setting.
    pub statement_deadline: Duration,
    /// How long a clean stop waits for open calls and their settles. Default 15 s, which is the longest that a call runs; zero
    /// abandons them at once. After it the stop ends within two more `statement_deadline`s: open messages are abandoned, the lanes given back.
    pub shutdown_deadline: Duration,
    /// The shortest pause between two settles while little flows. Default 20 ms; zero settles whatever there is at once.
    pub settle_gap: Duration,
    /// How often open writers are looked at while events flow. Default 100 ms; twenty times as long while nothing does.
    pub probe: Duration,
    /// How often the table is swept from its beginning. Default 5 s while events flow, six times as long while nothing does,
    /// and never more than 2 % of the time.
    pub sweep: Duration,
    /// The first pause after an outage, doubled up to `outage_max`. Default 500 ms.
    pub outage_base: Duration,
    /// The longest pause between two probes of a destination that is down. Default 15 s.
    pub outage_max: Duration,
    /// How often backlog and table sizes are read for metrics. Default 15 s; zero is never.
    pub backlog: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            poll_min: Duration::from_millis(2),
            poll_max: Duration::from_millis(500),
            lease: Duration::from_secs(30),
            heartbeat: Duration::from_secs(10),
            publish_deadline: Duration::from_secs(15),
            statement_deadline: Duration::from_secs(5),
            shutdown_deadline: Duration::from_secs(15),
            settle_gap: Duration::from_millis(20),
            probe: Duration::from_millis(100),
            sweep: Duration::from_secs(5),
            outage_base: Duration::from_millis(500),
            outage_max: Duration::from_secs(15),
            backlog: Duration::from_secs(15),
        }
    }
}

impl Timing {
    /// What is left of a lease when a publish call has run to its deadline: time to settle and to give lanes back.
    pub const MARGIN: Duration = Duration::from_secs(1);

    /// The longest duration that makes sense anywhere: a day. Stores take a lease that ends later for the work of a broken
    /// clock.
    pub const MAX: Duration = Duration::from_secs(24 * 60 * 60);

    /// With this pause between claims: as long as `max` while there is nothing, down to `min` while there is.
    #[must_use]
    pub fn with_poll(mut self, min: Duration, max: Duration) -> Self {
        self.poll_min = min.max(Duration::from_millis(1));
        self.poll_max = max.max(self.poll_min);
        self
    }

    /// With this lease, a heartbeat of a third of it, and a publish deadline of half of it.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self.heartbeat = lease / 3;
        self.publish_deadline = lease / 2;
        self.statement_deadline = self.statement_deadline.min(lease / 3);
        self
    }

    /// With these pauses between probes of a destination that is down.
    #[must_use]
    pub fn with_outage(mut self, base: Duration, max: Duration) -> Self {
        self.outage_base = base;
        self.outage_max = max.max(base);
        self
    }

    /// The margin for this lease: never more than a tenth of it.
    pub(crate) fn margin(&self) -> Duration {
        Self::MARGIN.min(self.lease / 10)
    }

    /// Whether leases, heartbeats and deadlines fit together; a relay asks this itself when it starts.
    ///
    /// # Errors
    ///
    /// Says which do not.
    pub fn check(&self) -> Result<(), String> {
        let some = Duration::from_nanos(1);
        let settings = [
            ("poll_min", self.poll_min, some),
            ("poll_max", self.poll_max, self.poll_min),
            ("lease", self.lease, some),
            ("heartbeat", self.heartbeat, some),
            ("publish_deadline", self.publish_deadline, some),
            ("statement_deadline", self.statement_deadline, some),
            ("shutdown_deadline", self.shutdown_deadline, Duration::ZERO),
            ("settle_gap", self.settle_gap, Duration::ZERO),
            ("probe", self.probe, some),
            ("sweep", self.sweep, some),
            ("outage_base", self.outage_base, some),
            ("outage_max", self.outage_max, self.outage_base),
            ("backlog", self.backlog, Duration::ZERO),
        ];
        for (name, value, least) in settings {
            if value.is_zero() && !least.is_zero() {
                return Err(format!("timing: {name} is zero"));
            }
            if value < least || value > Self::MAX {
                let most = Self::MAX;
                return Err(format!(
                    "timing: {name} is {value:?}: it must be from {least:?} to {most:?}"
                ));
            }
        }
        if self.heartbeat + self.publish_deadline + self.margin() > self.lease {
            return Err(format!(
                "timing: lease {:?} is too short: it must exceed heartbeat {:?} plus publish_deadline {:?} plus a margin of {:?}",
                self.lease,
                self.heartbeat,
                self.publish_deadline,
                self.margin()
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Field<Settings, Value> = fn(&mut Settings) -> &mut Value;

    #[test]
    fn the_defaults_and_every_scaled_lease_fit_together() {
        Timing::default().check().unwrap();
        for millis in [100, 1_000, 3_000, 60_000] {
            Timing::default().with_lease(Duration::from_millis(millis)).check().unwrap();
        }
    }

    #[test]
    fn a_limit_of_zero_or_beyond_all_memory_is_refused_by_name() {
        Limits::default().check().unwrap();
        Limits::default()
            .with_window(0)
            .with_batch(0)
            .with_calls(0)
            .with_bytes(0, 0)
            .check()
            .unwrap();
        let names: [(&str, Field<Limits, usize>); 8] = [
            ("window_events", |limits| &mut limits.window_events),
            ("window_bytes", |limits| &mut limits.window_bytes),
            ("claim_events", |limits| &mut limits.claim_events),
            ("claim_bytes", |limits| &mut limits.claim_bytes),
            ("call_events", |limits| &mut limits.call_events),
            ("call_bytes", |limits| &mut limits.call_bytes),
            ("calls", |limits| &mut limits.calls),
            ("settle_events", |limits| &mut limits.settle_events),
        ];
        for (name, field) in names {
            for value in [0, usize::MAX] {
                let mut limits = Limits::default();
                *field(&mut limits) = value;
                let error = limits.check().unwrap_err();
                assert!(error.contains(&format!("{name} is {value}:")), "{error}");
            }
        }
    }

    #[test]
    fn a_duration_of_zero_or_beyond_a_day_is_refused_by_name() {
        let names: [(&str, bool, Field<Timing, Duration>); 13] = [
            ("poll_min", false, |timing| &mut timing.poll_min),
            ("poll_max", false, |timing| &mut timing.poll_max),
            ("lease", false, |timing| &mut timing.lease),
            ("heartbeat", false, |timing| &mut timing.heartbeat),
            ("publish_deadline", false, |timing| &mut timing.publish_deadline),
            ("statement_deadline", false, |timing| &mut timing.statement_deadline),
            ("shutdown_deadline", true, |timing| &mut timing.shutdown_deadline),
            ("settle_gap", true, |timing| &mut timing.settle_gap),
            ("probe", false, |timing| &mut timing.probe),
            ("sweep", false, |timing| &mut timing.sweep),
            ("outage_base", false, |timing| &mut timing.outage_base),
            ("outage_max", false, |timing| &mut timing.outage_max),
            ("backlog", true, |timing| &mut timing.backlog),
        ];
        for (name, may_be_zero, field) in names {
            let checked = |value| {
                let mut timing = Timing::default();
                *field(&mut timing) = value;
                timing.check()
            };
            let error = checked(Duration::MAX).unwrap_err();
            assert!(error.contains(&format!("{name} is ")), "{error}");
            match checked(Duration::ZERO) {
                Ok(()) => assert!(may_be_zero, "{name}"),
                Err(error) => {
                    assert!(!may_be_zero && error.contains(&format!("{name} is zero")), "{error}");
                }
            }
        }
    }

    #[test]
    fn a_longest_pause_below_the_shortest_is_refused() {
        let mut timing = Timing::default();
        timing.poll_max = timing.poll_min / 2;
        assert!(timing.check().unwrap_err().contains("poll_max"));
        timing = Timing::default();
        timing.outage_max = timing.outage_base / 2;
        assert!(timing.check().unwrap_err().contains("outage_max"));
    }

    #[test]
    fn a_lease_that_ends_before_its_calls_is_refused() {
        let timing = Timing { publish_deadline: Duration::from_secs(25), ..Timing::default() };
        assert!(timing.check().unwrap_err().contains("publish_deadline"));
    }
}
