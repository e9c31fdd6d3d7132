//! Apache Kafka, one KRaft node: a private broker for a test, and the node that it shares with the shared servers.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::folders::{self, PrivateFolder};
use super::install::{self, Need};
use super::kafka_wire;
use super::ports::{ReservedPort, check_free};
use super::process::{Lifetime, Process, User, or_panic, run};
use crate::Result;

/// Time until a broker answers: two Java starts on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(120);
/// Time for a controlled shutdown.
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// A killed broker is let in again when its old session has ended; the usual 9 s are long for a test.
const SESSION_MS: u32 = 5_000;
/// Any 16 bytes in base64url; must not begin with a dash.
const CLUSTER_ID: &str = "b3V0Ym94LXh0YXNrLWtmaw";

/// A Kafka broker of a test's own. Dropping it kills the broker and removes its data.
///
/// Topics are not created by use, 6 partitions are the default, replication is 1.
///
/// All methods panic with the broker's log when they fail: the test cannot go on.
#[derive(Debug)]
pub struct Kafka {
    node: Node,
    _ports: [ReservedPort; 2],
    _folder: PrivateFolder,
}

impl Kafka {
    /// Starts a new, empty broker and waits until it answers.
    #[track_caller]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// As [`start`](Self::start), with settings of `server.properties` that replace the usual ones,
    /// such as `("message.max.bytes", "2000")`.
    #[track_caller]
    pub fn start_with(settings: &[(&str, &str)]) -> Self {
        let settings = settings.iter().fold(String::new(), |mut lines, (name, value)| {
            writeln!(lines, "{name}={value}").expect("a string takes all");
            lines
        });
        or_panic(Self::try_start(|node| node.settings = settings))
    }

    pub(crate) fn try_start(change: impl FnOnce(&mut Node)) -> Result<Self> {
        let folder = PrivateFolder::new("kafka")?;
        let ports = [ReservedPort::any()?, ReservedPort::any()?];
        let [port, controller] = [ports[0].number(), ports[1].number()];
        let mut node = Node::new(folder.path(), port, controller, Lifetime::Parent);
        change(&mut node);
        {
            let _lock = folders::lock()?;
            install::install_for(&[Need::Kafka])?;
        }
        node.start()?;
        Ok(Self { node, _ports: ports, _folder: folder })
    }

    /// `host:port` for `bootstrap.servers`. Stays the same over restarts.
    pub fn bootstrap(&self) -> String {
        self.node.bootstrap()
    }

    /// Creates a topic, and returns when the controller has it.
    #[track_caller]
    pub fn create_topic(&self, name: &str, partitions: u32) {
        or_panic(kafka_wire::create_topic(&self.bootstrap(), name, partitions));
    }

    /// Ends it with a controlled shutdown.
    #[track_caller]
    pub fn stop(&self) {
        or_panic(self.node.stop());
    }

    /// Kills the broker by SIGKILL.
    #[track_caller]
    pub fn kill9(&self) {
        or_panic(self.node.process.kill9());
    }

    /// Starts the stopped or killed broker on the same port and data, and waits until it answers.
    #[track_caller]
    pub fn start_again(&self) {
        or_panic(self.node.start());
    }

    /// [`stop`](Self::stop), then [`start_again`](Self::start_again).
    #[track_caller]
    pub fn restart(&self) {
        self.stop();
        self.start_again();
    }

    /// Stops the process in place (SIGSTOP): connections stay open and nothing answers.
    #[track_caller]
    pub fn freeze(&self) {
        or_panic(self.node.process.signal_all("STOP"));
    }

    /// Lets a frozen broker go on.
    #[track_caller]
    pub fn thaw(&self) {
        or_panic(self.node.process.signal_all("CONT"));
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        let _ = self.node.process.kill9();
    }
}

/// A log folder, its ports, and the process that serves it.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) process: Process,
    port: u16,
    controller_port: u16,
    /// Further listeners: a security protocol, by its name in Kafka, and a port.
    pub(crate) listeners: Vec<(&'static str, u16)>,
    /// SCRAM logins, as the formatting of the storage takes them.
    pub(crate) scram: Vec<String>,
    /// Lines of `server.properties` behind the usual ones; the last of a name counts.
    pub(crate) settings: String,
}

impl Node {
    pub(crate) fn new(folder: &Path, port: u16, controller_port: u16, lifetime: Lifetime) -> Self {
        let process = Process::new("Kafka", folder, lifetime);
        let (listeners, scram, settings) = Default::default();
        Self { process, port, controller_port, listeners, scram, settings }
    }

    pub(crate) fn bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Does nothing when it runs. The jars must be installed.
    pub(crate) fn start(&self) -> Result<()> {
        if self.process.pid().is_none() {
            check_free(self.port)?;
            let folder = self.process.folder();
            folders::create(folder)?;
            let properties = self.configure(folder)?.to_string_lossy().into_owned();
            let logging =
                format!("-Dlog4j2.configurationFile={}/log4j2.properties", folder.display());
            let classes = format!("{}/*", install::kafka_jars()?.display());
            if !folder.join("topics/meta.properties").exists() {
                run(Command::new("java")
                    .args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", &logging])
                    .args(["-cp", &classes, "kafka.tools.StorageTool", "format", "--standalone"])
                    .args(["--cluster-id", CLUSTER_ID, "--config", &properties])
                    .args(self.scram.iter().flat_map(|login| ["--add-scram", login])))?;
            }
            self.process.spawn(
                User::Own,
                Path::new("java"),
                &[
                    "-XX:+UseSerialGC",
                    "-Xms64m",
                    "-Xmx512m",
                    &logging,
                    "-cp",
                    &classes,
                    "kafka.Kafka",
                    &properties,
                ],
            )?;
        }
        self.process.wait_ready(START_LIMIT, || kafka_wire::answers(&self.bootstrap()))
    }

    pub(crate) fn stop(&self) -> Result<()> {
        self.process.stop("TERM", STOP_LIMIT)
    }

    fn configure(&self, folder: &Path) -> Result<std::path::PathBuf> {
        fs::write(folder.join("log4j2.properties"), include_str!("../../kafka/log4j2.properties"))?;
        let properties = folder.join("server.properties");
        let (port, controller) = (self.port, self.controller_port);
        let list = |entry: fn(&str, u16) -> String| -> String {
            self.listeners.iter().map(|(protocol, port)| entry(protocol, *port)).collect()
        };
        let listeners = list(|protocol, port| format!(",{protocol}://127.0.0.1:{port}"));
        let protocols = list(|protocol, _| format!(",{protocol}:{protocol}"));
        fs::write(
            &properties,
            format!(
                "process.roles=broker,controller\n\
                 node.id=1\n\
                 listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}{listeners}\n\
                 advertised.listeners=PLAINTEXT://127.0.0.1:{port}{listeners}\n\
                 controller.listener.names=CONTROLLER\n\
                 listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT{protocols}\n\
                 controller.quorum.bootstrap.servers=127.0.0.1:{controller}\n\
                 log.dirs={topics}\n\
                 log.retention.ms=-1\n\
                 auto.create.topics.enable=false\n\
                 num.partitions=6\n\
                 offsets.topic.replication.factor=1\n\
                 offsets.topic.num.partitions=4\n\
                 transaction.state.log.replication.factor=1\n\
                 transaction.state.log.min.isr=1\n\
                 transaction.state.log.num.partitions=4\n\
                 share.coordinator.state.topic.replication.factor=1\n\
                 share.coordinator.state.topic.min.isr=1\n\
                 broker.session.timeout.ms={SESSION_MS}\n\
                 group.initial.rebalance.delay.ms=0\n\
                 log.cleaner.dedupe.buffer.size=16777216\n\
                 {own}",
                topics = folder.join("topics").display(),
                own = self.settings,
            ),
        )?;
        Ok(properties)
    }
}
