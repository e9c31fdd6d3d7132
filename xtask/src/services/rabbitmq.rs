//! RabbitMQ, one node: a private broker for a test, and the node that it shares with the shared servers.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::folders::{self, PrivateFolder};
use super::install::{self, Need};
use super::ports::{ReservedPort, check_free};
use super::process::{Lifetime, Process, User, or_panic, run, wait_until};
use super::tls;
use crate::Result;

/// Time until a broker answers: an Erlang start on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(120);
/// Time for a clean stop.
const STOP_LIMIT: Duration = Duration::from_secs(60);
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Which RabbitMQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RabbitMqVersion {
    /// 3.10, Debian's.
    V3,
    /// 4.0, the next Debian's.
    V4,
}

/// A RabbitMQ broker of a test's own. Dropping it kills the broker and removes its data.
///
/// User `guest`, password `guest`, virtual host `/`; no plugins. TLS on a port of its own (certificate for localhost and
/// 127.0.0.1; a client may show a certificate of the same authority, and no other).
///
/// All methods panic with the broker's log when they fail: the test cannot go on.
#[derive(Debug)]
pub struct RabbitMq {
    node: Node,
    _ports: [ReservedPort; 4],
    _folder: PrivateFolder,
}

impl RabbitMq {
    /// Starts a new, empty broker and waits until it answers.
    #[track_caller]
    pub fn start(version: RabbitMqVersion) -> Self {
        Self::start_with(version, &[])
    }

    /// As [`start`](Self::start), with further settings of `rabbitmq.conf`, such as `("max_message_size", "2000")`.
    #[track_caller]
    pub fn start_with(version: RabbitMqVersion, settings: &[(&str, &str)]) -> Self {
        or_panic(Self::try_start(version, settings))
    }

    fn try_start(version: RabbitMqVersion, settings: &[(&str, &str)]) -> Result<Self> {
        let folder = PrivateFolder::new("rabbitmq")?;
        let ports = [
            ReservedPort::any()?,
            ReservedPort::any()?,
            ReservedPort::any()?,
            ReservedPort::any()?,
        ];
        let [port, distribution, names, tls] = ports.each_ref().map(ReservedPort::number);
        let ports_of_node = Ports { amqp: port, distribution, names, tls: Some(tls) };
        let mut node = Node::new(version, folder.path(), ports_of_node, Lifetime::Parent);
        for (name, value) in settings {
            writeln!(node.settings, "{name} = {value}").expect("a string takes all");
        }
        {
            let _lock = folders::lock()?;
            install::install_for(&[version.need()])?;
        }
        node.start()?;
        Ok(Self { node, _ports: ports, _folder: folder })
    }

    /// `amqp://…` of the user `guest` and the virtual host `/`. Stays the same over restarts.
    pub fn url(&self) -> String {
        self.node.url()
    }

    /// `host:port`.
    pub fn address(&self) -> String {
        self.node.address()
    }

    /// `amqps://…` of the same.
    pub fn tls_url(&self) -> String {
        let port = self.node.ports.tls.expect("a private broker has a port for TLS");
        format!("amqps://guest:guest@127.0.0.1:{port}/%2f")
    }

    /// File of the certificate that a client must trust to verify the broker.
    pub fn ca_certificate(&self) -> PathBuf {
        tls::ca_certificate()
    }

    /// Certificate and key of a client, in PEM, that the broker trusts. Its subject is `CN=outbox test client`.
    #[track_caller]
    pub fn client_identity(&self) -> (String, String) {
        or_panic(tls::client(self.node.process.folder()))
    }

    /// Runs `rabbitmqctl` with these arguments, and returns what it printed. Takes a second or two.
    #[track_caller]
    pub fn ctl(&self, args: &[&str]) -> String {
        let run = || {
            let [programs, _] = install::rabbitmq(self.node.version)?;
            let mut command = Command::new(programs.join("rabbitmqctl"));
            run(command.envs(self.node.environment()?).arg("-q").args(args))
        };
        String::from_utf8_lossy(&or_panic(run()).stdout).into_owned()
    }

    /// Ends it cleanly.
    #[track_caller]
    pub fn stop(&self) {
        or_panic(self.node.stop());
    }

    /// Kills the broker by SIGKILL.
    #[track_caller]
    pub fn kill9(&self) {
        or_panic(self.node.process.kill9());
    }

    /// Starts the stopped or killed broker on the same ports and data, and waits until it answers.
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

impl RabbitMqVersion {
    fn need(self) -> Need {
        match self {
            Self::V3 => Need::RabbitMq,
            Self::V4 => Need::RabbitMq4,
        }
    }
}

impl Drop for RabbitMq {
    fn drop(&mut self) {
        let _ = self.node.process.kill9();
        let _ = self.node.names.kill9();
    }
}

/// The ports of a node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ports {
    pub(crate) amqp: u16,
    /// Where Erlang's nodes talk: `rabbitmqctl` is one.
    pub(crate) distribution: u16,
    /// Of the daemon that tells Erlang's nodes each other's ports.
    pub(crate) names: u16,
    pub(crate) tls: Option<u16>,
}

/// A data folder, its ports, the process that serves it, and Erlang's name daemon beside it.
#[derive(Debug)]
pub(crate) struct Node {
    version: RabbitMqVersion,
    pub(crate) process: Process,
    /// Erlang would start it by itself, and it would outlive the node.
    names: Process,
    ports: Ports,
    /// Lines of `rabbitmq.conf` behind the usual ones.
    settings: String,
}

impl Node {
    pub(crate) fn new(
        version: RabbitMqVersion,
        folder: &Path,
        ports: Ports,
        lifetime: Lifetime,
    ) -> Self {
        Self {
            version,
            process: Process::new("RabbitMQ", folder, lifetime),
            names: Process::new("epmd", &folder.join("epmd"), lifetime),
            ports,
            settings: String::new(),
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.ports.amqp)
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.ports.amqp)
    }

    /// Does nothing when it runs. The package and, for TLS, the certificates must be installed.
    pub(crate) fn start(&self) -> Result<()> {
        self.start_names()?;
        if self.process.pid().is_none() {
            check_free(self.ports.amqp)?;
            let folder = self.process.folder();
            self.configure(folder)?;
            let [programs, _] = install::rabbitmq(self.version)?;
            let mut args: Vec<String> = self
                .environment()?
                .into_iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect();
            args.push(programs.join("rabbitmq-server").display().to_string());
            // Erlang ignores an option that it does not know; by this one the process is found again.
            args.extend(["-outbox_folder".to_owned(), format!("{}/", folder.display())]);
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            self.process.spawn(User::Own, Path::new("env"), &args)?;
        }
        self.process.wait_ready(START_LIMIT, || self.answers())
    }

    pub(crate) fn stop(&self) -> Result<()> {
        let stopped = self.process.stop("TERM", STOP_LIMIT);
        self.names.kill9()?;
        stopped
    }

    /// Whether the broker offers to speak AMQP, and listens on the port for TLS if it has one: that comes a moment later.
    pub(crate) fn answers(&self) -> bool {
        let listens = |port| TcpStream::connect(("127.0.0.1", port)).is_ok();
        self.offers_amqp() && self.ports.tls.is_none_or(listens)
    }

    fn offers_amqp(&self) -> bool {
        let ask = || -> Result<u8> {
            let mut stream = TcpStream::connect_timeout(&self.address().parse()?, ANSWER_LIMIT)?;
            stream.set_read_timeout(Some(ANSWER_LIMIT))?;
            stream.write_all(b"AMQP\0\0\x09\x01")?;
            let mut frame = [0; 11];
            stream.read_exact(&mut frame)?;
            Ok(frame[0])
        };
        // A frame that carries a method: `connection.start`. A broker that is not ready yet closes the connection.
        ask().is_ok_and(|kind| kind == 1)
    }

    fn start_names(&self) -> Result<()> {
        if self.names.pid().is_some() {
            return Ok(());
        }
        check_free(self.ports.names)?;
        let folder = self.names.folder();
        folders::create(folder)?;
        let [_, erlang] = install::rabbitmq(self.version)?;
        // Started by a name in our folder, by which it is found again.
        let program = folder.join("epmd");
        if !program.exists() {
            std::os::unix::fs::symlink(fs::canonicalize(erlang.join("epmd"))?, &program)?;
        }
        let port = self.ports.names.to_string();
        self.names.spawn(User::Own, &program, &["-port", &port, "-address", "127.0.0.1"])?;
        let address = format!("127.0.0.1:{port}").parse()?;
        if !wait_until(ANSWER_LIMIT, || TcpStream::connect_timeout(&address, ANSWER_LIMIT).is_ok())
        {
            return Err(format!("epmd does not listen on port {port}").into());
        }
        Ok(())
    }

    fn configure(&self, folder: &Path) -> Result<()> {
        folders::create(&folder.join("log.d"))?;
        let mut config = format!(
            "listeners.tcp.1 = {}\n\
             log.console = true\n\
             log.console.level = warning\n\
             log.file = false\n\
             disk_free_limit.absolute = 50MB\n",
            self.address()
        );
        if let Some(port) = self.ports.tls {
            let file = |name: &str| tls::folder().join(name).display().to_string();
            writeln!(
                config,
                "listeners.ssl.1 = 127.0.0.1:{port}\n\
                 ssl_options.cacertfile = {}\n\
                 ssl_options.certfile = {}\n\
                 ssl_options.keyfile = {}\n\
                 ssl_options.verify = verify_peer\n\
                 ssl_options.fail_if_no_peer_cert = false",
                file("ca.crt"),
                file("server.crt"),
                file("server.key"),
            )?;
        }
        config.push_str(&self.settings);
        fs::write(folder.join("rabbitmq.conf"), config)?;
        fs::write(folder.join("plugins"), "[].\n")?;
        fs::write(folder.join("env.conf"), "")?;
        Ok(())
    }

    fn environment(&self) -> Result<Vec<(&'static str, String)>> {
        let file = |name: &str| self.process.folder().join(name).display().to_string();
        let [_, erlang] = install::rabbitmq(self.version)?;
        let path = std::env::var("PATH").unwrap_or_default();
        Ok(vec![
            ("PATH", format!("{}:{path}", erlang.display())),
            // Where the cookie lies that lets `rabbitmqctl` in.
            ("HOME", self.process.folder().display().to_string()),
            ("LANG", "C.UTF-8".to_owned()),
            ("ERL_EPMD_PORT", self.ports.names.to_string()),
            ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
            ("RABBITMQ_NODENAME", "outbox@localhost".to_owned()),
            ("RABBITMQ_DIST_PORT", self.ports.distribution.to_string()),
            ("RABBITMQ_CONF_ENV_FILE", file("env.conf")),
            ("RABBITMQ_CONFIG_FILE", file("rabbitmq.conf")),
            ("RABBITMQ_MNESIA_BASE", file("data")),
            ("RABBITMQ_LOG_BASE", file("log.d")),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", file("plugins")),
            ("RABBITMQ_PID_FILE", file("rabbitmq.pid")),
            // The script becomes the server, instead of waiting for it: signals arrive.
            ("RUNNING_UNDER_SYSTEMD", "true".to_owned()),
            // No busy waiting: the machine has other work.
            (
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "+sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}"
                    .to_owned(),
            ),
        ])
    }
}
