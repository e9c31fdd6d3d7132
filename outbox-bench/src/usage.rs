//! CPU, memory and WAL of everybody involved, as far as they are on this machine.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use sqlx::{PgConnection, Row as _};

/// Kernel ticks per second, as `/proc` counts CPU time on Linux.
const TICKS: u64 = 100;

/// CPU seconds and WAL bytes of a stretch of work.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct Usage {
    /// This process, user and system.
    pub own_cpu: f64,
    /// The broker; `None` when it is not on this machine.
    pub broker_cpu: Option<f64>,
    /// The sessions of the bench's database; `None` when the server is not on this machine.
    pub backends_cpu: Option<f64>,
    /// The server's other processes (WAL writer, checkpointer and so on), which work for all its databases.
    pub server_cpu: Option<f64>,
    /// WAL that the server wrote, for all its databases.
    pub wal_bytes: u64,
    /// The highest resident set of this process so far.
    pub peak_bytes: u64,
}

/// Measures from its making on.
#[derive(Debug)]
pub struct Meter {
    broker: Option<u32>,
    database: Option<PgConnection>,
    before: Usage,
}

impl Meter {
    /// Starts to measure. The connection must lead to the database in which the work is done.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn start(bootstrap: &str, database: Option<PgConnection>) -> Result<Self> {
        let broker = bootstrap.rsplit_once(':').and_then(|(_, port)| listener(port.parse().ok()?));
        let mut meter = Self { broker, database, before: Usage::default() };
        meter.before = meter.read().await?;
        Ok(meter)
    }

    /// What was used since the start. Sessions that have ended are missing.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn stop(mut self) -> Result<Usage> {
        let (after, before) = (self.read().await?, self.before);
        let since = |after: Option<f64>, before: Option<f64>| Some(after? - before.unwrap_or(0.0));
        Ok(Usage {
            own_cpu: after.own_cpu - before.own_cpu,
            broker_cpu: since(after.broker_cpu, before.broker_cpu),
            backends_cpu: since(after.backends_cpu, before.backends_cpu),
            server_cpu: since(after.server_cpu, before.server_cpu),
            wal_bytes: after.wal_bytes - before.wal_bytes,
            peak_bytes: after.peak_bytes,
        })
    }

    async fn read(&mut self) -> Result<Usage> {
        let mut usage = Usage {
            own_cpu: own_cpu().as_secs_f64(),
            broker_cpu: self.broker.and_then(cpu_of),
            peak_bytes: peak_bytes()?,
            ..Usage::default()
        };
        if let Some(database) = &mut self.database {
            let rows = sqlx::query(
                "select pid, datname is not null as session, (pg_current_wal_lsn() - '0/0')::int8 as wal
                   from pg_stat_activity
                  where (datname is null or datname = current_database()) and pid <> pg_backend_pid()",
            )
            .fetch_all(database)
            .await
            .context("cannot read pg_stat_activity")?;
            for row in &rows {
                usage.wal_bytes = u64::try_from(row.try_get::<i64, _>("wal")?)?;
                let pid = u32::try_from(row.try_get::<i32, _>("pid")?)?;
                let sum = if row.try_get("session")? {
                    &mut usage.backends_cpu
                } else {
                    &mut usage.server_cpu
                };
                // A pid of another machine may be somebody here: a server's process is named after it.
                if let Some(cpu) = cpu_of(pid).filter(|_| name_of(pid).starts_with("postgres")) {
                    *sum = Some(sum.unwrap_or(0.0) + cpu);
                }
            }
        }
        Ok(usage)
    }
}

/// CPU time of this process, of all its threads.
fn own_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs().try_into().unwrap_or(0))
}

/// CPU seconds of a process, of all its threads, to a hundredth.
fn cpu_of(pid: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The fields stand behind the name, which may hold spaces and brackets: user and system are the 12th and 13th.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let ticks = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some(ticks as f64 / TICKS as f64)
}

fn name_of(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default()
}

/// The highest resident set of this process so far.
fn peak_bytes() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status").context("cannot read /proc")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).context("no VmHWM in /proc")?;
    Ok(kib.parse::<u64>()? * 1024)
}

/// The process of this machine that listens on a port, when we may see it.
fn listener(port: u16) -> Option<u32> {
    let sockets = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
    let inode = sockets.iter().flatten().flat_map(|table| table.lines()).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let listens = fields.get(3) == Some(&"0A");
        let at_port = fields.get(1)?.ends_with(&format!(":{port:04X}"));
        (listens && at_port).then(|| fields.get(9).map(ToString::to_string)).flatten()
    })?;
    let socket = format!("socket:[{inode}]");
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let mut files = fs::read_dir(entry.path().join("fd")).ok()?.flatten();
        files
            .any(|file| fs::read_link(file.path()).is_ok_and(|to| to.as_os_str() == &*socket))
            .then_some(pid)
    })
}

/// The load average over a minute, and the number of cores: how busy the machine is.
#[must_use]
pub fn machine() -> (f64, usize) {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split_whitespace().next().and_then(|load| load.parse().ok()).unwrap_or(0.0);
    (load, std::thread::available_parallelism().map_or(0, usize::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_found_by_its_port() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        assert_eq!(listener(port), Some(std::process::id()));
    }

    #[test]
    fn work_shows_in_both_clocks() {
        let (mut sum, before) = (0u64, own_cpu());
        while own_cpu() - before < Duration::from_millis(40) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(cpu_of(std::process::id()).unwrap() >= 0.03);
        assert!(peak_bytes().unwrap() > 1 << 20);
    }
}
