//! Topics whose messages the broker refused, and what is done with them until it takes them again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use outbox_core::{Failure, FailureClass};

/// How long a topic is left alone after its first refusal. Doubles with each further one, up to [`LONGEST_REST`].
const FIRST_REST: Duration = Duration::from_secs(1);
/// Half of the relay's longest wait between two tries of an event.
const LONGEST_REST: Duration = Duration::from_secs(30);
/// A topic that was refused is sent carefully for this many rests after the last failure of a message of it.
const CARE: u32 = 10;
/// A topic that gave no trouble for so long starts from the beginning.
const MEMORY: Duration = Duration::from_secs(600);

/// The refusals of the latest time, by topic.
///
/// A refusal stops the producer that all topics share, for a promise of order. So a topic may do that once, and then
/// seldom: for a while its messages go through the careful producer, which a refusal does not stop.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    topics: Mutex<HashMap<String, Trouble>>,
    /// Whether there are any; so that a message costs no lock while there is no trouble.
    any: AtomicBool,
}

/// What to do with a message to a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Send it by the producer for all.
    Free,
    /// Send it by the careful producer.
    Careful,
    /// The topic refused a moment ago: do not ask the broker again, give the message this verdict.
    Closed(Failure),
}

#[derive(Debug)]
struct Trouble {
    /// How often it stopped the producer for all, or refused when it was asked again.
    strikes: u32,
    last: Instant,
    closed: Option<Closed>,
}

#[derive(Debug)]
struct Closed {
    failure: Failure,
    until: Instant,
    /// One message is on its way to see whether the topic takes it.
    probing: bool,
}

impl Refusals {
    /// Whether every topic is [`Way::Free`].
    pub(crate) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }

    /// How many topics are closed.
    pub(crate) fn closed(&self) -> usize {
        self.topics().values().filter(|trouble| trouble.closed.is_some()).count()
    }

    /// What to do with a message to `topic`. A closed topic lets one message through per rest, to a call that has room for a
    /// careful one.
    pub(crate) fn way(&self, topic: &str, now: Instant, has_room: bool) -> Way {
        if self.is_empty() {
            return Way::Free;
        }
        match self.topics().get_mut(topic) {
            Some(trouble) => trouble.way(now, has_room),
            None => Way::Free,
        }
    }

    /// The broker refused a message to `topic`.
    pub(crate) fn failed(&self, topic: &str, failure: &Failure, now: Instant) {
        let mut topics = self.topics();
        topics.retain(|_, trouble| now.duration_since(trouble.last) < MEMORY);
        let new = || Trouble { strikes: 0, last: now, closed: None };
        topics.entry(topic.to_owned()).or_insert_with(new).failed(failure, now);
        self.any.store(true, Ordering::Release);
    }

    /// The broker took a message to `topic` that was sent carefully.
    pub(crate) fn confirmed(&self, topic: &str) {
        if let Some(trouble) = self.topics().get_mut(topic) {
            trouble.closed = None;
        }
    }

    fn topics(&self) -> MutexGuard<'_, HashMap<String, Trouble>> {
        self.topics.lock().expect("no panic while it is locked")
    }
}

impl Trouble {
    fn way(&mut self, now: Instant, has_room: bool) -> Way {
        let (rest, is_careful) = (self.rest(), self.is_careful(now));
        match &mut self.closed {
            Some(closed) if now < closed.until || !has_room => Way::Closed(closed.failure.clone()),
            Some(closed) => {
                // Should its answer not come, another one goes when this rest has passed.
                closed.until = now + rest;
                closed.probing = true;
                Way::Careful
            }
            None if is_careful => Way::Careful,
            None => Way::Free,
        }
    }

    fn failed(&mut self, failure: &Failure, now: Instant) {
        // Its neighbours fail with it: they are no news.
        let is_news = match &self.closed {
            Some(closed) => closed.probing,
            None => failure.class == FailureClass::Refused || !self.is_careful(now),
        };
        if is_news {
            if failure.class == FailureClass::Refused || !self.is_careful(now) {
                self.strikes = self.strikes.saturating_add(1);
            }
            let until = now + self.rest();
            let closed = || Closed { failure: failure.clone(), until, probing: false };
            self.closed = (failure.class == FailureClass::Refused).then(closed);
        }
        self.last = now;
    }

    fn is_careful(&self, now: Instant) -> bool {
        self.strikes > 0 && now < self.last + CARE * self.rest()
    }

    fn rest(&self) -> Duration {
        let doublings = self.strikes.saturating_sub(1).min(16);
        (FIRST_REST * (1 << doublings)).min(LONGEST_REST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> Failure {
        Failure::new(FailureClass::Refused, "not permitted")
    }

    fn too_large() -> Failure {
        Failure::new(FailureClass::Permanent, "too large")
    }

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn a_refused_topic_is_asked_once_per_rest_and_rests_double_to_30_s() {
        let (refusals, mut now) = (Refusals::default(), Instant::now());
        refusals.failed("t", &refused(), now);
        for rest in [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0] {
            now += seconds(rest - 0.1);
            assert_eq!(refusals.way("t", now, true), Way::Closed(refused()), "{rest}");
            now += seconds(0.1);
            assert_eq!(refusals.way("t", now, true), Way::Careful, "{rest}");
            assert_eq!(refusals.way("t", now, true), Way::Closed(refused()), "{rest}");
            refusals.failed("t", &refused(), now);
        }
        assert_eq!(refusals.closed(), 1);
    }

    #[test]
    fn a_call_without_room_does_not_use_up_the_probe() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        refusals.failed("t", &refused(), now);
        let now = now + seconds(1.0);
        assert_eq!(refusals.way("t", now, false), Way::Closed(refused()));
        assert_eq!(refusals.way("t", now, true), Way::Careful);
    }

    #[test]
    fn other_topics_are_free() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        assert!(refusals.is_empty());
        refusals.failed("t", &refused(), now);
        assert_eq!(refusals.way("u", now, true), Way::Free);
    }

    #[test]
    fn a_topic_that_takes_a_message_again_is_open_and_sent_carefully_for_a_while() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        refusals.failed("t", &refused(), now);
        let now = now + seconds(1.0);
        assert_eq!(refusals.way("t", now, true), Way::Careful);
        refusals.confirmed("t");
        assert_eq!(refusals.way("t", now, true), Way::Careful);
        assert_eq!(refusals.way("t", now, true), Way::Careful);
        assert_eq!(refusals.way("t", now + seconds(10.0), true), Way::Free);
        assert_eq!(refusals.closed(), 0);
    }

    #[test]
    fn the_messages_that_fail_together_are_one_refusal() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        for _ in 0..100 {
            refusals.failed("t", &refused(), now);
        }
        assert_eq!(refusals.way("t", now + seconds(1.0), true), Way::Careful);
    }

    #[test]
    fn a_probe_without_an_answer_is_followed_by_another_after_a_rest() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        refusals.failed("t", &refused(), now);
        assert_eq!(refusals.way("t", now + seconds(1.0), true), Way::Careful);
        assert_eq!(refusals.way("t", now + seconds(1.9), true), Way::Closed(refused()));
        assert_eq!(refusals.way("t", now + seconds(2.0), true), Way::Careful);
    }

    #[test]
    fn a_bad_message_closes_no_topic_and_is_sent_for_longer_when_it_comes_again() {
        let (refusals, mut now) = (Refusals::default(), Instant::now());
        for careful in [10.0, 20.0, 40.0] {
            refusals.failed("t", &too_large(), now);
            refusals.failed("t", &too_large(), now);
            assert_eq!(refusals.way("t", now, true), Way::Careful);
            assert_eq!(
                refusals.way("t", now + seconds(careful - 0.1), true),
                Way::Careful,
                "{careful}"
            );
            now += seconds(careful);
            assert_eq!(refusals.way("t", now, true), Way::Free, "{careful}");
        }
        refusals.failed("t", &too_large(), now + MEMORY);
        assert_eq!(refusals.way("t", now + MEMORY + seconds(10.0), true), Way::Free, "forgotten");
    }
}
