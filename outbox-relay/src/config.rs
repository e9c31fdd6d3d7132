//! The configuration file: one TOML file that names every pipeline. `docs/configuration.md` lists its keys.

mod error;
mod expand;
#[cfg(all(
    test,
    feature = "postgres",
    feature = "mysql",
    feature = "sqlite",
    feature = "kafka",
    feature = "rabbitmq",
    feature = "sqs"
))]
mod page;
mod pipeline;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use toml::Spanned;
use toml::de::DeValue;

pub use self::error::ConfigError;
pub use self::pipeline::PipelineConfig;
#[allow(
    unused_imports,
    reason = "a daemon may be built without any adapter that has durations"
)]
pub(crate) use self::pipeline::Span;
use self::settings::File;
pub use self::settings::Settings;

/// A whole configuration file, checked as far as that is possible without a connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The one port that serves health, metrics and the API.
    pub http: Http,
    /// What is logged, and how.
    pub log: Log,
    /// The pipelines, in the order of the file; their names differ.
    pub pipelines: Vec<PipelineConfig>,
}

/// The port that serves health, metrics and the API.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Http {
    /// Address and port. Default `127.0.0.1:9464`. Only a loopback address may go without a token.
    pub listen: SocketAddr,
    /// The bearer token of `/api`. Default: none.
    pub token: Option<Secret>,
}

impl Default for Http {
    fn default() -> Self {
        Self { listen: SocketAddr::from(([127, 0, 0, 1], 9464)), token: None }
    }
}

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The text itself.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// What is logged, and how.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Log {
    /// `text` for people, `json` for machines. Default `text`.
    pub format: LogFormat,
    /// A level, or directives as `tracing` knows them: `info,outbox_core=debug`. Default `info`.
    pub level: String,
}

impl Default for Log {
    fn default() -> Self {
        Self { format: LogFormat::Text, level: "info".to_owned() }
    }
}

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl Config {
    /// Reads a file. Relative paths in `${file:…}` start at the file's own folder.
    ///
    /// # Errors
    ///
    /// Names file, line, column and key of the first thing that is wrong, and never a value.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text =
            std::fs::read_to_string(path).map_err(|error| ConfigError::unreadable(path, &error))?;
        Self::parse(File::new(path, text, expand::Process))
    }

    fn parse(file: File) -> Result<Self, ConfigError> {
        let file = Arc::new(file);
        let mut root = file.tree()?;
        let pipelines = root.remove("pipeline");
        let Head { http, log } = file.read(Spanned::new(0..0, DeValue::Table(root)))?;
        let pipelines = match pipelines.map(|value| (value.span(), value.into_inner())) {
            None => Vec::new(),
            Some((_, DeValue::Array(list))) => {
                let pipelines = list.into_iter().enumerate();
                pipelines
                    .map(|(index, table)| PipelineConfig::read(&file, index, table))
                    .collect::<Result<_, _>>()?
            }
            Some((place, _)) => {
                return Err(file.at(place, "pipeline is a list: begin each one with [[pipeline]]"));
            }
        };
        let config = Self { http, log, pipelines };
        config.check(&file)?;
        Ok(config)
    }

    fn check(&self, file: &File) -> Result<(), ConfigError> {
        let mut names = BTreeSet::new();
        for pipeline in &self.pipelines {
            let name = pipeline.pipeline.name();
            if !names.insert(name) {
                return Err(file
                    .at(0..0, format!("two pipelines are named {name}: give each its own name")));
            }
        }
        if let Err(error) = crate::log::filter(&self.log.level) {
            return Err(file.at(0..0, format!("log.level: {error}")));
        }
        if self.http.token.is_none() && !self.http.listen.ip().is_loopback() {
            let listen = self.http.listen;
            return Err(file.at(
                0..0,
                format!("http.listen is {listen}, which others can reach: set http.token, or listen on 127.0.0.1"),
            ));
        }
        Ok(())
    }
}

/// The file without its pipelines.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    #[serde(default)]
    http: Http,
    #[serde(default)]
    log: Log,
}
