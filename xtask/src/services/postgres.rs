//! PostgreSQL: a private server for a test, and the cluster that it shares with the shared servers.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::folders::{self, PrivateFolder, is_root};
use super::install::{self, Need};
use super::ports::{ReservedPort, check_free};
use super::process::{Lifetime, Process, User, command_as, or_panic, run};
use super::tls;
use crate::Result;

/// Time until a server answers, crash recovery and a busy machine included.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Time for a fast shutdown with its checkpoint.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// A PostgreSQL server of a test's own. Dropping it kills the server and removes its data.
///
/// Superuser `postgres`, password `postgres`, database `postgres`; `wal_level = logical`, durable,
/// TLS offered and not demanded (certificate for localhost and 127.0.0.1).
///
/// All methods panic with the server's log when they fail: the test cannot go on.
#[derive(Debug)]
pub struct Postgres {
    cluster: Cluster,
    _port: ReservedPort,
    _folder: PrivateFolder,
}

/// The majors that the tests run on: the oldest supported and the newest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PostgresVersion {
    /// PostgreSQL 15, of Debian 12.
    V15,
    /// PostgreSQL 18.
    V18,
}

impl Postgres {
    /// Starts a new, empty server and waits until it answers.
    #[track_caller]
    pub fn start(version: PostgresVersion) -> Self {
        Self::start_with(version, &[])
    }

    /// As [`start`](Self::start), with settings of `postgresql.conf` that replace the usual ones,
    /// such as `("max_connections", "10")`.
    #[track_caller]
    pub fn start_with(version: PostgresVersion, settings: &[(&str, &str)]) -> Self {
        or_panic(Self::try_start(version, settings))
    }

    fn try_start(version: PostgresVersion, settings: &[(&str, &str)]) -> Result<Self> {
        let folder = PrivateFolder::new("postgres")?;
        let port = ReservedPort::any()?;
        let mut cluster = Cluster::new(version, folder.path(), port.number(), Lifetime::Parent);
        for (name, value) in settings {
            writeln!(cluster.settings, "{name} = '{value}'").expect("a string takes all");
        }
        {
            let _lock = folders::lock()?;
            install::install_for(&[Need::Postgres])?;
        }
        cluster.start()?;
        Ok(Self { cluster, _port: port, _folder: folder })
    }

    /// `postgres://…` of the superuser and the database `postgres`. Stays the same over restarts.
    pub fn url(&self) -> String {
        self.cluster.url()
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.cluster.port
    }

    /// Ends it with a fast shutdown: sessions are cut, committed work is checkpointed.
    #[track_caller]
    pub fn stop(&self) {
        or_panic(self.cluster.stop());
    }

    /// Kills the server with all its backends by SIGKILL, as a crash of the machine's memory would.
    #[track_caller]
    pub fn kill9(&self) {
        or_panic(self.cluster.process.kill9());
    }

    /// Starts the stopped or killed server on the same port and data, and waits until it answers.
    #[track_caller]
    pub fn start_again(&self) {
        or_panic(self.cluster.start());
    }

    /// [`stop`](Self::stop), then [`start_again`](Self::start_again).
    #[track_caller]
    pub fn restart(&self) {
        self.stop();
        self.start_again();
    }

    /// Stops all its processes in place (SIGSTOP): connections stay open and nothing answers.
    #[track_caller]
    pub fn freeze(&self) {
        or_panic(self.cluster.process.signal_all("STOP"));
    }

    /// Lets a frozen server go on.
    #[track_caller]
    pub fn thaw(&self) {
        or_panic(self.cluster.process.signal_all("CONT"));
    }

    /// File of the certificate that a client must trust to verify the server.
    pub fn ca_certificate(&self) -> std::path::PathBuf {
        tls::ca_certificate()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let _ = self.cluster.process.kill9();
    }
}

/// A data folder, its port, and the process that serves it.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) process: Process,
    version: PostgresVersion,
    port: u16,
    /// Lines of `postgresql.conf` behind the usual ones; the last of a name counts.
    settings: String,
}

impl Cluster {
    pub(crate) fn new(
        version: PostgresVersion,
        folder: &Path,
        port: u16,
        lifetime: Lifetime,
    ) -> Self {
        let name = match version {
            PostgresVersion::V15 => "PostgreSQL 15",
            PostgresVersion::V18 => "PostgreSQL 18",
        };
        Self {
            process: Process::new(name, folder, lifetime),
            version,
            port,
            settings: String::new(),
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres:postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Does nothing when it runs. The certificates and the programs must be installed.
    pub(crate) fn start(&self) -> Result<()> {
        let data = self.process.folder().join("data");
        if self.process.pid().is_none() {
            check_free(self.port)?;
            if !data.exists() {
                self.initialize(&data)?;
            }
            self.configure(&data)?;
            // Of a server that was killed: its pid may be another program's by now, and PostgreSQL would refuse.
            let _ = fs::remove_file(data.join("postmaster.pid"));
            let server = install::postgres(self.version)?.join("postgres");
            self.process.spawn(User::Postgres, &server, &["-D", &data.to_string_lossy()])?;
        }
        self.process.wait_ready(START_LIMIT, || answers(&self.url()))
    }

    pub(crate) fn stop(&self) -> Result<()> {
        // SIGINT is PostgreSQL's fast shutdown.
        self.process.stop("INT", STOP_LIMIT)
    }

    /// Beside the final place first, so that an interrupted start leaves no half cluster.
    fn initialize(&self, data: &Path) -> Result<()> {
        let initdb = install::postgres(self.version)?.join("initdb");
        let folder = self.process.folder();
        folders::create(folder)?;
        let (new, password) = (data.with_extension("new"), folder.join("password"));
        let _ = fs::remove_dir_all(&new);
        fs::write(&password, "postgres")?;
        give_to_postgres(folder)?;
        run(command_as(User::Postgres, Lifetime::Detached, &initdb)
            .current_dir("/")
            .arg("-D")
            .arg(&new)
            .arg(format!("--pwfile={}", password.display()))
            .args(["--username=postgres", "--auth=scram-sha-256", "--no-sync"])
            .args(["--encoding=UTF8", "--locale=C"]))?;
        fs::rename(&new, data)?;
        Ok(())
    }

    fn configure(&self, data: &Path) -> Result<()> {
        fs::write(
            data.join("postgresql.conf"),
            format!(
                "listen_addresses = '127.0.0.1'\n\
                 port = {port}\n\
                 unix_socket_directories = ''\n\
                 wal_level = logical\n\
                 max_connections = 200\n\
                 max_prepared_transactions = 10\n\
                 max_replication_slots = 20\n\
                 max_wal_senders = 20\n\
                 shared_buffers = '128MB'\n\
                 password_encryption = 'scram-sha-256'\n\
                 ssl = on\n\
                 ssl_ca_file = 'ca.crt'\n\
                 ssl_cert_file = 'server.crt'\n\
                 ssl_key_file = 'server.key'\n\
                 timezone = 'UTC'\n\
                 log_timezone = 'UTC'\n\
                 log_line_prefix = '%m [%p] %q%u@%d '\n\
                 {own}",
                port = self.port,
                own = self.settings,
            ),
        )?;
        // `host` takes connections with TLS and without.
        fs::write(
            data.join("pg_hba.conf"),
            "host all all 127.0.0.1/32 scram-sha-256\n\
             host replication all 127.0.0.1/32 scram-sha-256\n",
        )?;
        for file in ["ca.crt", "server.crt", "server.key"] {
            fs::copy(tls::folder().join(file), data.join(file))?;
        }
        give_to_postgres(data)
    }
}

/// Whether a login and a query succeed. Also for pgbouncer.
pub(crate) fn answers(url: &str) -> bool {
    Command::new("psql")
        .args(["--no-psqlrc", "--quiet", "--tuples-only", "--command=select 1", url])
        .env("PGCONNECT_TIMEOUT", "2")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

pub(crate) fn give_to_postgres(path: &Path) -> Result<()> {
    if is_root() {
        run(Command::new("chown").arg("-R").arg("postgres:postgres").arg(path))?;
    }
    Ok(())
}
