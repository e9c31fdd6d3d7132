//! A server's process: spawned detached with a log, found again by its pid file, ended by signals.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::folders::is_root;
use crate::Result;

/// How often a wait looks again.
const POLL: Duration = Duration::from_millis(20);
/// Lines of the log that an error shows.
const TAIL_LINES: usize = 20;

/// A server by the folder that holds its data, its `pid` file and its `log`.
///
/// A pid is believed only while that process's command line names the folder, so a stale file can
/// never hit a stranger.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    folder: PathBuf,
    lifetime: Lifetime,
}

/// How long a server lives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Lifetime {
    /// Until it is stopped.
    Detached,
    /// Until it is stopped or the process that started it ends, however that ends.
    Parent,
}

/// The user a server runs as.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum User {
    Own,
    /// `postgres` when we are root (PostgreSQL and pgbouncer refuse to be root), else our own.
    Postgres,
}

impl Process {
    pub(crate) fn new(name: impl Into<String>, folder: &Path, lifetime: Lifetime) -> Self {
        Self { name: name.into(), folder: folder.to_owned(), lifetime }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Starts the program with its output in a new log, and returns before it is ready.
    /// One of the arguments must name the folder.
    pub(crate) fn spawn(&self, user: User, program: &Path, args: &[&str]) -> Result<()> {
        let log = File::create(self.log_path())?;
        let mut command = command_as(user, self.lifetime, program);
        command.args(args).process_group(0).current_dir("/");
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let pid = spawn_and_reap(command)
            .map_err(|e| format!("cannot start {}: {}: {e}", self.name, program.display()))?;
        fs::write(self.folder.join("pid"), format!("{pid}\n"))?;
        Ok(())
    }

    /// The pid while the process lives.
    pub(crate) fn pid(&self) -> Option<u32> {
        let pid = fs::read_to_string(self.folder.join("pid")).ok()?.trim().parse().ok()?;
        let command_line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let names_us = if command_line.is_empty() {
            // The moment of becoming another program (`setpriv` the server, Java itself again);
            // the kernel's own threads, children of pid 2, never have one.
            stat(pid)?.1 != 2
        } else {
            let folder = format!("{}/", self.folder.display());
            String::from_utf8_lossy(&command_line).contains(&folder)
        };
        (names_us && lives(pid)).then_some(pid)
    }

    /// Waits until `ready` says so; the end of the process or of the time is an error with the log's tail.
    pub(crate) fn wait_ready(&self, limit: Duration, ready: impl Fn() -> bool) -> Result<()> {
        let start = Instant::now();
        while !ready() {
            if self.pid().is_none() {
                return Err(self.failure("ended while it was starting"));
            }
            if start.elapsed() > limit {
                return Err(self.failure(&format!("was not ready after {} s", limit.as_secs())));
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Sends a signal to the main process; none when it is not running.
    pub(crate) fn signal(&self, signal: &str) -> Result<()> {
        match self.pid() {
            Some(pid) => kill(signal, &[pid]),
            None => Ok(()),
        }
    }

    /// Sends a signal to the process and its children at once.
    pub(crate) fn signal_all(&self, signal: &str) -> Result<()> {
        match self.pid() {
            Some(pid) => kill(signal, &with_children(pid)),
            None => Ok(()),
        }
    }

    /// Asks the process to end by the signal and waits; kills it when it does not in time.
    pub(crate) fn stop(&self, signal: &str, limit: Duration) -> Result<()> {
        self.signal_all("CONT")?;
        self.signal(signal)?;
        if !wait_until(limit, || self.pid().is_none()) {
            self.kill9()?;
            return Err(
                self.failure(&format!("did not stop within {} s and was killed", limit.as_secs()))
            );
        }
        Ok(())
    }

    /// Ends the process and its children by SIGKILL and waits until none of them is left.
    pub(crate) fn kill9(&self) -> Result<()> {
        let Some(pid) = self.pid() else { return Ok(()) };
        let all = with_children(pid);
        kill("KILL", &all)?;
        if !wait_until(Duration::from_secs(10), || all.iter().all(|pid| !lives(*pid))) {
            return Err(self.failure("survived SIGKILL for 10 s"));
        }
        Ok(())
    }

    fn log_path(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn failure(&self, what: &str) -> crate::Error {
        let log = fs::read_to_string(self.log_path()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n  ");
        format!("{} {what}; the end of {}:\n  {tail}", self.name, self.log_path().display()).into()
    }
}

/// Runs a command to its end; a failure becomes an error with what it printed.
pub(crate) fn run(command: &mut Command) -> Result<Output> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("cannot run {program}: {e}; `cargo xtask services install`"))?;
    if output.status.success() {
        return Ok(output);
    }
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Err(format!("{command:?} failed ({}):\n{}{}", output.status, out, err).into())
}

/// For the methods of private servers: a test cannot go on without them.
#[track_caller]
pub(crate) fn or_panic<T>(result: Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}

/// The command as the given user, tied to our life when the lifetime says so.
pub(crate) fn command_as(user: User, lifetime: Lifetime, program: &Path) -> Command {
    let change_user = user == User::Postgres && is_root();
    if !change_user && lifetime == Lifetime::Detached {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    if change_user {
        command.args(["--reuid=postgres", "--regid=postgres", "--init-groups"]);
    }
    if lifetime == Lifetime::Parent {
        command.args(["--pdeathsig", "KILL"]);
    }
    command.arg(program);
    command
}

pub(crate) fn wait_until(limit: Duration, done: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !done() {
        if start.elapsed() > limit {
            return false;
        }
        thread::sleep(POLL);
    }
    true
}

/// Spawns from a thread that stays until the child has ended: it reaps the child, and the kernel
/// sends the parent-death signal when the *thread* that spawned ends.
fn spawn_and_reap(mut command: Command) -> std::io::Result<u32> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || match command.spawn() {
        Ok(mut child) => {
            let _ = sender.send(Ok(child.id()));
            let _ = child.wait();
        }
        Err(e) => {
            let _ = sender.send(Err(e));
        }
    });
    receiver.recv().expect("the thread sends before it ends")
}

/// Through the shell's builtin: a bare system has no `kill` program.
fn kill(signal: &str, pids: &[u32]) -> Result<()> {
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    let output = Command::new("sh")
        .args(["-c", &format!("kill -s {signal} {}", pids.join(" "))])
        .output()
        .map_err(|e| format!("cannot run sh to send a signal: {e}"))?;
    // A process may have ended since it was listed; anything else is an error.
    let error = String::from_utf8_lossy(&output.stderr);
    match error.lines().find(|line| !line.is_empty() && !line.contains("No such process")) {
        Some(line) => Err(format!("cannot send SIG{signal}: {line}").into()),
        None => Ok(()),
    }
}

fn with_children(parent: u32) -> Vec<u32> {
    let mut pids = vec![parent];
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if stat(pid).is_some_and(|(_, its_parent)| its_parent == parent) {
            pids.push(pid);
        }
    }
    pids
}

/// A zombie with other threads is still dying: they hold its sockets.
fn lives(pid: u32) -> bool {
    let threads = || fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    stat(pid).is_some_and(|(state, _)| state != 'Z' || threads() > 1)
}

/// State and parent of a process. The fields stand behind the name, which may hold spaces and brackets.
fn stat(pid: u32) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}
