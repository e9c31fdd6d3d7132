//! MySQL and MariaDB: private servers for tests, and the instances that they share with the shared servers.

use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::folders::{self, PrivateFolder, is_root};
use super::install::{self, Need};
use super::ports::{ReservedPort, check_free};
use super::process::{Lifetime, Process, User, or_panic, run};
use super::tls;
use crate::Result;

/// Time until a server answers, crash recovery and a busy machine included.
const START_LIMIT: Duration = Duration::from_secs(90);
/// Time for a shutdown that flushes everything.
const STOP_LIMIT: Duration = Duration::from_secs(60);

macro_rules! private_server {
    ($(#[$doc:meta])* $name:ident, $brand:expr) => {
        $(#[$doc])*
        ///
        /// User `root`, password `root`, from 127.0.0.1 only. TLS is offered and not demanded (certificate for
        /// localhost and 127.0.0.1). Binary log on, row format. A commit survives a kill of the server, not of the machine.
        /// Dropping it kills the server and removes its data.
        ///
        /// All methods panic with the server's log when they fail: the test cannot go on.
        #[derive(Debug)]
        pub struct $name {
            instance: Instance,
            _port: ReservedPort,
            _folder: PrivateFolder,
        }

        impl $name {
            /// Starts a new, empty server and waits until it answers.
            #[track_caller]
            pub fn start() -> Self {
                Self::start_with(&[])
            }

            /// As [`start`](Self::start), with settings of `my.cnf` that replace the usual ones, such as
            /// `("max_connections", "10")`.
            #[track_caller]
            pub fn start_with(settings: &[(&str, &str)]) -> Self {
                or_panic(Self::try_start(settings))
            }

            fn try_start(settings: &[(&str, &str)]) -> Result<Self> {
                let (instance, port, folder) = private(&$brand, settings)?;
                Ok(Self { instance, _port: port, _folder: folder })
            }

            /// `mysql://…` of the user `root` and the database `mysql`. Stays the same over restarts.
            pub fn url(&self) -> String {
                self.instance.url()
            }

            /// The port on 127.0.0.1.
            pub fn port(&self) -> u16 {
                self.instance.port
            }

            /// Ends it with a shutdown: sessions are cut.
            #[track_caller]
            pub fn stop(&self) {
                or_panic(self.instance.stop());
            }

            /// Kills the server by SIGKILL.
            #[track_caller]
            pub fn kill9(&self) {
                or_panic(self.instance.process.kill9());
            }

            /// Starts the stopped or killed server on the same port and data, and waits until it answers.
            #[track_caller]
            pub fn start_again(&self) {
                or_panic(self.instance.start());
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
                or_panic(self.instance.process.signal_all("STOP"));
            }

            /// Lets a frozen server go on.
            #[track_caller]
            pub fn thaw(&self) {
                or_panic(self.instance.process.signal_all("CONT"));
            }

            /// File of the certificate that a client must trust to verify the server.
            pub fn ca_certificate(&self) -> PathBuf {
                tls::ca_certificate()
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                let _ = self.instance.process.kill9();
            }
        }
    };
}

private_server!(
    /// A MySQL 9 server of a test's own.
    MySql,
    Brand::MySql
);
private_server!(
    /// A MariaDB 10.11 server of a test's own.
    MariaDb,
    Brand::MariaDb
);

fn private(
    brand: &Brand,
    settings: &[(&str, &str)],
) -> Result<(Instance, ReservedPort, PrivateFolder)> {
    let folder = PrivateFolder::new(brand.folder())?;
    let port = ReservedPort::any()?;
    let mut instance = Instance::new(*brand, folder.path(), port.number(), Lifetime::Parent);
    for (name, value) in settings {
        writeln!(instance.settings, "{name}={value}").expect("a string takes all");
    }
    {
        let _lock = folders::lock()?;
        install::install_for(&[brand.need()])?;
    }
    instance.start()?;
    Ok((instance, port, folder))
}

/// Whose server it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Brand {
    /// MySQL 9, of Debian unstable, in a folder of its own.
    MySql,
    /// MariaDB 10.11, of Debian 12.
    MariaDb,
}

impl Brand {
    fn name(self) -> &'static str {
        match self {
            Self::MySql => "MySQL 9",
            Self::MariaDb => "MariaDB 10.11",
        }
    }

    fn folder(self) -> &'static str {
        match self {
            Self::MySql => "mysql",
            Self::MariaDb => "mariadb",
        }
    }

    fn need(self) -> Need {
        match self {
            Self::MySql => Need::MySql,
            Self::MariaDb => Need::MariaDb,
        }
    }

    /// The server's program and the arguments that come before its own.
    fn program(self) -> Result<(PathBuf, Vec<String>)> {
        match self {
            Self::MySql => install::mysqld(),
            Self::MariaDb => Ok((PathBuf::from("/usr/sbin/mariadbd"), Vec::new())),
        }
    }
}

/// A data folder, its port, and the process that serves it.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) process: Process,
    brand: Brand,
    port: u16,
    /// Lines of `my.cnf` behind the usual ones; the last of a name counts.
    settings: String,
}

impl Instance {
    pub(crate) fn new(brand: Brand, folder: &Path, port: u16, lifetime: Lifetime) -> Self {
        let process = Process::new(brand.name(), folder, lifetime);
        Self { process, brand, port, settings: String::new() }
    }

    pub(crate) fn url(&self) -> String {
        format!("mysql://root:root@127.0.0.1:{}/mysql", self.port)
    }

    /// Does nothing when it runs. The certificates and the programs must be installed.
    pub(crate) fn start(&self) -> Result<()> {
        if self.process.pid().is_none() {
            check_free(self.port)?;
            folders::create(self.process.folder())?;
            self.configure()?;
            if !self.data().exists() {
                self.initialize()?;
            }
            let (program, mut arguments) = self.brand.program()?;
            arguments.push(self.defaults());
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            self.process.spawn(User::Own, &program, &arguments)?;
        }
        self.process.wait_ready(START_LIMIT, || self.answers())
    }

    /// Whether it greets a client: what it says first is a packet of four bytes, then protocol version 10.
    pub(crate) fn answers(&self) -> bool {
        let limit = Duration::from_secs(2);
        let greeting = || {
            let address = SocketAddr::from(([127, 0, 0, 1], self.port));
            let mut stream = TcpStream::connect_timeout(&address, limit)?;
            stream.set_read_timeout(Some(limit))?;
            let mut start = [0; 5];
            stream.read_exact(&mut start)?;
            Ok::<_, std::io::Error>(start[4])
        };
        greeting().is_ok_and(|version| version == 10)
    }

    pub(crate) fn stop(&self) -> Result<()> {
        self.process.stop("TERM", STOP_LIMIT)
    }

    fn data(&self) -> PathBuf {
        self.process.folder().join("data")
    }

    fn defaults(&self) -> String {
        format!("--defaults-file={}", self.process.folder().join("my.cnf").display())
    }

    /// Beside the final place first, so that an interrupted start leaves no half instance.
    fn initialize(&self) -> Result<()> {
        let new = self.data().with_extension("new");
        let _ = fs::remove_dir_all(&new);
        let data = format!("--datadir={}", new.display());
        match self.brand {
            Brand::MySql => {
                let (program, arguments) = self.brand.program()?;
                run(Command::new(program).args(arguments).args([
                    &self.defaults(),
                    &data,
                    "--initialize-insecure",
                ]))?;
            }
            Brand::MariaDb => {
                run(Command::new("mariadb-install-db")
                    .args([&self.defaults(), &data])
                    .args(["--auth-root-authentication-method=normal", "--skip-test-db"]))?;
            }
        }
        fs::rename(&new, self.data())?;
        Ok(())
    }

    fn configure(&self) -> Result<()> {
        let folder = self.process.folder();
        for file in ["ca.crt", "server.crt", "server.key"] {
            fs::copy(tls::folder().join(file), folder.join(file))?;
        }
        // Run at every start, before the first connection is taken.
        fs::write(
            folder.join("init.sql"),
            "create user if not exists 'root'@'127.0.0.1';\n\
             alter user 'root'@'127.0.0.1' identified by 'root';\n\
             grant all on *.* to 'root'@'127.0.0.1' with grant option;\n",
        )?;
        let own = match self.brand {
            Brand::MySql => install::mysql_settings(),
            Brand::MariaDb => "binlog_row_metadata=FULL\n".to_owned(),
        };
        // Many tests connect at once, and looking whether it answers is a connection that fails.
        fs::write(
            folder.join("my.cnf"),
            format!(
                "[mysqld]\n\
                 user={user}\n\
                 datadir={folder}/data\n\
                 socket={folder}/socket\n\
                 pid-file={folder}/server.pid\n\
                 init-file={folder}/init.sql\n\
                 bind-address=127.0.0.1\n\
                 port={port}\n\
                 skip-name-resolve\n\
                 max_connections=300\n\
                 max_connect_errors=4294967295\n\
                 ssl-ca={folder}/ca.crt\n\
                 ssl-cert={folder}/server.crt\n\
                 ssl-key={folder}/server.key\n\
                 server-id=1\n\
                 log-bin=binlog\n\
                 binlog-format=ROW\n\
                 sync_binlog=0\n\
                 innodb_flush_log_at_trx_commit=2\n\
                 innodb_buffer_pool_size=128M\n\
                 {own}{settings}",
                user = if is_root() { "root" } else { "mysql" },
                folder = folder.display(),
                port = self.port,
                settings = self.settings,
            ),
        )?;
        Ok(())
    }
}
