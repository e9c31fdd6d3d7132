//! pgbouncer in transaction mode in front of the shared PostgreSQL 15: no session state survives a transaction.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::folders;
use super::ports;
use super::postgres::{answers, give_to_postgres};
use super::process::{Lifetime, Process, User};
use crate::Result;

const START_LIMIT: Duration = Duration::from_secs(20);
const STOP_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Pgbouncer {
    pub(crate) process: Process,
}

impl Pgbouncer {
    pub(crate) fn new(folder: &Path) -> Self {
        Self { process: Process::new("pgbouncer", folder, Lifetime::Detached) }
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres:postgres@127.0.0.1:{}/postgres", ports::PGBOUNCER)
    }

    /// Does nothing when it runs. PostgreSQL must be up.
    pub(crate) fn start(&self) -> Result<()> {
        if self.process.pid().is_none() {
            ports::check_free(ports::PGBOUNCER)?;
            let folder = self.process.folder();
            folders::create(folder)?;
            self.configure(folder)?;
            give_to_postgres(folder)?;
            let ini = folder.join("pgbouncer.ini");
            self.process.spawn(User::Postgres, &program(), &[&ini.to_string_lossy()])?;
        }
        self.process.wait_ready(START_LIMIT, || answers(&self.url()))
    }

    pub(crate) fn stop(&self) -> Result<()> {
        self.process.stop("TERM", STOP_LIMIT)
    }

    fn configure(&self, folder: &Path) -> Result<()> {
        let users = folder.join("users.txt");
        fs::write(&users, "\"postgres\" \"postgres\"\n")?;
        // A pool a database: small pools that let go soon, because each test makes its own database.
        fs::write(
            folder.join("pgbouncer.ini"),
            format!(
                "[databases]\n\
                 * = host=127.0.0.1 port={postgres}\n\
                 [pgbouncer]\n\
                 listen_addr = 127.0.0.1\n\
                 listen_port = {own}\n\
                 unix_socket_dir =\n\
                 pool_mode = transaction\n\
                 auth_type = scram-sha-256\n\
                 auth_file = {users}\n\
                 admin_users = postgres\n\
                 max_client_conn = 500\n\
                 default_pool_size = 10\n\
                 server_idle_timeout = 5\n\
                 ignore_startup_parameters = extra_float_digits\n",
                postgres = ports::POSTGRES_15,
                own = ports::PGBOUNCER,
                users = users.display(),
            ),
        )?;
        Ok(())
    }
}

/// Debian puts it where only root's `PATH` looks.
fn program() -> std::path::PathBuf {
    let debian = Path::new("/usr/sbin/pgbouncer");
    if debian.exists() { debian.to_owned() } else { "pgbouncer".into() }
}
