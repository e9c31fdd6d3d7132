//! The real binary, and what it says.

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long anything may take that a test waits for.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs a command to its end.
pub(crate) fn command(arguments: &[&str]) -> Output {
    program().args(arguments).output().unwrap()
}

/// The program, with what the AWS SDK reads from the environment.
fn program() -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_outbox-relay"));
    program.env_remove("SECRET").env("AWS_REGION", "us-east-1");
    program.env("AWS_ACCESS_KEY_ID", "test").env("AWS_SECRET_ACCESS_KEY", "test");
    if let Some(endpoint) = std::env::var_os("OUTBOX_TEST_SQS_ENDPOINT") {
        program.env("AWS_ENDPOINT_URL", endpoint);
    }
    program
}

/// Looks again and again until there is something.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A daemon that runs; it is killed when this value goes.
pub(crate) struct Program {
    child: Child,
    log: Lines,
    messages: Lines,
    address: SocketAddr,
}

impl Program {
    /// Runs this file, and reads both outputs from now on. Its log must be JSON.
    pub(crate) fn run(file: &Path) -> Self {
        Self::start(file, true)
    }

    /// The same, but nobody reads standard output: a pipe takes a few messages only.
    pub(crate) fn run_unread(file: &Path) -> Self {
        Self::start(file, false)
    }

    fn start(file: &Path, is_read: bool) -> Self {
        let mut child = program()
            .args(["run", "--config"])
            .arg(file)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Lines::read(child.stderr.take().unwrap());
        let messages = match is_read {
            true => Lines::read(child.stdout.take().unwrap()),
            false => Lines::default(),
        };
        let unknown = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut program = Self { child, log, messages, address: unknown };
        let line = program.log_line("http listens");
        program.address = line["address"].as_str().unwrap().parse().unwrap();
        program
    }

    /// The first line of the log with this message.
    #[track_caller]
    pub(crate) fn log_line(&self, message: &str) -> Value {
        let is = |line: &Value| line["message"].as_str().is_some_and(|text| text.contains(message));
        eventually(message, || self.log.all().into_iter().find(is))
    }

    /// Lines of the log with this message about this pipeline.
    pub(crate) fn log_lines_of(&self, pipeline: &str, message: &str) -> usize {
        let is = |line: &&Value| line["pipeline"] == pipeline && line["message"] == message;
        self.log.all().iter().filter(is).count()
    }

    /// Waits until this many messages stand in standard output, and returns them.
    #[track_caller]
    pub(crate) fn messages(&self, count: usize) -> Vec<Value> {
        let enough = || Some(self.messages.all()).filter(|messages| messages.len() >= count);
        eventually(&format!("{count} messages"), enough)
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([format!("-{name}"), pid]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits until it has ended.
    #[track_caller]
    pub(crate) fn ended(&mut self) -> ExitStatus {
        eventually("the end of the daemon", || self.child.try_wait().unwrap())
    }

    /// Status and body of a request with this token.
    pub(crate) fn get_with(&self, path: &str, token: &str) -> (u16, String) {
        self.request(path, &format!("Authorization: Bearer {token}\r\n"))
    }

    /// Status and body of a request.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        self.request(path, "")
    }

    /// The body as JSON.
    pub(crate) fn json(&self, path: &str) -> Value {
        serde_json::from_str(&self.get(path).1).unwrap()
    }

    fn request(&self, path: &str, header: &str) -> (u16, String) {
        let mut connection = TcpStream::connect(self.address).unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n{header}\r\n");
        connection.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// Waits until the daemon is ready, or is not for this reason of a pipeline.
    #[track_caller]
    pub(crate) fn wait_until_ready(&self) {
        eventually("readiness", || (self.get("/readyz").0 == 200).then_some(()));
    }

    #[track_caller]
    pub(crate) fn wait_for_trouble(&self, pipeline: &str, trouble: &str) {
        eventually(trouble, || {
            let (status, body) = self.get("/readyz");
            let body: Value = serde_json::from_str(&body).unwrap();
            (body["troubles"][pipeline] == trouble).then(|| assert_eq!(status, 503))
        });
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            self.log.all().iter().for_each(|line| eprintln!("{line}"));
        }
    }
}

/// Lines of JSON that are read in the background; what is no JSON becomes a text.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<Value>>>);

impl Lines {
    fn read(from: impl Read + Send + 'static) -> Self {
        let lines = Self::default();
        let to = lines.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).unwrap_or(Value::String(line));
                to.0.lock().unwrap().push(line);
            }
        });
        lines
    }

    fn all(&self) -> Vec<Value> {
        self.0.lock().unwrap().clone()
    }
}
