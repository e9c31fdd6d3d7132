//! One daemon that relays the outboxes of many services: its configuration file.

mod config;

pub use config::{Config, ConfigError, Http, Log, LogFormat, PipelineConfig, Secret, Settings};
