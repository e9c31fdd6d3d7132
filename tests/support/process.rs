//! A process of its own: this test binary, started again in another role.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;

/// Holds the settings of a process, as JSON.
const SETTINGS: &str = "OUTBOX_TEST_PROCESS";

/// What a process does; the value is its settings.
pub(crate) trait Role: Clone + Serialize + DeserializeOwned {
    /// The test that the process runs: every binary that starts one has it, and calls [`serve_if_asked`] in it.
    const TEST: &str;

    /// Does it until `shutdown` has something, or is closed.
    async fn serve(self, shutdown: oneshot::Receiver<()>);
}

/// A process. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Process<R> {
    role: R,
    log: PathBuf,
    process: Child,
}

impl<R: Role> Process<R> {
    /// Starts one, which adds to this log.
    pub(crate) fn start(role: &R, log: &Path) -> Self {
        let process = spawn(role, log);
        Self { role: role.clone(), log: log.to_owned(), process }
    }

    /// Starts it once more, after it was killed or stopped.
    pub(crate) fn start_again(&mut self) {
        self.process = spawn(&self.role, &self.log);
    }

    /// Asks it to end and waits until it has; it must say that all went well.
    pub(crate) fn stop(&mut self) {
        drop(self.process.stdin.take());
        let status = self.process.wait().unwrap();
        assert!(status.success(), "{} ended with {status}; its log is {:?}", R::TEST, self.log);
    }
}

impl<R> Process<R> {
    /// Ends it by SIGKILL and waits until it is gone.
    pub(crate) fn kill9(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
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

impl<R> Drop for Process<R> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn spawn<R: Role>(role: &R, log: &Path) -> Child {
    let output = File::options().create(true).append(true).open(log).unwrap();
    Command::new(std::env::current_exe().unwrap())
        .args([R::TEST, "--exact", "--nocapture", "--test-threads=1"])
        .env(SETTINGS, serde_json::to_string(role).unwrap())
        .stdin(Stdio::piped())
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .spawn()
        .unwrap()
}

/// Serves until standard input ends, when this process was started in this role; else does nothing.
///
/// Standard input ends when the test asks for it, and also when the test's process is gone.
pub(crate) fn serve_if_asked<R: Role>() {
    let Ok(role) = std::env::var(SETTINGS) else { return };
    let role: R = serde_json::from_str(&role).unwrap();
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let (asked, shutdown) = oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        let _ = asked.send(());
    });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(role.serve(shutdown));
}
