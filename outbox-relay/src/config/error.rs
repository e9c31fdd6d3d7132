//! What is wrong with a configuration file, and where.

use std::fmt;
use std::path::{Path, PathBuf};

/// A mistake in a configuration file. Its text names file, line, column and key, never a value: that might be a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    file: PathBuf,
    /// Line and column, from 1, in characters.
    place: Option<(usize, usize)>,
    reason: String,
}

impl ConfigError {
    pub(super) fn new(
        file: &Path,
        place: Option<(usize, usize)>,
        reason: impl Into<String>,
    ) -> Self {
        Self { file: file.to_owned(), place, reason: reason.into() }
    }

    pub(super) fn unreadable(file: &Path, error: &std::io::Error) -> Self {
        Self::new(file, None, format!("the file cannot be read: {error}"))
    }

    /// Line and column, from 1; `None` when the mistake has no place of its own.
    #[must_use]
    pub fn place(&self) -> Option<(usize, usize)> {
        self.place
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some((line, column)) = self.place {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.reason)
    }
}

impl std::error::Error for ConfigError {}
