//! The errors of a store and of a publisher.

use std::error::Error;
use std::fmt;

/// An error of a store: [`kind`](Self::kind) says what the caller can do about it.
#[derive(Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// What a caller can do about a [`StoreError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The database does not answer, or not now: try again later. What the statement did is unknown.
    Unavailable,
    /// The database refuses this statement's data: try with less of it.
    Rejected,
    /// Schema, rights or settings are wrong: an operator must act; the message says how.
    Misconfigured,
    /// The worker has been buried by others: start over under a new id.
    Stale,
}

impl StoreErrorKind {
    /// The kind in one word, for labels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Rejected => "rejected",
            Self::Misconfigured => "misconfigured",
            Self::Stale => "stale",
        }
    }
}

impl StoreError {
    /// An error of this kind; `message` says what was attempted, on which table, and the way out.
    #[must_use]
    pub fn new(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// An error that an operator must mend.
    #[must_use]
    pub fn misconfigured(message: impl Into<String>) -> Self {
        Self::new(StoreErrorKind::Misconfigured, message)
    }

    /// A pipeline that would relay types which another one relays already from the outbox at `place`.
    #[must_use]
    pub fn overlapping(pipeline: &str, other: &str, place: &str) -> Self {
        Self::misconfigured(format!(
            "pipelines {pipeline} and {other} on {place} would both relay some aggregate types: make their type filters \
             disjoint, or stop the workers of {other} and wait until their leases have run out"
        ))
    }

    /// A database that does not answer.
    #[must_use]
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StoreErrorKind::Unavailable, message)
    }

    /// The same error with its cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What the caller can do about it.
    #[must_use]
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

/// An error and its causes in one line, for logs.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// A publisher that cannot do its work: [`kind`](Self::kind) says what the caller can do about it.
#[derive(Debug)]
pub struct PublishError {
    kind: PublishErrorKind,
    message: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// What a caller can do about a [`PublishError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PublishErrorKind {
    /// The broker does not answer, or not now: try again later.
    Unavailable,
    /// Settings, rights or what should be there at the broker are wrong: an operator must act; the message says how.
    Misconfigured,
}

impl PublishErrorKind {
    /// The kind in one word, for labels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Misconfigured => "misconfigured",
        }
    }
}

impl PublishError {
    /// An error of this kind; `message` says what does not work and which setting to look at.
    #[must_use]
    pub fn new(kind: PublishErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// An error that an operator must mend.
    #[must_use]
    pub fn misconfigured(message: impl Into<String>) -> Self {
        Self::new(PublishErrorKind::Misconfigured, message)
    }

    /// A broker that does not answer.
    #[must_use]
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(PublishErrorKind::Unavailable, message)
    }

    /// What the caller can do about it.
    #[must_use]
    pub fn kind(&self) -> PublishErrorKind {
        self.kind
    }

    /// The same error with its cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for PublishError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}
