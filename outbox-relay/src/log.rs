//! Log lines on standard error.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

use crate::config::{Log, LogFormat};

/// The directives of `log.level`.
pub(crate) fn filter(level: &str) -> Result<EnvFilter, ParseError> {
    EnvFilter::builder().parse(level)
}

/// Writes this process's log lines from now on.
pub(crate) fn start(log: &Log) -> anyhow::Result<()> {
    let lines =
        tracing_subscriber::fmt().with_env_filter(filter(&log.level)?).with_writer(std::io::stderr);
    match log.format {
        LogFormat::Text => lines.try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    }
    .map_err(|error| anyhow::anyhow!("the log cannot be started: {error}"))
}
