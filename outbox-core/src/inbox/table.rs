//! Which table keeps the marks.

use crate::StoreError;

/// The table of an inbox, by its own names: for one that is there already.
///
/// ```
/// use outbox_core::InboxTable;
/// // create table processed_events (event_id varchar(255) primary key, processed_at timestamptz)
/// let table = InboxTable::of_one("billing", "processed_events", "event_id").with_seen_at("processed_at");
/// // create table handled (handler text, message text, primary key (handler, message))
/// let table = InboxTable::shared("handled", "handler", "message");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InboxTable {
    /// The table, in the schema or database of the outbox's settings.
    pub table: String,
    /// Who uses the table.
    pub consumers: Consumers,
    /// The column of the event's id: text that compares byte for byte.
    pub event_id: String,
    /// The column of the time of the mark; without one nothing can be purged by age.
    pub seen_at: Option<String>,
}

/// Who uses an inbox table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Consumers {
    /// Any number, told apart by this column. The key of the table is (consumer, event id).
    Column(String),
    /// This one, and no other. The key of the table is the event id alone, so that a second consumer would never see an
    /// event that the first has handled.
    Only(String),
}

impl InboxTable {
    /// A table of several consumers, with the key (`consumer`, `event_id`).
    #[must_use]
    pub fn shared(
        table: impl Into<String>,
        consumer: impl Into<String>,
        event_id: impl Into<String>,
    ) -> Self {
        Self::new(table, Consumers::Column(consumer.into()), event_id)
    }

    /// A table without a column for the consumer, with the key `event_id`: for `consumer` only.
    #[must_use]
    pub fn of_one(
        consumer: impl Into<String>,
        table: impl Into<String>,
        event_id: impl Into<String>,
    ) -> Self {
        Self::new(table, Consumers::Only(consumer.into()), event_id)
    }

    /// The inbox that a store creates beside its outbox table of this name.
    #[must_use]
    pub fn beside(outbox: &str) -> Self {
        Self::shared(format!("{outbox}_inbox"), "consumer", "event_id").with_seen_at("seen_at")
    }

    fn new(table: impl Into<String>, consumers: Consumers, event_id: impl Into<String>) -> Self {
        Self { table: table.into(), consumers, event_id: event_id.into(), seen_at: None }
    }

    /// With this column for the time of the mark.
    #[must_use]
    pub fn with_seen_at(mut self, seen_at: impl Into<String>) -> Self {
        self.seen_at = Some(seen_at.into());
        self
    }

    /// The column of the time, for a purge.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when the table has none.
    pub fn purged_by(&self) -> Result<&str, StoreError> {
        self.seen_at.as_deref().ok_or_else(|| {
            StoreError::misconfigured(format!(
                "cannot purge the inbox table {} by age: it names no column for the time of a mark \
                 (InboxTable::with_seen_at)",
                self.table
            ))
        })
    }

    /// The column of the consumer.
    #[must_use]
    pub fn consumer(&self) -> Option<&str> {
        match &self.consumers {
            Consumers::Column(column) => Some(column),
            Consumers::Only(_) => None,
        }
    }

    /// The columns of the key, in their order.
    #[must_use]
    pub fn key(&self) -> Vec<&str> {
        self.consumer().into_iter().chain([self.event_id.as_str()]).collect()
    }

    /// The same with every name as `quote` writes it, for use in a statement.
    #[must_use]
    pub fn quoted(&self, quote: impl Fn(&str) -> String) -> Self {
        let consumers = match &self.consumers {
            Consumers::Column(column) => Consumers::Column(quote(column)),
            only @ Consumers::Only(_) => only.clone(),
        };
        Self {
            table: quote(&self.table),
            consumers,
            event_id: quote(&self.event_id),
            seen_at: self.seen_at.as_deref().map(quote),
        }
    }

    /// The columns of a mark and their values, each as a list with commas: the id, the consumer where it has a column, and
    /// the time where it has one.
    #[must_use]
    pub fn mark(&self, event_id: &str, consumer: &str, now: &str) -> [String; 2] {
        let consumer = self.consumer().map(|column| (column, consumer));
        let seen_at = self.seen_at.as_deref().map(|column| (column, now));
        let mark = [(self.event_id.as_str(), event_id)].into_iter().chain(consumer).chain(seen_at);
        let (columns, values): (Vec<&str>, Vec<&str>) = mark.unzip();
        [columns.join(", "), values.join(", ")]
    }

    /// Refuses the table at `place`, against which this stands as an inbox.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when anything does.
    pub fn refuse(place: &str, faults: &[String]) -> Result<(), StoreError> {
        if faults.is_empty() {
            return Ok(());
        }
        let faults = faults.join("; ");
        Err(StoreError::misconfigured(format!("{place} is no inbox: {faults}")))
    }

    /// Every name in it, with what it names.
    pub fn names(&self) -> impl Iterator<Item = (&'static str, &str)> {
        [
            ("inbox table", Some(self.table.as_str())),
            ("inbox column consumer", self.consumer()),
            ("inbox column event_id", Some(self.event_id.as_str())),
            ("inbox column seen_at", self.seen_at.as_deref()),
        ]
        .into_iter()
        .filter_map(|(what, name)| Some((what, name?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_has_the_columns_that_the_table_has() {
        let quote = |name: &str| format!("<{name}>");
        let mark = |table: InboxTable| table.quoted(quote).mark("$1", "$2", "now()");
        let one = InboxTable::of_one("billing", "t", "id");
        assert_eq!(mark(one.clone()), ["<id>", "$1"]);
        assert_eq!(mark(one.with_seen_at("at")), ["<id>, <at>", "$1, now()"]);
        let beside = ["<event_id>, <consumer>, <seen_at>", "$1, $2, now()"];
        assert_eq!(mark(InboxTable::beside("outbox")), beside);
    }

    #[test]
    fn a_table_is_refused_with_everything_that_stands_against_it() {
        assert_eq!(InboxTable::refuse("t", &[]).map_err(|error| error.to_string()), Ok(()));
        let error = InboxTable::refuse("t", &["a".to_owned(), "b".to_owned()]).unwrap_err();
        assert_eq!(error.to_string(), "t is no inbox: a; b");
    }
}
