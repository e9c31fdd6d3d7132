//! Whether an event of an aggregate is the one that a consumer expects next: a pure policy.

/// Where an event stands in the sequence of its aggregate, as one consumer sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The one behind the last that was accepted. It is accepted now, in the consumer's transaction.
    Next,
    /// At or before the last one that was accepted: it was handled before, or given up when a gap was accepted.
    Duplicate,
    /// Events in between are missing. Nothing is accepted: the consumer decides.
    Gap {
        /// The number that comes next.
        expected: u64,
        /// The number that came.
        got: u64,
    },
    /// It has no number, so nothing can be told, and nothing is accepted: a writer that does not number has appended it, or it
    /// has no place in an order. It is to be handled as any other.
    Unnumbered,
}

impl Arrival {
    /// For those who write an inbox: of number `got`, when `last` was the last that was accepted; 0 is none.
    #[must_use]
    pub fn of(last: u64, got: u64) -> Self {
        match last.saturating_add(1) {
            expected if got == expected => Self::Next,
            expected if got > expected => Self::Gap { expected, got },
            _ => Self::Duplicate,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// H204: a gap is told with both numbers, never passed over.
    #[test]
    fn next_duplicate_and_gap_are_told_apart() {
        assert_eq!(Arrival::of(0, 1), Arrival::Next);
        assert_eq!(Arrival::of(7, 8), Arrival::Next);
        assert_eq!(Arrival::of(7, 7), Arrival::Duplicate);
        assert_eq!(Arrival::of(7, 1), Arrival::Duplicate);
        assert_eq!(Arrival::of(7, 9), Arrival::Gap { expected: 8, got: 9 });
        assert_eq!(Arrival::of(0, 5), Arrival::Gap { expected: 1, got: 5 });
    }
}
