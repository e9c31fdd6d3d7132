//! The command `run`: from the file to the last event.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::Config;
use crate::kinds::Daemon;
use crate::supervisor::Supervisor;
use crate::{http, log};

/// Bounds of the histograms of durations, in seconds, and of sizes, in events.
const SECONDS: &[f64] =
    &[0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 300.0];
const EVENTS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4];

/// How often what histograms hold is folded together.
const UPKEEP: Duration = Duration::from_secs(5);

/// Relays until SIGTERM or SIGINT.
pub(crate) async fn run(daemon: Daemon, file: &Path) -> anyhow::Result<()> {
    let config = Config::read(file)?;
    log::start(&config.log)?;
    let mut signals = Signals::new()?;
    let metrics = metrics()?;
    let supervisor = Supervisor::new(daemon);
    let (http, log) = (config.http.clone(), config.log.clone());
    let server = http::listen(&http, supervisor.clone(), metrics.clone()).await?;
    supervisor.apply(config).await?;
    tokio::spawn(server);
    tokio::spawn(upkeep(metrics));
    tokio::spawn({
        let supervisor = supervisor.clone();
        async move { supervisor.watch().await }
    });
    while let Asked::Reload = signals.next().await {
        match reload(&supervisor, file, &http, &log).await {
            Ok(()) => tracing::info!(file = %file.display(), "the file is applied"),
            Err(error) => {
                let reason = format!("{error:#}");
                tracing::error!(reason, "the file is not applied: what ran goes on");
            }
        }
    }
    tracing::info!(
        "stopping: open events are ended, then lanes given back; a second signal ends at once"
    );
    tokio::select! {
        () = supervisor.stop() => Ok(()),
        () = signals.stop() => anyhow::bail!("ended by a second signal: lanes become free when their leases run out"),
    }
}

async fn reload(
    supervisor: &Supervisor,
    file: &Path,
    http: &crate::Http,
    log: &crate::Log,
) -> anyhow::Result<()> {
    let config = Config::read(file)?;
    if config.http != *http || config.log != *log {
        tracing::warn!("changes to [http] and [log] need a restart");
    }
    Ok(supervisor.apply(config).await?)
}

fn metrics() -> anyhow::Result<PrometheusHandle> {
    PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), SECONDS)?
        .set_buckets_for_metric(Matcher::Suffix("_events".to_owned()), EVENTS)?
        .install_recorder()
        .context("metrics cannot be recorded")
}

async fn upkeep(metrics: PrometheusHandle) {
    loop {
        tokio::time::sleep(UPKEEP).await;
        metrics.run_upkeep();
    }
}

/// The signals that the daemon listens to.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

enum Asked {
    Stop,
    Reload,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Asked {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => Asked::Stop,
            _ = self.interrupt.recv() => Asked::Stop,
            _ = self.hang_up.recv() => Asked::Reload,
        }
    }

    async fn stop(&mut self) {
        while !matches!(self.next().await, Asked::Stop) {}
    }
}
