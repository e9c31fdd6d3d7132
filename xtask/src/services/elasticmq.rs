//! ElasticMQ, which speaks Amazon SQS: a private server for a test, and the node that it shares with the shared servers.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use super::folders::{self, PrivateFolder};
use super::install::{self, Need};
use super::ports::{ReservedPort, check_free};
use super::process::{Lifetime, Process, User, or_panic};
use crate::Result;

/// Time until the server answers: a Java start on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(30);
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// An ElasticMQ of a test's own, without queues. Dropping it kills the server.
///
/// Queues live in its memory: they are gone after [`stop`](Self::stop) and [`kill9`](Self::kill9). Region and credentials
/// may be any.
///
/// All methods panic with the server's log when they fail: the test cannot go on.
#[derive(Debug)]
pub struct ElasticMq {
    node: Node,
    _port: ReservedPort,
    _folder: PrivateFolder,
}

impl ElasticMq {
    /// Starts a new, empty server and waits until it answers.
    #[track_caller]
    pub fn start() -> Self {
        or_panic(Self::try_start())
    }

    fn try_start() -> Result<Self> {
        let folder = PrivateFolder::new("elasticmq")?;
        let port = ReservedPort::any()?;
        let node = Node::new(folder.path(), port.number(), Lifetime::Parent);
        {
            let _lock = folders::lock()?;
            install::install_for(&[Need::ElasticMq])?;
        }
        node.start()?;
        Ok(Self { node, _port: port, _folder: folder })
    }

    /// `http://host:port`, the SDK's endpoint URL. Stays the same over restarts.
    pub fn endpoint(&self) -> String {
        self.node.endpoint()
    }

    /// `host:port`.
    pub fn address(&self) -> String {
        self.node.address()
    }

    /// Ends it by SIGTERM.
    #[track_caller]
    pub fn stop(&self) {
        or_panic(self.node.stop());
    }

    /// Kills it by SIGKILL.
    #[track_caller]
    pub fn kill9(&self) {
        or_panic(self.node.process.kill9());
    }

    /// Starts the stopped or killed server on the same port, without queues, and waits until it answers.
    #[track_caller]
    pub fn start_again(&self) {
        or_panic(self.node.start());
    }

    /// Stops the process in place (SIGSTOP): connections stay open and nothing answers.
    #[track_caller]
    pub fn freeze(&self) {
        or_panic(self.node.process.signal_all("STOP"));
    }

    /// Lets a frozen server go on.
    #[track_caller]
    pub fn thaw(&self) {
        or_panic(self.node.process.signal_all("CONT"));
    }
}

impl Drop for ElasticMq {
    fn drop(&mut self) {
        let _ = self.node.process.kill9();
    }
}

/// A folder with the configuration, a port, and the process that serves it.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) process: Process,
    port: u16,
}

impl Node {
    pub(crate) fn new(folder: &Path, port: u16, lifetime: Lifetime) -> Self {
        Self { process: Process::new("ElasticMQ", folder, lifetime), port }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address())
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Does nothing when it runs. The jars must be installed.
    pub(crate) fn start(&self) -> Result<()> {
        if self.process.pid().is_none() {
            check_free(self.port)?;
            let folder = self.process.folder();
            folders::create(folder)?;
            let config = folder.join("elasticmq.conf");
            fs::write(&config, self.config())?;
            self.process.spawn(
                User::Own,
                Path::new("java"),
                &[
                    "-XX:+UseSerialGC",
                    "-XX:TieredStopAtLevel=1",
                    "-Xmx256m",
                    &format!("-Dconfig.file={}", config.display()),
                    "-cp",
                    &format!("{}/*", install::elasticmq_jars()?.display()),
                    "org.elasticmq.server.Main",
                ],
            )?;
        }
        self.process.wait_ready(START_LIMIT, || answers(&self.address()))
    }

    pub(crate) fn stop(&self) -> Result<()> {
        self.process.stop("TERM", STOP_LIMIT)
    }

    pub(crate) fn answers(&self) -> bool {
        answers(&self.address())
    }

    fn config(&self) -> String {
        let port = self.port;
        format!(
            "include classpath(\"application.conf\")\n\
             node-address {{ protocol = http, host = \"127.0.0.1\", port = {port}, context-path = \"\" }}\n\
             rest-sqs {{ enabled = true, bind-port = {port}, bind-hostname = \"127.0.0.1\", sqs-limits = strict }}\n\
             rest-stats {{ enabled = false }}\n"
        )
    }
}

/// Whether the server says that it is healthy.
fn answers(address: &str) -> bool {
    let ask = || -> Result<String> {
        let mut stream = TcpStream::connect_timeout(&address.parse()?, ANSWER_LIMIT)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        write!(stream, "GET /health HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    ask().is_ok_and(|answer| answer == "HTTP/1.1 200")
}
