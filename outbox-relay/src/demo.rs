//! The command `demo`: events on their way, without a server.

use std::time::Duration;

use anyhow::Context as _;
use outbox::NewEvent;
use outbox::sqlite::sqlx::SqlitePool;
use outbox::sqlite::{Schema, SqliteConfig, SqliteOutbox};
use serde_json::json;

use crate::config::{Config, Log};
use crate::kinds::Daemon;
use crate::log;
use crate::supervisor::Supervisor;

/// Pause between two orders, so that one sees them come.
const PAUSE: Duration = Duration::from_millis(400);

/// How long the last event may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Writes a few events to an SQLite file, and relays them to standard output. What it does is told on standard error.
pub(crate) async fn demo(daemon: Daemon) -> anyhow::Result<()> {
    log::start(&Log { level: "warn".to_owned(), ..Log::default() })?;
    let folder = tempfile::tempdir().context("no temporary folder can be made")?;
    let (database, file) = (folder.path().join("shop.db"), folder.path().join("outbox-relay.toml"));
    std::fs::write(&file, text(&database.display().to_string()))?;
    eprintln!("The configuration, {}:\n\n{}", file.display(), std::fs::read_to_string(&file)?);

    let config = SqliteConfig::new(&database);
    Schema::new(&config)?.migrate().await?;
    let supervisor = Supervisor::new(daemon);
    supervisor.apply(Config::read(&file)?).await?;
    eprintln!(
        "A shop takes three orders. Each line below is a message as a broker would get it.\n"
    );
    let written = write_orders(&config).await?;
    let delivered = async {
        while supervisor.delivered() < written {
            tokio::time::sleep(PAUSE / 10).await;
        }
    };
    tokio::time::timeout(PATIENCE, delivered).await.context("the events are not delivered")?;
    supervisor.stop().await;
    eprintln!(
        "\nAll {written} events are delivered, and their rows are gone. Write a file of your own, and start:"
    );
    eprintln!("  outbox-relay check --config FILE\n  outbox-relay run --config FILE");
    Ok(())
}

fn text(database: &str) -> String {
    format!(
        "[[pipeline]]\nname = \"shop\"\n\n[pipeline.source]\nkind = \"sqlite\"\nfile = {database:?}\n\n\
         [pipeline.publisher]\nkind = \"stdout\"\n"
    )
}

/// What a service does: an event in the same transaction as the change that it tells of. Returns how many it wrote.
async fn write_orders(config: &SqliteConfig) -> anyhow::Result<u64> {
    let pool = SqlitePool::connect_with(config.connect_options()).await?;
    let outbox = SqliteOutbox::new(config)?;
    let mut written = 0;
    for order in 1..=3 {
        for (event_type, payload) in [
            ("OrderPlaced.v1", json!({ "order": order, "total": 1250 * order })),
            ("OrderPaid.v1", json!({ "order": order })),
        ] {
            let mut transaction = outbox.begin(&pool).await?;
            let event = NewEvent::json("order", format!("order-{order}"), event_type, &payload)?;
            outbox.append(&mut transaction, &[event]).await?;
            outbox.commit(transaction).await?;
            written += 1;
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(written)
}
