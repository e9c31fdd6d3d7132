//! Numbers for the events of each aggregate, as a writer draws them.

use std::collections::BTreeMap;

use crate::{NewEvent, StoreError, headers};

/// The numbers that a slice of events needs, for those who write a store whose writers number events.
///
/// Draw them for each aggregate of [`wanted`](Self::wanted), in its order, under a lock on the aggregate that lasts until the
/// transaction ends, and before the rows draw their positions: then numbers, positions and commits have one order, a
/// rollback takes its numbers back, and writers of the same aggregates do not lock each other out.
#[derive(Debug)]
pub struct Numbers<'a> {
    events: &'a [NewEvent],
    counts: BTreeMap<Aggregate<'a>, u64>,
}

/// Type and id.
type Aggregate<'a> = (&'a str, &'a str);

impl<'a> Numbers<'a> {
    /// The numbers for these events.
    #[must_use]
    pub fn of(events: &'a [NewEvent]) -> Self {
        let mut counts = BTreeMap::new();
        for aggregate in events.iter().filter_map(aggregate) {
            *counts.entry(aggregate).or_default() += 1;
        }
        Self { events, counts }
    }

    /// Each aggregate's type and id, ordered byte for byte, and how many numbers it needs.
    pub fn wanted(&self) -> impl ExactSizeIterator<Item = (&'a str, &'a str, u64)> {
        self.counts.iter().map(|((kind, id), count)| (*kind, *id, *count))
    }

    /// The headers of the events with their numbers, in the order of the slice. `drawn` is the last number of each
    /// aggregate, which ends those that were drawn for it.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when an aggregate is missing in it, which cannot be while the table at `place` compares byte for byte.
    pub fn headers(
        self,
        place: &str,
        drawn: impl IntoIterator<Item = (String, String, u64)>,
    ) -> Result<Vec<Option<String>>, StoreError> {
        let drawn: Vec<(String, String, u64)> = drawn.into_iter().collect();
        let mut before: BTreeMap<Aggregate<'_>, u64> = BTreeMap::new();
        for (kind, id, last) in &drawn {
            let count = self.counts.get(&(kind.as_str(), id.as_str())).copied().unwrap_or(0);
            before.insert((kind, id), last.saturating_sub(count));
        }
        let mut numbered = |event: &'a NewEvent| {
            let Some(aggregate) = aggregate(event) else {
                return Ok(event.headers().map(str::to_owned));
            };
            let number = before.get_mut(&aggregate).ok_or_else(|| missing(place, aggregate))?;
            *number += 1;
            Ok(Some(headers::with_sequence(event.headers(), *number)))
        };
        self.events.iter().map(&mut numbered).collect()
    }
}

fn missing(place: &str, (kind, id): Aggregate<'_>) -> StoreError {
    StoreError::misconfigured(format!(
        "{place} gave no number to {kind:?} {id:?}: it is not as this version expects it, run the schema check"
    ))
}

/// The aggregate in which an event has a place: an unordered one has none, and a scheduled one comes when it is due.
fn aggregate(event: &NewEvent) -> Option<Aggregate<'_>> {
    let id = event.aggregate_id().filter(|_| event.due().is_none())?;
    Some((event.aggregate_type(), id))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Due, StoreErrorKind};

    fn event(kind: &str, id: &str) -> NewEvent {
        NewEvent::builder(kind, id, "Created").build().unwrap()
    }

    #[test]
    fn each_event_gets_the_next_number_of_its_aggregate() {
        let due = NewEvent::builder("order", "a", "x").due(Due::After(Duration::ZERO)).build();
        let unordered = NewEvent::builder("order", "", "x").unordered().build();
        let own = NewEvent::builder("order", "b", "x").header("x", "y").build();
        let events = [
            event("order", "b"),
            event("order", "a"),
            due.unwrap(),
            unordered.unwrap(),
            own.unwrap(),
        ];
        let numbers = Numbers::of(&events);
        let wanted: Vec<_> = numbers.wanted().collect();
        assert_eq!(wanted, [("order", "a", 1), ("order", "b", 2)]);
        let drawn =
            [("order".to_owned(), "b".to_owned(), 7), ("order".to_owned(), "a".to_owned(), 1)];
        let headers = numbers.headers("t", drawn).unwrap();
        let headers: Vec<_> = headers.iter().map(Option::as_deref).collect();
        let [b, a] = [r#"{"outbox-sequence":"6"}"#, r#"{"outbox-sequence":"1"}"#];
        let own = r#"{"outbox-sequence":"7","x":"y"}"#;
        assert_eq!(headers, [Some(b), Some(a), None, None, Some(own)]);
    }

    #[test]
    fn without_its_number_no_event_is_written() {
        let events = [event("order", "a")];
        let folded = [("order".to_owned(), "A".to_owned(), 1)];
        let error = Numbers::of(&events).headers("t", folded).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Misconfigured);
    }
}
