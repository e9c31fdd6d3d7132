//! What a failed event's verdict means. Nothing else decides an event's fate.

use std::time::Duration;

use crate::{Exhausted, FailureClass, RetryPolicy};

/// What becomes of the first undelivered event of an aggregate in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It waits for a retry (`None`: for an operator) and holds its aggregate.
    Wait { attempts: u32, delay: Option<Duration> },
    /// It moves to the dead-letter table.
    Dead { attempts: u32 },
    /// It goes back as if it had not been sent: nothing is written.
    Back,
}

/// Decides by the class of the failure; `attempts` were counted before this one, `refusals` is how often its destination
/// has refused in a row, `luck` a random number from 0 to 1.
pub(crate) fn judge(
    class: FailureClass,
    attempts: u32,
    refusals: u32,
    policy: &RetryPolicy,
    luck: f64,
) -> Fate {
    let counted = attempts.saturating_add(1);
    match class {
        FailureClass::Transient if counted < policy.max_attempts => {
            Fate::Wait { attempts: counted, delay: Some(policy.delay(counted, luck)) }
        }
        FailureClass::Transient | FailureClass::Permanent => match policy.exhausted {
            Exhausted::DeadLetter => Fate::Dead { attempts: counted },
            Exhausted::Hold => Fate::Wait { attempts: counted, delay: None },
        },
        FailureClass::Refused => Fate::Wait {
            attempts: attempts.max(1),
            delay: Some(policy.delay(refusals.max(1), luck)),
        },
        FailureClass::Unavailable | FailureClass::Unsent => Fate::Back,
    }
}

/// An event that the store could not read whole is a dead letter also where retries end in holding: no wait mends it, and
/// what cannot be read may not even let itself be marked as waiting.
pub(crate) fn unreadable(attempts: u32) -> Fate {
    Fate::Dead { attempts: attempts.saturating_add(1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn class() -> impl Strategy<Value = FailureClass> {
        prop::sample::select(vec![
            FailureClass::Unavailable,
            FailureClass::Refused,
            FailureClass::Transient,
            FailureClass::Permanent,
            FailureClass::Unsent,
        ])
    }

    proptest! {
        #[test]
        fn an_outage_writes_nothing(attempts: u32, refusals: u32) {
            let policy = RetryPolicy::default();
            for class in [FailureClass::Unavailable, FailureClass::Unsent] {
                prop_assert_eq!(judge(class, attempts, refusals, &policy, 0.5), Fate::Back);
            }
        }

        #[test]
        fn a_refusing_destination_never_counts_beyond_one_and_never_kills(attempts in 0u32..50, refusals: u32) {
            let fate = judge(FailureClass::Refused, attempts, refusals, &RetryPolicy::default(), 0.5);
            let expected = attempts.max(1);
            let waits = matches!(fate, Fate::Wait { attempts, delay: Some(_) } if attempts == expected);
            prop_assert!(waits);
        }

        #[test]
        fn whoever_waits_or_dies_has_an_attempt(class in class(), attempts: u32, refusals: u32, hold: bool) {
            let exhausted = if hold { Exhausted::Hold } else { Exhausted::DeadLetter };
            let policy = RetryPolicy::default().with_exhausted(exhausted);
            match judge(class, attempts, refusals, &policy, 0.5) {
                Fate::Wait { attempts, .. } | Fate::Dead { attempts } => prop_assert!(attempts >= 1),
                Fate::Back => {}
            }
        }

        #[test]
        fn under_hold_nothing_dies(class in class(), attempts: u32) {
            let policy = RetryPolicy::default().with_exhausted(Exhausted::Hold);
            let dies = matches!(judge(class, attempts, 0, &policy, 0.5), Fate::Dead { .. });
            prop_assert!(!dies);
        }
    }

    #[test]
    fn transient_failures_end_after_max_attempts() {
        let policy = RetryPolicy::default().with_max_attempts(3);
        let fates: Vec<Fate> =
            (0..3).map(|n| judge(FailureClass::Transient, n, 0, &policy, 0.0)).collect();
        let wait = |attempts, secs| Fate::Wait { attempts, delay: Some(Duration::from_secs(secs)) };
        assert_eq!(fates, [wait(1, 1), wait(2, 2), Fate::Dead { attempts: 3 }]);
    }

    #[test]
    fn a_permanent_failure_dies_at_once() {
        let fate = judge(FailureClass::Permanent, 0, 0, &RetryPolicy::default(), 0.0);
        assert_eq!(fate, Fate::Dead { attempts: 1 });
    }
}
