//! Command line of the bench; see the library.

use anyhow::Result;
use clap::Parser;
use outbox_bench::{drain, raw, relay};

/// Benchmarks of the outbox.
#[derive(Debug, Parser)]
enum Command {
    /// Drains a loaded table from PostgreSQL to Kafka, beside the raw producer.
    Drain(drain::Options),
    /// One run of the raw producer: `drain` starts this.
    #[command(hide = true)]
    Raw(raw::Options),
    /// One drain by the relay: `drain` starts this.
    #[command(hide = true)]
    Relay(relay::Options),
}

#[cfg(not(feature = "count-allocations"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[cfg(feature = "count-allocations")]
#[global_allocator]
static ALLOCATOR: &stats_alloc::StatsAlloc<std::alloc::System> = &stats_alloc::INSTRUMENTED_SYSTEM;

fn main() -> Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter("warn,librdkafka=error,sqlx=error")
        .with_writer(std::io::stderr)
        .init();
    match Command::parse() {
        Command::Drain(options) => drain::run(&options),
        Command::Raw(options) => print(&raw::run(&options)?),
        Command::Relay(options) => print(&relay::run(&options, allocations)?),
    }
}

fn print(result: &impl serde::Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(result)?);
    Ok(())
}

/// Allocations of the Rust side so far, where they are counted.
fn allocations() -> Option<u64> {
    #[cfg(feature = "count-allocations")]
    {
        let stats = ALLOCATOR.stats();
        Some((stats.allocations + stats.reallocations) as u64)
    }
    #[cfg(not(feature = "count-allocations"))]
    None
}
