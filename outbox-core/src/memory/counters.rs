//! Counters that a transaction locks until it ends, as it would the rows of a table.

use std::collections::BTreeMap;

/// By aggregate type and id, or by consumer and key.
type Key = (String, String);

#[derive(Debug, Default)]
pub(super) struct Counters(BTreeMap<Key, Counter>);

#[derive(Debug, Default)]
struct Counter {
    value: u64,
    /// The open transaction that has it.
    by: Option<u64>,
}

/// What a transaction did to a counter.
#[derive(Debug)]
pub(super) struct Change {
    key: Key,
    /// The value until then.
    pub(super) before: u64,
    /// Whether it locked the counter.
    locked: bool,
}

impl Counters {
    /// Locks a counter for this transaction and sets it to what `next` makes of its value; `None` while another one has it.
    pub(super) fn change(
        &mut self,
        transaction: u64,
        key: &Key,
        next: impl FnOnce(u64) -> u64,
    ) -> Option<Change> {
        let counter = self.0.entry(key.clone()).or_default();
        if counter.by.is_some_and(|by| by != transaction) {
            return None;
        }
        let locked = counter.by.replace(transaction).is_none();
        let before = counter.value;
        counter.value = next(before);
        Some(Change { key: key.clone(), before, locked })
    }

    /// At the commit.
    pub(super) fn keep(&mut self, changes: &[Change]) {
        for change in changes {
            self.counter(change).by = None;
        }
    }

    /// The newest first.
    pub(super) fn undo(&mut self, changes: &[Change]) {
        for change in changes.iter().rev() {
            let counter = self.counter(change);
            counter.value = change.before;
            if change.locked {
                counter.by = None;
            }
        }
    }

    fn counter(&mut self, change: &Change) -> &mut Counter {
        self.0.get_mut(&change.key).expect("what was changed is there")
    }
}
