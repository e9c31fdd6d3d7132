//! One drain by the real relay.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use outbox_core::{Limits, Relay, Router};
use outbox_kafka::{KafkaConfig, KafkaPublisher};
use outbox_postgres::{PostgresConfig, PostgresStore};
use serde::{Deserialize, Serialize};

use crate::counted::{Calls, Counted, Counts};
use crate::table;
use crate::usage::{Meter, Usage};

/// A drain that takes longer has hung.
const PATIENCE: Duration = Duration::from_secs(600);

/// What to drain, where to, and how.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// URL of the server.
    #[arg(long)]
    pub postgres_url: String,
    /// The database with the loaded table.
    #[arg(long)]
    pub database: String,
    /// `host:port` of the broker.
    #[arg(long)]
    pub bootstrap: String,
    /// The topic, which is there.
    #[arg(long)]
    pub topic: String,
    /// How many events the table holds.
    #[arg(long)]
    pub events: u64,
    /// How the relay works.
    #[command(flatten)]
    pub tuning: Tuning,
}

/// Settings of the relay; what is not given is the library's default.
#[derive(Args, Clone, Debug)]
pub struct Tuning {
    /// Lanes of the table.
    #[arg(long, default_value_t = 16)]
    pub lanes: u16,
    /// Events from claim to settle.
    #[arg(long)]
    pub window: Option<usize>,
    /// Events of one claim and of one call.
    #[arg(long)]
    pub batch: Option<usize>,
    /// Publish calls at the same time.
    #[arg(long)]
    pub calls: Option<usize>,
    /// Worker threads of the runtime; 1 is the current-thread runtime.
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
}

/// What was measured.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Drained {
    /// Events.
    pub events: u64,
    /// From the start of the first claim to the end of the last settle.
    pub seconds: f64,
    /// From the start of the relay to its first claim: connections, schema, leases.
    pub startup_seconds: f64,
    /// Of this process, the broker and the database.
    pub usage: Usage,
    /// What the store was asked.
    pub calls: Calls,
    /// Allocations of the Rust side, in a build that counts them.
    pub allocations: Option<u64>,
}

/// Drains the table. `allocations` tells how many allocations there were so far, if somebody counts.
///
/// # Errors
///
/// When a server does not answer, or the drain does not come to its end.
pub fn run(options: &Options, allocations: fn() -> Option<u64>) -> Result<Drained> {
    let runtime = match options.tuning.threads {
        0 | 1 => tokio::runtime::Builder::new_current_thread().enable_all().build()?,
        more => {
            tokio::runtime::Builder::new_multi_thread().worker_threads(more).enable_all().build()?
        }
    };
    runtime.block_on(async {
        let config = table::config(&options.postgres_url, &options.database, options.tuning.lanes)?;
        let monitor = table::connect(&options.postgres_url, &options.database).await?;
        let meter = Meter::start(&options.bootstrap, Some(monitor)).await?;
        let (start, before) = (Instant::now(), allocations());
        let (relay, counts) = relay(&config, options)?;
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let relay = tokio::spawn(relay.run(async {
            let _ = stopped.await;
        }));
        let settled = tokio::time::timeout(PATIENCE, counts.all_settled()).await;
        let seconds = start.elapsed().as_secs_f64();
        let after = allocations();
        ensure!(
            settled.is_ok(),
            "the drain hangs: {} of {} events are settled",
            counts.settled(),
            options.events
        );
        // Before the relay lets its sessions go: their CPU time goes with them.
        let usage = meter.stop().await?;
        let calls = counts.calls();
        drop(stop);
        relay.await??;
        let startup_seconds = counts.until_first_claim().as_secs_f64();
        Ok(Drained {
            events: options.events,
            seconds: seconds - startup_seconds,
            startup_seconds,
            usage,
            calls,
            allocations: after.zip(before).map(|(after, before)| after - before),
        })
    })
}

/// The relay of these options, and what it asks of its store.
///
/// # Errors
///
/// When a setting is refused.
pub fn relay(config: &PostgresConfig, options: &Options) -> Result<(Relay, Arc<Counts>)> {
    let (store, counts) = Counted::new(PostgresStore::new(config)?, options.events);
    let publisher = KafkaPublisher::new(&KafkaConfig::new(&options.bootstrap))?;
    let mut limits = Limits::default();
    if let Some(window) = options.tuning.window {
        limits = limits.with_window(window);
    }
    if let Some(batch) = options.tuning.batch {
        limits = limits.with_batch(batch);
    }
    if let Some(calls) = options.tuning.calls {
        limits = limits.with_calls(calls);
    }
    let relay = Relay::new(Arc::new(store), Arc::new(publisher))
        .with_name("outbox-bench")
        .with_router(Router::new(&options.topic)?)
        .with_limits(limits);
    Ok((relay, counts))
}
