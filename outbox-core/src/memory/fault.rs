//! The script of a memory publisher: which messages go wrong, and how.

use std::fmt;
use std::time::Duration;

use crate::{EventId, Failure, Message};

/// What happens to a message instead of being taken at once.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// It is not taken, and this is the verdict.
    Refuse(Failure),
    /// It is taken, and confirmed, this much later: also when the call was dropped meanwhile, but not after
    /// [`abandon`](crate::Publisher::abandon).
    Slow(Duration),
    /// It is not taken and no verdict comes: the call stands until it is abandoned.
    Silent,
    /// It is taken, but the verdict is lost: the call stands until it is abandoned.
    Lost,
    /// The publish call panics.
    Panic,
}

/// Which messages meet a [`Fault`], and how often.
pub struct FaultRule {
    matches: Box<Matches>,
    fault: Fault,
    left: u32,
}

/// Whether a message, the `n`-th that was tried, meets the fault.
type Matches = dyn Fn(&Message, u64) -> bool + Send;

impl FaultRule {
    /// For every message.
    #[must_use]
    pub fn always(fault: Fault) -> Self {
        Self::new(|_, _| true, fault)
    }

    /// For the event with this id.
    #[must_use]
    pub fn on_id(id: &EventId, fault: Fault) -> Self {
        let id = id.clone();
        Self::new(move |message, _| *message.id() == id, fault)
    }

    /// For events of this type.
    #[must_use]
    pub fn on_type(event_type: impl Into<String>, fault: Fault) -> Self {
        let event_type = event_type.into();
        Self::new(move |message, _| message.event_type() == event_type, fault)
    }

    /// For the `n`-th message that the publisher tries to send, from 1; every try counts.
    #[must_use]
    pub fn on_nth(n: u64, fault: Fault) -> Self {
        Self::new(move |_, nth| nth == n, fault)
    }

    /// For the messages that `matches` says yes to.
    #[must_use]
    pub fn when(matches: impl Fn(&Message) -> bool + Send + 'static, fault: Fault) -> Self {
        Self::new(move |message, _| matches(message), fault)
    }

    /// The first `times` of these messages only.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.left = times;
        self
    }

    fn new(matches: impl Fn(&Message, u64) -> bool + Send + 'static, fault: Fault) -> Self {
        Self { matches: Box::new(matches), fault, left: u32::MAX }
    }

    /// The fault that the `nth` message tried meets by this rule.
    pub(super) fn strike(&mut self, message: &Message, nth: u64) -> Option<Fault> {
        if self.left == 0 || !(self.matches)(message, nth) {
            return None;
        }
        self.left -= 1;
        Some(self.fault.clone())
    }
}

impl fmt::Debug for FaultRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultRule").field("fault", &self.fault).finish_non_exhaustive()
    }
}
