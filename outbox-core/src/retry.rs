//! How often, and how long apart, a failed event is tried again.

use std::collections::BTreeMap;
use std::time::Duration;

/// What happens to an event that fails.
///
/// The delay before try *n + 1* is `min(base · 2ⁿ⁻¹, max)`, lengthened by a random share of up to `jitter`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct RetryPolicy {
    /// The first delay. Default 1 s.
    pub base: Duration,
    /// The longest delay, before jitter. Default 60 s, never more than [`RetryPolicy::LONGEST`].
    pub max: Duration,
    /// The largest random lengthening, as a share of the delay: 0 to 0.1. Default 0.1.
    pub jitter: f64,
    /// Counted attempts after which the event is given up. Default 10.
    pub max_attempts: u32,
    /// What giving up means. Default [`Exhausted::DeadLetter`].
    pub exhausted: Exhausted,
}

/// What becomes of an event whose retries have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exhausted {
    /// It moves to the dead-letter table, and its aggregate goes on.
    DeadLetter,
    /// It stays in the outbox and holds its aggregate until an operator decides. Events that the store cannot read whole
    /// ([`Event::fault`](crate::Event::fault)) are dead letters all the same.
    Hold,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            base: Duration::from_secs(1),
            max: Duration::from_secs(60),
            jitter: 0.1,
            max_attempts: 10,
            exhausted: Exhausted::DeadLetter,
        }
    }
}

impl RetryPolicy {
    /// No delay is longer than this, whatever is configured, before jitter.
    pub const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

    /// With this first and longest delay.
    #[must_use]
    pub fn with_delays(mut self, base: Duration, max: Duration) -> Self {
        self.base = base;
        self.max = max.max(base);
        self
    }

    /// With this random lengthening, brought into 0 to 0.1.
    #[must_use]
    pub fn with_jitter(mut self, jitter: f64) -> Self {
        self.jitter = if jitter.is_nan() { 0.0 } else { jitter.clamp(0.0, 0.1) };
        self
    }

    /// With this many attempts, at least 1.
    #[must_use]
    pub fn with_max_attempts(mut self, max_attempts: u32) -> Self {
        self.max_attempts = max_attempts.max(1);
        self
    }

    /// With this ending.
    #[must_use]
    pub fn with_exhausted(mut self, exhausted: Exhausted) -> Self {
        self.exhausted = exhausted;
        self
    }

    /// The delay after `attempts` failed attempts (at least 1); `luck` is a random number from 0 to 1.
    #[must_use]
    pub fn delay(&self, attempts: u32, luck: f64) -> Duration {
        let doubled = 1u32.checked_shl(attempts.saturating_sub(1)).unwrap_or(u32::MAX);
        let plain = self.base.saturating_mul(doubled).min(self.max).min(Self::LONGEST);
        let luck = if luck.is_nan() { 0.0 } else { luck.clamp(0.0, 1.0) };
        let jitter = if self.jitter.is_nan() { 0.0 } else { self.jitter.clamp(0.0, 0.1) };
        plain + plain.mul_f64(jitter * luck)
    }
}

/// Retry policies: one for all, with exceptions by event type or by destination (the event type wins).
#[derive(Clone, Debug, Default)]
pub struct RetryPolicies {
    default: RetryPolicy,
    by_event_type: BTreeMap<String, RetryPolicy>,
    by_destination: BTreeMap<String, RetryPolicy>,
}

impl RetryPolicies {
    /// One policy for all.
    #[must_use]
    pub fn new(default: RetryPolicy) -> Self {
        Self { default, ..Self::default() }
    }

    /// With an exception for an event type.
    #[must_use]
    pub fn event_type(mut self, event_type: &str, policy: RetryPolicy) -> Self {
        self.by_event_type.insert(event_type.to_owned(), policy);
        self
    }

    /// With an exception for a destination.
    #[must_use]
    pub fn destination(mut self, destination: &str, policy: RetryPolicy) -> Self {
        self.by_destination.insert(destination.to_owned(), policy);
        self
    }

    /// The policy of an event.
    #[must_use]
    pub fn policy(&self, event_type: &str, destination: &str) -> &RetryPolicy {
        self.by_event_type
            .get(event_type)
            .or_else(|| self.by_destination.get(destination))
            .unwrap_or(&self.default)
    }

    /// Whether some policy holds aggregates when retries end.
    #[must_use]
    pub fn holds(&self, event_type: &str, destination: &str) -> bool {
        self.policy(event_type, destination).exhausted == Exhausted::Hold
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_delay_doubles_from_base_to_max() {
        let policy = RetryPolicy::default();
        let delays: Vec<u64> = (1..=8).map(|n| policy.delay(n, 0.0).as_secs()).collect();
        assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60]);
    }

    #[test]
    fn jitter_lengthens_by_a_tenth_at_most() {
        let policy = RetryPolicy::default().with_jitter(7.0);
        assert_eq!(policy.delay(3, 1.0), Duration::from_millis(4400));
    }

    #[test]
    fn a_jitter_that_is_no_number_is_none() {
        let policy = RetryPolicy { jitter: f64::NAN, ..RetryPolicy::default() };
        assert_eq!(policy.delay(1, 1.0), Duration::from_secs(1));
    }

    proptest! {
        /// Covers B060 and H047.
        #[test]
        fn no_attempt_count_overflows(attempts: u32, luck in -1.0..2.0f64, base in 0u64..=u64::MAX / 2) {
            let policy = RetryPolicy::default().with_delays(Duration::from_millis(base), Duration::from_secs(3600));
            let delay = policy.delay(attempts, luck);
            let plain = policy.base.min(RetryPolicy::LONGEST);
            prop_assert!(delay >= plain);
            prop_assert!(delay <= RetryPolicy::LONGEST.mul_f64(1.1));
        }

        #[test]
        fn more_attempts_never_wait_less(attempts in 0..u32::MAX) {
            let policy = RetryPolicy::default();
            prop_assert!(policy.delay(attempts + 1, 0.0) >= policy.delay(attempts, 0.0));
        }
    }

    #[test]
    fn the_event_type_wins_over_the_destination() {
        let once = RetryPolicy::default().with_max_attempts(1);
        let twice = RetryPolicy::default().with_max_attempts(2);
        let policies = RetryPolicies::default().event_type("E", once).destination("t", twice);
        assert_eq!(policies.policy("E", "t").max_attempts, 1);
        assert_eq!(policies.policy("F", "t").max_attempts, 2);
        assert_eq!(policies.policy("F", "u").max_attempts, 10);
    }
}
