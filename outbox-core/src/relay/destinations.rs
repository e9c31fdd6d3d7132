//! Where events go, and how often a destination has refused.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::{Event, RetryPolicy, Router};

/// The destinations of the types seen so far, so that none is written out twice.
#[derive(Debug, Default)]
pub(super) struct Destinations {
    by_types: HashMap<String, HashMap<String, Arc<str>>>,
    refusing: HashMap<Arc<str>, Refusals>,
}

/// A destination that refuses.
#[derive(Debug, Default)]
struct Refusals {
    in_a_row: u32,
    /// Until when its back-off lasts: what began before says nothing new.
    until: Duration,
    /// Whether somebody has been told.
    told: bool,
}

/// Types and destinations are few; whoever makes them up per event gets no cache.
const CACHED: usize = 10_000;

impl Destinations {
    pub(super) fn of(&mut self, router: &Router, event: &Event) -> Arc<str> {
        let (aggregate_type, event_type) = (event.aggregate_type(), event.event_type());
        let known = self.by_types.get(aggregate_type).and_then(|types| types.get(event_type));
        if let Some(known) = known {
            return known.clone();
        }
        let destination: Arc<str> = router.destination(aggregate_type, event_type).into();
        if self.by_types.len() > CACHED {
            self.by_types.clear();
        }
        let types = self.by_types.entry(aggregate_type.to_owned()).or_default();
        if types.len() > CACHED {
            types.clear();
        }
        types.insert(event_type.to_owned(), destination.clone());
        destination
    }

    /// The destination refused a message of a call that began at `began`: how often in a row. All that wait for it count
    /// as one, since they are tried again at about the same time.
    pub(super) fn refused(
        &mut self,
        destination: &Arc<str>,
        policy: &RetryPolicy,
        began: Duration,
        now: Duration,
    ) -> u32 {
        if self.refusing.len() >= CACHED && !self.refusing.contains_key(destination) {
            self.refusing.clear();
        }
        let refusals = self.refusing.entry(destination.clone()).or_default();
        if refusals.in_a_row == 0 || began >= refusals.until {
            refusals.in_a_row = refusals.in_a_row.saturating_add(1);
            refusals.until = now + policy.delay(refusals.in_a_row, 0.0);
        }
        refusals.in_a_row
    }

    /// Whether the destination refuses and nobody has asked this before.
    pub(super) fn is_news(&mut self, destination: &Arc<str>) -> bool {
        let refusals = self.refusing.get_mut(destination);
        refusals.is_some_and(|refusals| !std::mem::replace(&mut refusals.told, true))
    }

    /// The destination takes messages: whether it had refused.
    pub(super) fn accepted(&mut self, destination: &Arc<str>) -> bool {
        !self.refusing.is_empty() && self.refusing.remove(destination).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_waits_for_a_destination_together_counts_once() {
        let (mut destinations, policy) = (Destinations::default(), RetryPolicy::default());
        let mut refused = |began: u32, now: u32| {
            destinations.refused(&"t".into(), &policy, SECOND * began, SECOND * now)
        };
        assert_eq!(
            [refused(0, 1), refused(0, 1), refused(1, 1)],
            [1, 1, 1],
            "one call, or beside it"
        );
        assert_eq!(
            [refused(2, 2), refused(3, 3), refused(4, 4)],
            [2, 2, 3],
            "two seconds, then four"
        );
    }

    #[test]
    fn a_destination_that_takes_a_message_starts_anew() {
        let (mut destinations, policy) = (Destinations::default(), RetryPolicy::default());
        destinations.refused(&"t".into(), &policy, SECOND, SECOND);
        destinations.accepted(&"t".into());
        assert_eq!(destinations.refused(&"t".into(), &policy, SECOND * 9, SECOND * 9), 1);
    }

    #[test]
    fn destinations_that_never_take_a_message_do_not_pile_up() {
        let (mut destinations, policy) = (Destinations::default(), RetryPolicy::default());
        for n in 0..3 * CACHED {
            destinations.refused(&n.to_string().into(), &policy, SECOND, SECOND);
        }
        assert!(destinations.refusing.len() <= CACHED);
    }
}
