//! How a store says that its tables are not as they should be.

use std::fmt;

/// One thing in the database that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drift {
    /// Whether a promise depends on it: then no relay starts. Otherwise it costs time, and is for whoever runs the check.
    pub hazard: bool,
    /// What: `column outbox.created_at`, say.
    pub what: String,
    /// How it is.
    pub found: String,
    /// How it should be, and where the way out is not obvious, the way out.
    pub expected: String,
}

impl Drift {
    /// A difference on which a promise depends.
    #[must_use]
    pub fn new(
        what: impl Into<String>,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> Self {
        Self { hazard: true, what: what.into(), found: found.into(), expected: expected.into() }
    }

    /// A table that is not there.
    #[must_use]
    pub fn missing(table: &str) -> Self {
        Self::new(format!("table {table}"), "missing", "to exist: run migrate")
    }

    /// The same difference where no promise depends on it.
    #[must_use]
    pub fn advice(self) -> Self {
        Self { hazard: false, ..self }
    }

    /// All hazards in one line; `None` when there are none.
    #[must_use]
    pub fn hazards(drift: &[Self]) -> Option<String> {
        let hazards: Vec<String> =
            drift.iter().filter(|drift| drift.hazard).map(ToString::to_string).collect();
        (!hazards.is_empty()).then(|| hazards.join("; "))
    }
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, expected {}", self.what, self.found, self.expected)
    }
}

/// Columns by which other outboxes mark a row as done. Here a row is pending for as long as it is there.
const FINISH_MARKERS: [&str; 16] = [
    "processed",
    "processed_at",
    "processed_on",
    "processed_on_utc",
    "published",
    "published_at",
    "publicado_em",
    "sent",
    "sent_at",
    "sent_on",
    "delivered_at",
    "dispatched_at",
    "completed_at",
    "finished_at",
    "status",
    "state",
];

/// Whether a column marks rows as done in somebody's outbox, however its name is written: `ProcessedOnUtc` as `processed_on_utc`.
#[must_use]
pub fn is_finish_marker(column: &str) -> bool {
    let plain = |name: &str| name.replace('_', "").to_ascii_lowercase();
    FINISH_MARKERS.iter().any(|marker| plain(marker) == plain(column))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finish_marker_is_one_however_its_name_is_written() {
        for marker in ["processed_on_utc", "ProcessedOnUtc", "PROCESSED_AT", "Status", "sentAt"] {
            assert!(is_finish_marker(marker), "{marker}");
        }
        for other in ["type", "processor", "status_code", "attempts", ""] {
            assert!(!is_finish_marker(other), "{other}");
        }
    }

    #[test]
    fn only_hazards_refuse() {
        let index = Drift::new("index a", "missing", "to be there");
        let advice = Drift::new("fillfactor", "100", "50").advice();
        assert_eq!(Drift::hazards(std::slice::from_ref(&advice)), None);
        let both = [index.clone(), advice, Drift::missing("b")];
        let expected = "index a is missing, expected to be there; table b is missing, expected to exist: run migrate";
        assert_eq!(Drift::hazards(&both).as_deref(), Some(expected));
    }
}
