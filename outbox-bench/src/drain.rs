//! The command `drain`: rounds of raw producer and relay, each a process of its own.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};
use serde::de::DeserializeOwned;
use xtask::services::{Kafka, Postgres, PostgresVersion};

use crate::raw::Produced;
use crate::relay::{Drained, Tuning};
use crate::report::{Report, Round};
use crate::table::Table;
use crate::topic::{Content, Topic};
use crate::usage::machine;

/// What to measure, where, and how to tell.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Events of a round.
    #[arg(long, default_value_t = 1_000_000)]
    pub events: u64,
    /// Rounds: raw producer and relay, in turns.
    #[arg(long, default_value_t = 1)]
    pub rounds: u32,
    /// Events of a round before the first, which is not reported: programs are warm then. 0 leaves it out.
    #[arg(long, default_value_t = 300_000)]
    pub warmup: u64,
    /// URL of a superuser and a maintenance database of PostgreSQL; the bench makes its own database.
    #[arg(long, env = "OUTBOX_TEST_POSTGRES_URL", hide_env_values = true)]
    pub postgres_url: Option<String>,
    /// `host:port` of Kafka; the bench makes its own topics.
    #[arg(long, env = "OUTBOX_TEST_KAFKA_BOOTSTRAP")]
    pub bootstrap: Option<String>,
    /// Starts a PostgreSQL 15 and a Kafka of its own, so that nobody else works on them.
    #[arg(long)]
    pub own: bool,
    /// Speaks TLS to the PostgreSQL that `--own` starts. Without it neither server is spoken to in TLS.
    #[arg(long, requires = "own")]
    pub tls: bool,
    /// A setting of the PostgreSQL that `--own` starts: `full_page_writes=off`. May be repeated.
    #[arg(long = "postgres-setting", value_name = "NAME=VALUE", requires = "own")]
    pub postgres_settings: Vec<String>,
    /// Reads every message back and compares it with its event; else messages are counted by offsets.
    #[arg(long)]
    pub read_back: bool,
    /// How to tell.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
    /// How the relay works.
    #[command(flatten)]
    pub tuning: Tuning,
}

/// How a report is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Table,
    /// For programs: medians and every round.
    Json,
}

/// Measures and prints.
///
/// # Errors
///
/// When a server does not answer, or an event did not arrive exactly once.
pub fn run(options: &Options) -> Result<()> {
    let servers = Servers::of(options)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if options.warmup > 0 {
        runtime.block_on(round(&servers, options, options.warmup))?;
    }
    let mut rounds = Vec::new();
    for number in 1..=options.rounds {
        eprintln!("round {number} of {}: {} events", options.rounds, options.events);
        rounds.push(runtime.block_on(round(&servers, options, options.events))?);
    }
    let report = Report::new(options.events, options.own, rounds);
    match options.output {
        Output::Table => print!("{report}"),
        Output::Json => println!("{}", serde_json::to_string_pretty(&report)?),
    }
    Ok(())
}

async fn round(servers: &Servers, options: &Options, events: u64) -> Result<Round> {
    let table = Table::create(&servers.postgres_url, events, options.tuning.lanes).await?;
    let (load, _) = machine();
    let raw = raw(servers, events).await?;
    let topic = Topic::create(&servers.bootstrap).await?;
    let before = table.transactions().await?;
    let relay: Drained = child(
        "relay",
        &[
            ("--postgres-url", servers.postgres_url.clone()),
            ("--database", table.database().to_owned()),
            ("--bootstrap", servers.bootstrap.clone()),
            ("--topic", topic.name().to_owned()),
            ("--events", events.to_string()),
        ],
        &options.tuning.arguments(),
    )?;
    let transactions = table.transactions().await? - before;
    let content = if options.read_back {
        topic.read_back(events)?
    } else {
        let messages = topic.count()?;
        Content {
            messages,
            duplicates: messages.saturating_sub(events),
            missing: events.saturating_sub(messages),
            ..Content::default()
        }
    };
    let pending = table.pending().await?;
    ensure!(
        content == Content { messages: events, ..Content::default() } && pending == 0,
        "not every event arrived exactly once: {content:?}, {pending} still pending"
    );
    topic.remove().await?;
    table.remove().await?;
    Ok(Round { load, raw, relay, transactions })
}

async fn raw(servers: &Servers, events: u64) -> Result<Produced> {
    let topic = Topic::create(&servers.bootstrap).await?;
    let raw = child(
        "raw",
        &[
            ("--bootstrap", servers.bootstrap.clone()),
            ("--topic", topic.name().to_owned()),
            ("--events", events.to_string()),
        ],
        &[],
    )?;
    topic.remove().await?;
    Ok(raw)
}

/// Runs a command of this program in a process of its own: its CPU time and its memory are its own.
fn child<T: DeserializeOwned>(
    command: &str,
    options: &[(&str, String)],
    more: &[String],
) -> Result<T> {
    let mut child = Command::new(std::env::current_exe()?);
    child.arg(command);
    for (name, value) in options {
        child.arg(name).arg(value);
    }
    let output = child.args(more).stderr(std::process::Stdio::inherit()).output()?;
    ensure!(output.status.success(), "{command} failed: {}", output.status);
    serde_json::from_slice(&output.stdout).with_context(|| format!("{command} told nonsense"))
}

impl Tuning {
    fn arguments(&self) -> Vec<String> {
        let numbers = [("--window", self.window), ("--batch", self.batch), ("--calls", self.calls)];
        let given = numbers.into_iter().filter_map(|(name, value)| Some((name, value?)));
        given
            .chain([("--threads", self.threads), ("--lanes", usize::from(self.lanes))])
            .flat_map(|(name, value)| [name.to_owned(), value.to_string()])
            .collect()
    }
}

/// Where the servers are; those of our own end with the value.
#[derive(Debug)]
struct Servers {
    postgres_url: String,
    bootstrap: String,
    _own: Option<(Postgres, Kafka)>,
}

impl Servers {
    fn of(options: &Options) -> Result<Self> {
        if !options.own {
            let missing = "is not set: run `cargo xtask services start`, or pass --own";
            return Ok(Self {
                postgres_url: options
                    .postgres_url
                    .clone()
                    .with_context(|| format!("--postgres-url {missing}"))?,
                bootstrap: options
                    .bootstrap
                    .clone()
                    .with_context(|| format!("--bootstrap {missing}"))?,
                _own: None,
            });
        }
        let mut settings = vec![("shared_buffers", "1GB"), ("max_wal_size", "16GB")];
        for setting in &options.postgres_settings {
            settings.push(setting.split_once('=').context("--postgres-setting is NAME=VALUE")?);
        }
        let postgres = Postgres::start_with(PostgresVersion::V15, &settings);
        let kafka = Kafka::start();
        Ok(Self {
            postgres_url: format!(
                "{}?sslmode={}",
                postgres.url(),
                if options.tls { "require" } else { "disable" }
            ),
            bootstrap: kafka.bootstrap(),
            _own: Some((postgres, kafka)),
        })
    }
}
