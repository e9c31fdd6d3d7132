//! The command line.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use crate::config::ConfigError;
use crate::kinds::Daemon;
use crate::{check, run};

/// Relays the outboxes of many services to their brokers.
///
/// Exit status: 0 well; 1 something failed; 2 the command line or the configuration file is wrong.
#[derive(Debug, Parser)]
#[command(name = "outbox-relay", version)]
enum Command {
    /// Relays until SIGTERM or SIGINT; SIGHUP applies a changed file.
    Run {
        #[command(flatten)]
        file: File,
    },
    /// Checks a configuration file and both ends of each pipeline, and delivers nothing.
    ///
    /// It enters each table of workers for a moment, as a relay does when it starts, and asks each broker whether it
    /// answers.
    Check {
        #[command(flatten)]
        file: File,
    },
    /// Shows events on their way: from an SQLite file in a temporary folder to standard output. Needs no server.
    #[cfg(feature = "sqlite")]
    Demo,
}

#[derive(Debug, clap::Args)]
struct File {
    /// The configuration file; docs/configuration.md has its keys.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

impl Daemon {
    /// The whole program: reads the command line of this process, and does what it says. Starts a tokio runtime of its own.
    #[must_use]
    pub fn main(self) -> ExitCode {
        let command = Command::parse();
        let ended = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(anyhow::Error::from)
            .and_then(|runtime| {
                let ended = runtime.block_on(self.command(command));
                // A statement or a call that still waits for its server is not waited for.
                runtime.shutdown_background();
                ended
            });
        match ended {
            Ok(code) => code,
            Err(error) => {
                eprintln!("outbox-relay: {error:#}");
                ExitCode::from(if error.is::<ConfigError>() { 2 } else { 1 })
            }
        }
    }

    async fn command(self, command: Command) -> anyhow::Result<ExitCode> {
        match command {
            Command::Run { file } => run::run(self, &file.config).await?,
            Command::Check { file } => {
                if !check::check(&self, &file.config).await? {
                    return Ok(ExitCode::FAILURE);
                }
            }
            #[cfg(feature = "sqlite")]
            Command::Demo => crate::demo::demo(self).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
