//! One daemon that relays the outboxes of many services.
//!
//! The program `outbox-relay` is this library with the adapters of this project. A team with adapters of its own builds the
//! same program, with the same configuration file, commands, metrics and reload:
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use outbox::Publisher;
//! use outbox::memory::MemoryPublisher;
//! use outbox_relay::{Daemon, Settings};
//! use serde::Deserialize;
//!
//! /// What stands in `[pipeline.publisher]` beside `kind = "ours"`.
//! #[derive(Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct Ours {}
//!
//! fn main() -> std::process::ExitCode {
//!     let ours = |settings: Settings| async move {
//!         let Ours {} = settings.read()?;
//!         Ok(Arc::new(MemoryPublisher::new()) as Arc<dyn Publisher>)
//!     };
//!     Daemon::new().register_publisher("ours", ours).main()
//! }
//! ```
//!
//! `docs/configuration.md` has every key of the file, `docs/daemon.md` the commands, the signals and the HTTP port.

mod check;
mod cli;
mod config;
#[cfg(feature = "sqlite")]
mod demo;
mod health;
mod http;
mod kinds;
mod log;
mod pipeline;
mod run;
mod supervisor;

pub use config::{Config, ConfigError, Http, Log, LogFormat, PipelineConfig, Secret, Settings};
pub use kinds::{AdapterError, Daemon};
