//! Compares what writers committed with what the broker holds, and says which promise is broken.
//!
//! A pure function over a [`History`]: no server, no clock. Order within an aggregate is judged by a counter that the
//! writer keeps under the lock of the aggregate's own row, so nothing here trusts a column of the outbox.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

#[cfg(test)]
mod tests;

/// Checks every promise; the report names each break once.
///
/// # Panics
///
/// When the history is no history: an id given twice, or committed versions of an aggregate that are not 1, 2, 3, ….
pub(crate) fn check(history: &History) -> Report {
    let intents = intents_by_id(history);
    let mut report = Report::default();
    check_arrivals(history, &intents, &mut report);
    check_fates(history, &intents, &mut report);
    check_order(history, &intents, &mut report);
    check_repeats(history, &mut report);
    report
}

/// What was written, what arrived, what is left in the tables, and what was done to the system meanwhile.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// Everything that a writer appended, rolled back or not.
    pub(crate) intents: Vec<Intent>,
    /// Everything that the broker holds.
    pub(crate) arrivals: Vec<Arrival>,
    /// Ids in the dead-letter table at the end.
    pub(crate) dead: Vec<String>,
    /// Ids in the outbox table at the end.
    pub(crate) open: Vec<String>,
    /// Faults in the order in which they began.
    pub(crate) faults: Vec<Fault>,
    /// How long before a fault an event may have left that it still found unsettled, and how long after it repeats may
    /// come, in milliseconds.
    pub(crate) reach_ms: i64,
}

/// An event as its writer meant it to arrive.
#[derive(Clone, Debug)]
pub(crate) struct Intent {
    pub(crate) id: String,
    /// Aggregate type and aggregate id.
    pub(crate) aggregate: (String, String),
    /// The aggregate's counter, raised in the same transaction.
    pub(crate) version: i64,
    pub(crate) committed: bool,
    pub(crate) content: Content,
}

/// The bytes of a message and where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) topic: String,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) payload: Option<Vec<u8>>,
    /// In the order of the wire.
    pub(crate) headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Content {
    /// The event's id: the value of the header `id`.
    pub(crate) fn id(&self) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(name, _)| name == "id")?;
        std::str::from_utf8(value.as_deref()?).ok()
    }

    fn differences(&self, other: &Self) -> Vec<&'static str> {
        let parts = [
            ("topic", self.topic != other.topic),
            ("key", self.key != other.key),
            ("payload", self.payload != other.payload),
            ("headers", self.headers != other.headers),
        ];
        parts.into_iter().filter(|(_, differs)| *differs).map(|(part, _)| part).collect()
    }
}

/// A message as the broker holds it.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    /// When the broker took it, in milliseconds since 1970.
    pub(crate) at_ms: i64,
    pub(crate) content: Content,
}

/// Something that was done to a part of the system.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    /// In milliseconds since 1970.
    pub(crate) from_ms: i64,
    /// In milliseconds since 1970.
    pub(crate) until_ms: i64,
    /// Events that were in flight at most: each may arrive once more.
    pub(crate) window: usize,
}

/// What [`check`] found.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) violations: Vec<Violation>,
    /// Distinct committed events that arrived.
    pub(crate) delivered: usize,
    /// Repeats by fault, in the order of the faults; a repeat that several explain counts for the first of them.
    pub(crate) repeats: Vec<(&'static str, usize)>,
}

impl Report {
    /// Panics with the first violations and their number when there are any.
    #[track_caller]
    pub(crate) fn assert_clean(&self) {
        let shown: Vec<String> = self.violations.iter().take(20).map(ToString::to_string).collect();
        assert!(
            self.violations.is_empty(),
            "{} promises broken, the first of them:\n{}",
            self.violations.len(),
            shown.join("\n")
        );
    }

    fn add(&mut self, promise: Promise, event: &str, what: impl Into<String>) {
        self.violations.push(Violation { promise, event: event.to_owned(), what: what.into() });
    }
}

/// A broken promise.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) promise: Promise,
    /// The event's id, as far as it is known.
    pub(crate) event: String,
    pub(crate) what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: event {}: {}", self.promise, self.event, self.what)
    }
}

/// The promises I1 to I7 as far as a history can break them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promise {
    /// I1: what was committed arrives or becomes a dead letter.
    NoLoss,
    /// I2: what arrives was committed.
    NoPhantom,
    /// I3: it arrives with the bytes that were written.
    ByteExact,
    /// I4: first appearances follow the aggregate's order.
    KeyOrder,
    /// I5: repeats come from a fault, and not more than were in flight.
    Repeats,
    /// I6: each event is in one place only.
    Accounting,
    /// I7: nothing is left undone once the faults are over.
    Progress,
}

type Intents<'a> = HashMap<&'a str, &'a Intent>;

fn intents_by_id(history: &History) -> Intents<'_> {
    let mut intents = Intents::new();
    let mut versions: BTreeMap<_, Vec<i64>> = BTreeMap::new();
    for intent in &history.intents {
        assert!(intents.insert(&intent.id, intent).is_none(), "id {} given twice", intent.id);
        if intent.committed {
            versions.entry(&intent.aggregate).or_default().push(intent.version);
        }
    }
    for (aggregate, mut versions) in versions {
        versions.sort_unstable();
        assert!(
            versions.iter().copied().eq(1..=versions.len() as i64),
            "committed versions of {aggregate:?} have gaps or repeats: {versions:?}"
        );
    }
    intents
}

/// I2 and I3.
fn check_arrivals(history: &History, intents: &Intents<'_>, report: &mut Report) {
    for arrival in &history.arrivals {
        let place = format!(
            "arrived in {}[{}]@{}",
            arrival.content.topic, arrival.partition, arrival.offset
        );
        let Some(id) = arrival.content.id() else {
            report.add(Promise::NoPhantom, "?", format!("{place} without an id"));
            continue;
        };
        match intents.get(id) {
            None => report.add(Promise::NoPhantom, id, format!("{place}, nobody wrote it")),
            Some(intent) if !intent.committed => {
                report.add(Promise::NoPhantom, id, format!("{place}, it was rolled back"));
            }
            Some(intent) => {
                let differences = intent.content.differences(&arrival.content);
                if !differences.is_empty() {
                    let what = format!(
                        "{place} with another {}: {:?} was written, {:?} arrived",
                        differences.join(" and "),
                        intent.content,
                        arrival.content
                    );
                    report.add(Promise::ByteExact, id, what);
                }
            }
        }
    }
}

/// I1, I6 and I7.
fn check_fates(history: &History, intents: &Intents<'_>, report: &mut Report) {
    let arrived: BTreeSet<&str> = history.arrivals.iter().filter_map(|a| a.content.id()).collect();
    let mut left: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (table, ids) in [("outbox", &history.open), ("dead-letter", &history.dead)] {
        for id in ids {
            left.entry(id).or_default().push(table);
        }
    }
    for (id, tables) in &left {
        if !intents.get(id).is_some_and(|intent| intent.committed) {
            report.add(Promise::NoPhantom, id, format!("is in {tables:?}, nobody committed it"));
        }
    }
    for intent in history.intents.iter().filter(|intent| intent.committed) {
        let id = intent.id.as_str();
        let tables = left.get(id).map_or(&[][..], Vec::as_slice);
        match (arrived.contains(id), tables) {
            (true, []) => report.delivered += 1,
            (false, ["dead-letter"]) => {}
            (false, ["outbox"]) => {
                report.add(Promise::Progress, id, "is still in the outbox table");
            }
            (false, []) => {
                let what = format!("{:?} version {} is nowhere", intent.aggregate, intent.version);
                report.add(Promise::NoLoss, id, what);
            }
            (arrived, tables) => {
                let what = format!("is in the tables {tables:?}, arrived: {arrived}");
                report.add(Promise::Accounting, id, what);
            }
        }
    }
}

/// I4.
fn check_order(history: &History, intents: &Intents<'_>, report: &mut Report) {
    let mut by_aggregate: BTreeMap<_, Vec<(&Intent, &Arrival)>> = BTreeMap::new();
    for arrival in &history.arrivals {
        let intent = arrival.content.id().and_then(|id| intents.get(id));
        if let Some(intent) = intent.filter(|intent| intent.committed) {
            by_aggregate.entry(&intent.aggregate).or_default().push((intent, arrival));
        }
    }
    for (aggregate, mut stream) in by_aggregate {
        stream.sort_unstable_by_key(|(_, a)| (a.partition, a.offset));
        let (first, last) = (stream[0], stream[stream.len() - 1]);
        if first.1.partition != last.1.partition {
            let what = format!(
                "{aggregate:?} is in partitions {} and {}: it has no order",
                first.1.partition, last.1.partition
            );
            report.add(Promise::KeyOrder, &last.0.id, what);
        }
        let mut seen = BTreeSet::new();
        for (at, (intent, _)) in stream.iter().enumerate() {
            let overtaken_by = seen.last().copied().filter(|last| *last > intent.version);
            if seen.insert(intent.version)
                && let Some(last) = overtaken_by
            {
                let what = format!(
                    "{aggregate:?} version {} first appears behind version {last}: {}",
                    intent.version,
                    around(&stream, at)
                );
                report.add(Promise::KeyOrder, &intent.id, what);
            }
        }
    }
}

/// The neighbourhood of an arrival in its aggregate's stream, for people.
fn around(stream: &[(&Intent, &Arrival)], at: usize) -> String {
    let from = at.saturating_sub(8);
    let until = stream.len().min(at + 4);
    let show = |(intent, arrival): &(&Intent, &Arrival)| {
        format!("v{}@{} at {} ms", intent.version, arrival.offset, arrival.at_ms)
    };
    stream[from..until].iter().map(show).collect::<Vec<_>>().join(", ")
}

/// I5: a repeat and the arrival before it both lie in the reach of one fault, whose window bounds their number.
fn check_repeats(history: &History, report: &mut Report) {
    let mut arrivals: Vec<&Arrival> = history.arrivals.iter().collect();
    arrivals.sort_by_key(|a| (a.at_ms, &a.content.topic, a.partition, a.offset));
    let mut last_seen: HashMap<&str, i64> = HashMap::new();
    let mut counts = vec![0; history.faults.len()];
    for arrival in arrivals {
        let Some(id) = arrival.content.id() else { continue };
        let Some(before_ms) = last_seen.insert(id, arrival.at_ms) else { continue };
        let explains = |fault: &Fault| {
            before_ms >= fault.from_ms - history.reach_ms
                && before_ms <= fault.until_ms + history.reach_ms
                && arrival.at_ms >= fault.from_ms
                && arrival.at_ms <= fault.until_ms + history.reach_ms
        };
        let explained = |(fault, count): (&Fault, &usize)| explains(fault) && *count < fault.window;
        if let Some(at) = history.faults.iter().zip(&counts).position(explained) {
            counts[at] += 1;
        } else {
            let why = match history.faults.iter().find(|fault| explains(fault)) {
                Some(fault) => {
                    format!("{} had {} events in flight at most", fault.name, fault.window)
                }
                None => "no fault explains it".to_owned(),
            };
            let what =
                format!("arrived at {before_ms} ms and again at {} ms: {why}", arrival.at_ms);
            report.add(Promise::Repeats, id, what);
        }
    }
    report.repeats = history.faults.iter().map(|fault| fault.name).zip(counts).collect();
}
