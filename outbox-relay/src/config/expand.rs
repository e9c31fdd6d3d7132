//! `${NAME}` and `${file:PATH}` in the strings of a configuration file.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Where variables and files come from.
pub(super) trait Environment: Send + Sync {
    fn variable(&self, name: &str) -> Option<String>;
    fn file(&self, path: &Path) -> std::io::Result<String>;
}

/// Those of this process.
pub(super) struct Process;

impl Environment for Process {
    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn file(&self, path: &Path) -> std::io::Result<String> {
        std::fs::read_to_string(path)
    }
}

/// What variables and files hold. Each is read once, so that all parts of a configuration see the same.
pub(super) struct Fillings {
    /// Where relative paths begin.
    folder: PathBuf,
    environment: Box<dyn Environment>,
    known: Mutex<BTreeMap<String, String>>,
}

/// A place in the file, and what is wrong there.
type Wrong = (Range<usize>, String);

impl Fillings {
    pub(super) fn new(folder: &Path, environment: impl Environment + 'static) -> Self {
        Self {
            folder: folder.to_owned(),
            environment: Box::new(environment),
            known: Mutex::default(),
        }
    }

    /// Fills in every string value: `${NAME}` by a variable of the environment, `${file:PATH}` by a file's content without the
    /// line ends at its end, `$$` by one `$`. Keys stay as they are, and what was filled in is not looked at again.
    pub(super) fn fill(&self, table: &mut DeTable<'_>) -> Result<(), Wrong> {
        table.iter_mut().try_for_each(|(_, value)| self.fill_value(value))
    }

    fn fill_value(&self, value: &mut Spanned<DeValue<'_>>) -> Result<(), Wrong> {
        let place = value.span();
        match value.get_mut() {
            DeValue::String(text) if text.contains('$') => {
                *text = Cow::Owned(self.filled(text).map_err(|reason| (place, reason))?);
                Ok(())
            }
            DeValue::Table(table) => self.fill(table),
            DeValue::Array(list) => list.iter_mut().try_for_each(|value| self.fill_value(value)),
            _ => Ok(()),
        }
    }

    fn filled(&self, text: &str) -> Result<String, String> {
        let mut filled = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            filled.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix('$') {
                filled.push('$');
                rest = after;
                continue;
            }
            let Some((name, after)) = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'))
            else {
                return Err(
                    "a $ stands alone: write ${NAME}, ${file:PATH}, or $$ for a dollar".to_owned()
                );
            };
            filled.push_str(&self.filling(name)?);
            rest = after;
        }
        filled.push_str(rest);
        Ok(filled)
    }

    fn filling(&self, name: &str) -> Result<String, String> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(filling) = known.get(name) {
            return Ok(filling.clone());
        }
        let filling = match name.strip_prefix("file:") {
            Some(path) => {
                let content = self.environment.file(&self.folder.join(path));
                let content =
                    content.map_err(|error| format!("the file {path} cannot be read: {error}"))?;
                content.trim_end_matches(['\r', '\n']).to_owned()
            }
            None => self
                .environment
                .variable(name)
                .ok_or_else(|| format!("the variable {name} of the environment is not set"))?,
        };
        known.insert(name.to_owned(), filling.clone());
        Ok(filling)
    }
}
