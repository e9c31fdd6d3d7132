//! A relay in a process of its own: this test binary, started again in another role.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use outbox::kafka::{KafkaConfig, KafkaPublisher};
use outbox::postgres::{PostgresConfig, PostgresStore};
use outbox::{Limits, Relay, Timing};
use serde::{Deserialize, Serialize};

/// The test that a relay process runs; every binary that starts one has it and calls [`serve_if_asked`] in it.
const ROLE: &str = "relay_process";
/// Holds the settings of a relay process, as JSON.
const SETTINGS: &str = "OUTBOX_TEST_RELAY_PROCESS";

/// How a relay process is to work; what is not named here has its default.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RelaySettings {
    pub(crate) database_url: String,
    pub(crate) bootstrap: String,
    pub(crate) window_events: usize,
    pub(crate) lease: Duration,
}

/// A relay process. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct RelayProcess {
    settings: RelaySettings,
    log: PathBuf,
    process: Child,
}

impl RelayProcess {
    /// Starts one, which adds to this log.
    pub(crate) fn start(settings: &RelaySettings, log: &Path) -> Self {
        let process = spawn(settings, log);
        Self { settings: settings.clone(), log: log.to_owned(), process }
    }

    /// Starts it once more, after it was killed or stopped.
    pub(crate) fn start_again(&mut self) {
        self.process = spawn(&self.settings, &self.log);
    }

    /// Ends it by SIGKILL and waits until it is gone.
    pub(crate) fn kill9(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Asks it to end and waits until it has; it must say that all went well.
    pub(crate) fn stop(&mut self) {
        drop(self.process.stdin.take());
        let status = self.process.wait().unwrap();
        assert!(status.success(), "the relay ended with {status}; its log is {:?}", self.log);
    }

    /// Stops it in place (SIGSTOP): it keeps its connections and does nothing.
    pub(crate) fn freeze(&self) {
        self.signal("STOP");
    }

    /// Lets a frozen one go on.
    pub(crate) fn thaw(&self) {
        self.signal("CONT");
    }

    /// Through the shell's builtin: a bare system has no `kill` program.
    fn signal(&self, signal: &str) {
        let kill = format!("kill -s {signal} {}", self.process.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }
}

impl Drop for RelayProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn spawn(settings: &RelaySettings, log: &Path) -> Child {
    let output = File::options().create(true).append(true).open(log).unwrap();
    Command::new(std::env::current_exe().unwrap())
        .args([ROLE, "--exact", "--nocapture", "--test-threads=1"])
        .env(SETTINGS, serde_json::to_string(settings).unwrap())
        .stdin(Stdio::piped())
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .spawn()
        .unwrap()
}

/// Relays until standard input ends, when this process was started as a relay; else does nothing.
///
/// Standard input ends when the test asks for it, and also when the test's process is gone.
pub(crate) fn serve_if_asked() {
    let Ok(settings) = std::env::var(SETTINGS) else { return };
    let settings: RelaySettings = serde_json::from_str(&settings).unwrap();
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let (asked, shutdown) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        let _ = asked.send(());
    });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(serve(settings, async { _ = shutdown.await }));
}

async fn serve(settings: RelaySettings, shutdown: impl Future<Output = ()> + Send) {
    let store =
        PostgresStore::new(&PostgresConfig::from_url(&settings.database_url).unwrap()).unwrap();
    let publisher = KafkaPublisher::new(&KafkaConfig::new(settings.bootstrap)).unwrap();
    Relay::new(Arc::new(store), Arc::new(publisher))
        .with_limits(Limits::default().with_window(settings.window_events))
        .with_timing(Timing::default().with_lease(settings.lease))
        .run(shutdown)
        .await
        .unwrap();
}
