//! A server that speaks Amazon SQS, strictly, and fails as the test has written down.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::rules::{self, Violation};
use super::{Stored, rules::MAX_BYTES};

/// What becomes of the next request to send messages.
#[derive(Clone, Debug)]
pub enum Step {
    /// It is answered as usual.
    Usual,
    /// It is refused as a whole with this status and code.
    Refuse(u16, &'static str),
    /// The entries at these places fail with this code and `SenderFault`.
    Fail(Vec<usize>, &'static str, bool),
    /// The entries at these places are taken, but the answer does not name them.
    Forget(Vec<usize>),
    /// The connection is closed before the messages are taken.
    CutBefore,
    /// The messages are taken, and the connection is closed without an answer.
    CutAfter,
    /// An answer that is not of SQS.
    Nonsense(u16),
}

/// The handle. Its server ends with the runtime that started it.
#[derive(Clone, Debug)]
pub struct Stub {
    port: u16,
    state: Arc<Mutex<State>>,
    silent: watch::Sender<bool>,
    down: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    queues: BTreeMap<String, Queue>,
    steps: VecDeque<Step>,
    /// Fails once: event id, code, `SenderFault`.
    failing: HashMap<String, (&'static str, bool)>,
    delay: Duration,
    requests: Vec<Vec<String>>,
    actions: Vec<String>,
    access_keys: Vec<String>,
    under_way: usize,
    most_under_way: usize,
}

#[derive(Debug)]
struct Queue {
    fifo: bool,
    max_bytes: usize,
    deduplication_ids: HashSet<String>,
    messages: Vec<Stored>,
}

impl Stub {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stub = Self {
            port: listener.local_addr().unwrap().port(),
            state: Arc::default(),
            silent: watch::channel(false).0,
            down: watch::channel(false).0,
        };
        let serving = stub.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let stub = serving.clone();
                tokio::spawn(async move {
                    let mut down = stub.down.subscribe();
                    tokio::select! {
                        _ = down.wait_for(|down| *down) => {}
                        _ = stub.serve(stream) => {}
                    }
                });
            }
        });
        stub
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn create(&self, name: &str) {
        self.create_with(name, MAX_BYTES);
    }

    pub fn create_with(&self, name: &str, max_bytes: usize) {
        let queue = Queue {
            fifo: name.ends_with(".fifo"),
            max_bytes,
            deduplication_ids: HashSet::new(),
            messages: Vec::new(),
        };
        self.state().queues.insert(name.to_owned(), queue);
    }

    pub fn delete(&self, name: &str) {
        self.state().queues.remove(name);
    }

    /// What the next requests come to, one each.
    pub fn next(&self, steps: impl IntoIterator<Item = Step>) {
        self.state().steps.extend(steps);
    }

    /// The event fails, once.
    pub fn fail(&self, event_id: &str, code: &'static str, sender_fault: bool) {
        self.state().failing.insert(event_id.to_owned(), (code, sender_fault));
    }

    /// Requests are read, and answered when the silence has ended.
    pub fn silence(&self, on: bool) {
        self.silent.send_replace(on);
    }

    /// Connections are closed as they come.
    pub fn down(&self, on: bool) {
        self.down.send_replace(on);
    }

    /// Answers come this much later.
    pub fn slow(&self, delay: Duration) {
        self.state().delay = delay;
    }

    pub fn stored(&self, queue: &str) -> Vec<Stored> {
        self.state().queues[queue].messages.clone()
    }

    /// The bodies of each request to send that arrived.
    pub fn requests(&self) -> Vec<Vec<String>> {
        self.state().requests.clone()
    }

    /// What each request asked for.
    pub fn actions(&self) -> Vec<String> {
        self.state().actions.clone()
    }

    /// Whose signature each request had; empty where it had none.
    pub fn access_keys(&self) -> Vec<String> {
        self.state().access_keys.clone()
    }

    /// The most requests to send that were under way at once.
    pub fn most_under_way(&self) -> usize {
        self.state().most_under_way
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    async fn serve(&self, stream: TcpStream) -> Option<()> {
        let mut stream = BufReader::new(stream);
        loop {
            let Request { action, body, access_key } = read_request(&mut stream).await?;
            {
                let mut state = self.state();
                state.access_keys.push(access_key);
                state.actions.push(action.clone());
            }
            if action.starts_with("AssumeRole") {
                write_answer(&mut stream, "text/xml", 200, &assumed(&action)).await?;
                continue;
            }
            let sends = action == "SendMessageBatch";
            if sends {
                let mut state = self.state();
                state.under_way += 1;
                state.most_under_way = state.most_under_way.max(state.under_way);
            }
            // A request that was read is served, as by a server whose client has gone: the task is nobody's to drop.
            let stub = self.clone();
            let answer = tokio::spawn(async move {
                let mut silent = stub.silent.subscribe();
                silent.wait_for(|silent| !silent).await.unwrap();
                let answer = stub.state().answer(&action, &body);
                let delay = stub.state().delay;
                tokio::time::sleep(delay).await;
                if sends {
                    stub.state().under_way -= 1;
                }
                answer
            });
            let (status, body) = answer.await.unwrap()?;
            write_answer(&mut stream, JSON, status, &body.to_string()).await?;
        }
    }
}

/// Status and body; `None` closes the connection.
type Answer = Option<(u16, Value)>;

impl State {
    fn answer(&mut self, action: &str, request: &Value) -> Answer {
        let name = match action {
            "GetQueueUrl" => request["QueueName"].as_str().unwrap_or_default(),
            _ => request["QueueUrl"].as_str().unwrap_or_default(),
        };
        let name = name.rsplit('/').next().unwrap_or_default();
        if action == "ListQueues" {
            return Some((200, json!({ "QueueUrls": [] })));
        }
        let Some(queue) = self.queues.get_mut(name) else {
            return refusal(400, &("QueueDoesNotExist", "it does not exist".to_owned()));
        };
        match action {
            "GetQueueUrl" => Some((200, json!({ "QueueUrl": format!("http://stub/1/{name}") }))),
            "GetQueueAttributes" => {
                let mut attributes = json!({ "MaximumMessageSize": queue.max_bytes.to_string() });
                if queue.fifo {
                    attributes["FifoQueue"] = json!("true");
                }
                Some((200, json!({ "Attributes": attributes })))
            }
            "SendMessageBatch" => {
                let entries = request["Entries"].as_array().cloned().unwrap_or_default();
                let body = |entry: &Value| entry["MessageBody"].as_str().unwrap().to_owned();
                self.requests.push(entries.iter().map(body).collect());
                let step = self.steps.pop_front().unwrap_or(Step::Usual);
                queue.send(&entries, &step, &mut self.failing)
            }
            other => panic!("the stub knows no action {other:?}"),
        }
    }
}

impl Queue {
    fn send(
        &mut self,
        entries: &[Value],
        step: &Step,
        failing: &mut HashMap<String, (&'static str, bool)>,
    ) -> Answer {
        match step {
            Step::Refuse(status, code) => return refusal(*status, &(*code, "scripted".to_owned())),
            Step::Nonsense(status) => return Some((*status, json!("nonsense"))),
            Step::CutBefore => return None,
            _ => {}
        }
        if let Err(violation) = rules::check_request(entries) {
            return refusal(400, &violation);
        }
        let (mut successful, mut failed) = (Vec::new(), Vec::new());
        for (at, entry) in entries.iter().enumerate() {
            let id = entry["MessageAttributes"]["id"]["StringValue"].as_str().unwrap_or_default();
            let scripted = match step {
                Step::Fail(places, code, sender_fault) if places.contains(&at) => {
                    Some((*code, *sender_fault))
                }
                _ => failing.remove(id),
            };
            let verdict = match scripted {
                Some((code, sender_fault)) => Err(((code, "scripted".to_owned()), sender_fault)),
                None => rules::check_entry(entry, self.fifo, self.max_bytes)
                    .map_err(|violation| (violation, true)),
            };
            match verdict {
                Ok(()) => {
                    self.store(entry);
                    let forgotten = matches!(step, Step::Forget(places) if places.contains(&at));
                    if !forgotten {
                        successful.push(
                            json!({ "Id": entry["Id"], "MessageId": "m", "MD5OfMessageBody": "x" }),
                        );
                    }
                }
                Err(((code, text), sender_fault)) => failed.push(json!({
                    "Id": entry["Id"], "Code": code, "Message": text, "SenderFault": sender_fault
                })),
            }
        }
        if matches!(step, Step::CutAfter) {
            return None;
        }
        // The order of the lists means nothing.
        successful.reverse();
        Some((200, json!({ "Successful": successful, "Failed": failed })))
    }

    /// "Exactly-once processing in Amazon SQS": an id that was seen is accepted, and not delivered again.
    fn store(&mut self, entry: &Value) {
        let text = |name: &str| entry[name].as_str().map(ToOwned::to_owned);
        let deduplication_id = text("MessageDeduplicationId");
        if deduplication_id.as_ref().is_some_and(|id| !self.deduplication_ids.insert(id.clone())) {
            return;
        }
        let attributes = entry["MessageAttributes"].as_object().into_iter().flatten();
        let attributes = attributes.map(|(name, attribute)| {
            let kind = attribute["DataType"].as_str().unwrap().to_owned();
            (name.clone(), (kind, rules::attribute_value(attribute).unwrap()))
        });
        self.messages.push(Stored {
            body: text("MessageBody").unwrap(),
            attributes: attributes.collect(),
            group: text("MessageGroupId").filter(|_| self.fifo),
            deduplication_id,
        });
    }
}

fn refusal(status: u16, (code, text): &Violation) -> Answer {
    let code = format!("com.amazonaws.sqs#{code}");
    Some((status, json!({ "__type": code, "message": text })))
}

struct Request {
    action: String,
    body: Value,
    access_key: String,
}

/// `None` when the connection has ended.
async fn read_request(stream: &mut BufReader<TcpStream>) -> Option<Request> {
    let (mut action, mut access_key, mut length) = (String::new(), String::new(), 0);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        let Some((name, value)) = line.split_once(": ") else { continue };
        match &*name.to_ascii_lowercase() {
            "x-amz-target" => action = value.trim_start_matches("AmazonSQS.").to_owned(),
            "content-length" => length = value.parse().unwrap(),
            "authorization" => {
                let credential = value.split_once("Credential=").unwrap().1;
                access_key = credential.split('/').next().unwrap().to_owned();
            }
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    // Of STS, which has forms.
    if let Some(form) = body.strip_prefix(b"Action=") {
        let form = std::str::from_utf8(form).unwrap();
        let action = form.split('&').next().unwrap().to_owned();
        return Some(Request { action, body: Value::Null, access_key });
    }
    Some(Request { action, body: serde_json::from_slice(&body).unwrap(), access_key })
}

async fn write_answer(
    stream: &mut BufReader<TcpStream>,
    kind: &str,
    status: u16,
    body: &str,
) -> Option<()> {
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status} -\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all((head + body).as_bytes()).await.ok()
}

const JSON: &str = "application/x-amz-json-1.0";

/// What STS answers to `AssumeRole` and `AssumeRoleWithWebIdentity`.
fn assumed(action: &str) -> String {
    format!(
        "<{action}Response xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><{action}Result>\
         <Credentials><AccessKeyId>ASSUMED</AccessKeyId><SecretAccessKey>s</SecretAccessKey>\
         <SessionToken>t</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>\
         </{action}Result></{action}Response>"
    )
}
