//! What a mark consists of, the same in every database.

use std::borrow::Cow;
use std::sync::Arc;

use super::InboxTable;
use super::table::Consumers;
use crate::{StoreError, StoreErrorKind};

/// The longest consumer name, and the longest event id together with its source, in bytes.
pub const MAX_MARK_BYTES: usize = 255;

/// Ends the source in a stored id.
const END_OF_SOURCE: char = ':';

/// What an inbox checks of a mark, and what it stores as the event's id. For those who write an inbox.
///
/// ```
/// # use outbox_core::{InboxTable, Marks};
/// let marks = Marks::new(&InboxTable::shared("inbox", "consumer", "event_id")).with_source("orders")?;
/// assert_eq!(marks.event_id("billing", "7")?, "orders:7");
/// # Ok::<(), outbox_core::StoreError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Marks {
    table: Arc<str>,
    only: Option<Arc<str>>,
    /// With its end.
    source: Option<Arc<str>>,
}

impl Marks {
    /// The marks of this table, whose ids stand for themselves.
    #[must_use]
    pub fn new(table: &InboxTable) -> Self {
        let only = match &table.consumers {
            Consumers::Only(consumer) => Some(consumer.as_str().into()),
            Consumers::Column(_) => None,
        };
        Self { table: table.table.as_str().into(), only, source: None }
    }

    /// Ids are those of one producer: `7` of `orders` is stored as `orders:7`, so that producers whose ids are equal do
    /// not hide each other's events. The first colon ends the source.
    ///
    /// # Errors
    ///
    /// `Misconfigured` when the source is empty or holds a colon or a NUL.
    pub fn with_source(mut self, source: &str) -> Result<Self, StoreError> {
        if source.is_empty() || source.contains([END_OF_SOURCE, '\0']) {
            return Err(StoreError::misconfigured(format!(
                "inbox source {source:?} must not be empty and must hold no {END_OF_SOURCE:?} and no NUL"
            )));
        }
        self.source = Some(format!("{source}{END_OF_SOURCE}").into());
        Ok(self)
    }

    /// In this table instead, whose name stands in what is refused.
    #[must_use]
    pub fn with_table(self, table: &InboxTable) -> Self {
        Self { source: self.source, ..Self::new(table) }
    }

    /// What is stored as the id of this event.
    ///
    /// # Errors
    ///
    /// `Rejected` when a text is longer than [`MAX_MARK_BYTES`] or holds a NUL; `Misconfigured` when the table is
    /// another consumer's.
    pub fn event_id<'a>(
        &self,
        consumer: &str,
        event_id: &'a str,
    ) -> Result<Cow<'a, str>, StoreError> {
        self.stored(consumer, "event id", event_id)
    }

    /// What is stored as the key of an aggregate, and as the number of one of its events.
    ///
    /// # Errors
    ///
    /// As [`event_id`](Self::event_id), and `Rejected` when the number is larger than a column of 64 bits takes.
    pub fn arrival<'a>(
        &self,
        consumer: &str,
        key: &'a str,
        sequence: u64,
    ) -> Result<(Cow<'a, str>, i64), StoreError> {
        let key = self.stored(consumer, "key", key)?;
        let number = i64::try_from(sequence)
            .map_err(|_| self.rejected(&format!("no aggregate has {sequence} events")))?;
        Ok((key, number))
    }

    fn stored<'a>(
        &self,
        consumer: &str,
        what: &str,
        text: &'a str,
    ) -> Result<Cow<'a, str>, StoreError> {
        if let Some(only) = self.only.as_deref().filter(|only| *only != consumer) {
            return Err(StoreError::misconfigured(format!(
                "the inbox table {} has no column for the consumer and belongs to {only:?}: {consumer:?} needs a table \
                 of its own, or one with such a column",
                self.table
            )));
        }
        let (stored, with_source): (Cow<'_, str>, _) = match &self.source {
            Some(source) => (format!("{source}{text}").into(), " with its source"),
            None => (text.into(), ""),
        };
        for (what, text) in [("consumer", consumer), (&*format!("{what}{with_source}"), &*stored)] {
            if text.len() > MAX_MARK_BYTES {
                let bytes = text.len();
                let reason = format!("the {what} has {bytes} bytes, {MAX_MARK_BYTES} are allowed");
                return Err(self.rejected(&reason));
            }
            if text.contains('\0') {
                return Err(self.rejected(&format!("the {what} holds a NUL")));
            }
        }
        Ok(stored)
    }

    fn rejected(&self, reason: &str) -> StoreError {
        let message = format!("cannot mark an event in {}: {reason}", self.table);
        StoreError::new(StoreErrorKind::Rejected, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks() -> Marks {
        Marks::new(&InboxTable::shared("inbox", "consumer", "event_id"))
    }

    fn kind(result: Result<Cow<'_, str>, StoreError>) -> StoreErrorKind {
        result.expect_err("refused").kind()
    }

    #[test]
    fn a_source_and_an_id_are_told_apart_in_what_is_stored() {
        let orders = marks().with_source("orders").unwrap();
        assert_eq!(orders.event_id("c", "a:7").unwrap(), "orders:a:7");
        for source in ["", "orders:a", "a\0"] {
            assert!(marks().with_source(source).is_err(), "{source:?}");
        }
    }

    #[test]
    fn what_is_too_long_is_refused_and_never_cut() {
        let (longest, longer) = ("x".repeat(255), "x".repeat(256));
        assert_eq!(marks().event_id(&longest, &longest).unwrap(), longest);
        assert_eq!(kind(marks().event_id(&longer, "1")), StoreErrorKind::Rejected);
        assert_eq!(kind(marks().event_id("c", &longer)), StoreErrorKind::Rejected);
        assert_eq!(kind(marks().event_id("c", "a\0")), StoreErrorKind::Rejected);
        let orders = marks().with_source("orders").unwrap();
        assert_eq!(kind(orders.event_id("c", &longest)), StoreErrorKind::Rejected);
    }

    #[test]
    fn a_source_stays_when_another_table_is_named() {
        let table = InboxTable::shared("handled", "handler", "message");
        let orders = marks().with_source("orders").unwrap().with_table(&table);
        assert_eq!(orders.event_id("c", "7").unwrap(), "orders:7");
        let error = orders.event_id("c", "\0").unwrap_err().to_string();
        assert_eq!(
            error,
            "cannot mark an event in handled: the event id with its source holds a NUL"
        );
    }

    #[test]
    fn a_key_is_qualified_and_a_number_fits_its_column() {
        let orders = marks().with_source("orders").unwrap();
        assert_eq!(orders.arrival("c", "7", 1).unwrap(), ("orders:7".into(), 1));
        assert!(marks().arrival("c", "7", i64::MAX.cast_unsigned()).is_ok());
        for (key, number) in [("7", i64::MAX.cast_unsigned() + 1), (&"x".repeat(256), 1)] {
            let error = marks().arrival("c", key, number).unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Rejected);
        }
    }

    /// B274: a table without a column for the consumer serves one, and tells a second one so instead of hiding events.
    #[test]
    fn a_table_of_one_consumer_refuses_another() {
        let marks = Marks::new(&InboxTable::of_one("billing", "processed_events", "event_id"));
        assert_eq!(marks.event_id("billing", "1").unwrap(), "1");
        assert_eq!(kind(marks.event_id("mailing", "1")), StoreErrorKind::Misconfigured);
    }
}
