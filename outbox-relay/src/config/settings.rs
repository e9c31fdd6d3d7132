//! Tables of the file that are read by whoever knows their keys, with their places for errors.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::ConfigError;
use super::expand::{Environment, Fillings};

/// The file that is being read.
pub(super) struct File {
    path: PathBuf,
    text: String,
    fillings: Fillings,
}

impl File {
    pub(super) fn new(path: &Path, text: String, environment: impl Environment + 'static) -> Self {
        let folder = path.parent().unwrap_or(Path::new(""));
        Self { path: path.to_owned(), text, fillings: Fillings::new(folder, environment) }
    }

    /// What stands in the file, with its variables filled in: the same at each call.
    pub(super) fn tree(&self) -> Result<DeTable<'_>, ConfigError> {
        let tree = DeTable::parse(&self.text).map_err(|error| self.error(&error, 0..0))?;
        let mut tree = tree.into_inner();
        self.fillings.fill(&mut tree).map_err(|(place, reason)| self.at(place, reason))?;
        Ok(tree)
    }

    /// Reads a part of the tree; a key that its type does not know is a mistake.
    pub(super) fn read<T: DeserializeOwned>(
        &self,
        part: Spanned<DeValue<'_>>,
    ) -> Result<T, ConfigError> {
        let place = part.span();
        T::deserialize(ValueDeserializer::from(part)).map_err(|error| self.error(&error, place))
    }

    /// A mistake at this place; an empty one stands for the whole file.
    pub(super) fn at(&self, place: Range<usize>, reason: impl Into<String>) -> ConfigError {
        let before = self.text.get(..place.start).filter(|_| !place.is_empty());
        let place = before.map(|before| {
            let line = before.matches('\n').count() + 1;
            let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
            (line, column)
        });
        ConfigError::new(&self.path, place, reason)
    }

    fn error(&self, error: &toml::de::Error, place: Range<usize>) -> ConfigError {
        self.at(error.span().unwrap_or(place), explain(error.message()))
    }
}

/// A table as text that differs when a value differs.
pub(super) fn text(table: &DeTable<'_>) -> String {
    fn value(value: &DeValue<'_>) -> String {
        match value {
            DeValue::Table(table) => text(table),
            DeValue::Array(list) => {
                let list: Vec<String> = list.iter().map(value_of).collect();
                format!("[{}]", list.join(","))
            }
            value => format!("{value:?}"),
        }
    }
    fn value_of(part: &Spanned<DeValue<'_>>) -> String {
        value(part.get_ref())
    }
    let pairs = table.iter().map(|(key, part)| format!("{:?}={}", key.get_ref(), value_of(part)));
    format!("{{{}}}", pairs.collect::<Vec<_>>().join(","))
}

/// The parser's text for people: it names the nearest known key, and leaves out a value that is a text, which may be a
/// secret.
fn explain(message: &str) -> String {
    if let Some((unknown, known)) =
        message.strip_prefix("unknown field `").and_then(|rest| rest.split_once("`, "))
    {
        let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
        let nearest = known.iter().max_by(|a, b| {
            strsim::jaro_winkler(a, unknown).total_cmp(&strsim::jaro_winkler(b, unknown))
        });
        return match nearest {
            Some(nearest) => {
                format!(
                    "{unknown} is no key here; did you mean {nearest}? There are {}",
                    known.join(", ")
                )
            }
            None => format!("{unknown} is no key here: this table has none"),
        };
    }
    if let Some((_, known)) =
        message.strip_prefix("unknown variant `").and_then(|rest| rest.split_once("`, "))
    {
        return format!("this is no choice here: {known}");
    }
    match (message.find(": string \""), message.rfind("\", expected ")) {
        (Some(begin), Some(end)) if begin < end => {
            format!("{}: a string{}", &message[..begin], &message[end + 1..])
        }
        _ => message.to_owned(),
    }
}

/// The table of a source or a publisher: its `kind` and what that kind goes by. Whoever makes an adapter reads it into a
/// type of its own.
#[derive(Clone)]
pub struct Settings {
    file: Arc<File>,
    /// Which of the file's pipelines this belongs to, from 0.
    pipeline: usize,
    key: &'static str,
    place: Range<usize>,
    kind: String,
}

impl Settings {
    pub(super) fn new(
        file: &Arc<File>,
        pipeline: usize,
        key: &'static str,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Self, ConfigError> {
        let place = value.span();
        let Some(table) = value.get_ref().as_table() else {
            return Err(file.at(place, format!("{key} is a table: write [pipeline.{key}]")));
        };
        let kind = table
            .get("kind")
            .ok_or_else(|| file.at(place.clone(), format!("[pipeline.{key}] has no kind")))?;
        let Some(name) = kind.get_ref().as_str() else {
            return Err(file.at(kind.span(), "kind is a string"));
        };
        Ok(Self { file: file.clone(), pipeline, key, place, kind: name.to_owned() })
    }

    /// Which adapter this is for.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Reads all keys but `kind`. Put `#[serde(deny_unknown_fields)]` on the type: a key that is misspelt is a mistake then,
    /// with the nearest known one.
    ///
    /// # Errors
    ///
    /// Names file, line, column and key of the first thing that is wrong.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        let mut tree = self.file.tree()?;
        let pipelines = tree.get_mut("pipeline").map(Spanned::get_mut);
        let table = match pipelines {
            Some(DeValue::Array(pipelines)) => pipelines.get_mut(self.pipeline),
            _ => None,
        };
        let table = match table.map(Spanned::get_mut) {
            Some(DeValue::Table(pipeline)) => pipeline.remove(self.key),
            _ => None,
        };
        let mut table =
            table.expect("it was there when the file was read, and the text has not changed");
        if let DeValue::Table(table) = table.get_mut() {
            table.remove("kind");
        }
        self.file.read(table)
    }

    /// A mistake in these settings that only their reader can see; `reason` holds no value that may be a secret.
    #[must_use]
    pub fn wrong(&self, reason: impl Into<String>) -> ConfigError {
        self.file.at(self.place.clone(), reason)
    }
}

/// Nothing but the kind: any value may be a secret.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("kind", &self.kind).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::explain;

    #[test]
    fn an_unknown_key_is_named_with_the_nearest_known_one() {
        let told = explain("unknown field `tabel`, expected one of `url`, `table`, `lanes`");
        assert_eq!(told, "tabel is no key here; did you mean table? There are url, table, lanes");
        let told = explain("unknown field `x`, expected `url`");
        assert_eq!(told, "x is no key here; did you mean url? There are url");
        assert_eq!(
            explain("unknown field `x`, there are no fields"),
            "x is no key here: this table has none"
        );
    }

    #[test]
    fn a_value_of_the_wrong_type_is_not_shown() {
        let told = explain("invalid type: string \"hunter2 \\\", expected \\\"\", expected u16");
        assert_eq!(told, "invalid type: a string, expected u16");
        let told = explain("unknown variant `hunter2`, expected `text` or `json`");
        assert_eq!(told, "this is no choice here: expected `text` or `json`");
        let told = explain("invalid value: string \"hunter2\", expected a duration");
        assert_eq!(told, "invalid value: a string, expected a duration");
    }
}
