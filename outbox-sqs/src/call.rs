//! One publish call: requests of ten messages, several under way, until every message has its verdict.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::http::HttpResponse;
use aws_sdk_sqs::error::SdkError;
use aws_sdk_sqs::operation::send_message_batch::{SendMessageBatchError, SendMessageBatchOutput};
use aws_sdk_sqs::types::SendMessageBatchRequestEntry;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use outbox_core::{Batch, Failure, FailureClass};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::SqsConfig;
use crate::error::{self, Trouble};
use crate::queue::{Queue, Queues};
use crate::turns::Turns;
use crate::wire;

/// Messages in one request: SQS's limit.
const MAX_ENTRIES: usize = 10;

/// What the calls of a publisher share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) client: Client,
    pub(crate) config: SqsConfig,
    pub(crate) queues: Queues,
    /// A permit for each request that may be under way, questions about queues among them.
    pub(crate) permits: Arc<Semaphore>,
    pub(crate) sent_messages: AtomicU64,
    pub(crate) sent_requests: AtomicU64,
}

/// A call that runs. Dropping it ends its requests, and gives what was not sent its verdict; what was sent stays open.
pub(crate) struct Call {
    shared: Arc<Shared>,
    batch: Batch,
    turns: Turns,
    queues: Vec<State>,
    /// Messages that are in a request or have been.
    sent: Vec<bool>,
    /// Messages that are sent in a request of their own, since one of their last request is at fault.
    alone: HashSet<usize>,
    /// Why nothing more is sent.
    ended: Option<Failure>,
}

/// A queue, as far as this call knows.
enum State {
    Asked,
    There(Arc<Queue>),
    Failed(Failure),
}

/// What comes back.
enum Answer {
    Queue(usize, Result<Arc<Queue>, Failure>),
    Request { queue: usize, messages: Vec<usize>, result: SendResult },
}

type SendError = SdkError<SendMessageBatchError, HttpResponse>;
type SendResult = Result<SendMessageBatchOutput, Box<SendError>>;
type Requests = FuturesUnordered<BoxFuture<'static, Answer>>;

impl Call {
    pub(crate) fn new(shared: Arc<Shared>, batch: Batch) -> Self {
        let turns = Turns::new(batch.messages());
        let queues = turns.destinations().map(|_| State::Asked).collect();
        let sent = vec![false; batch.len()];
        Self { shared, batch, turns, queues, sent, alone: HashSet::new(), ended: None }
    }

    /// Runs until nothing is under way and nothing can be sent. When nobody waits for the call any more, the end of
    /// `caller`, it sends nothing new and takes in what is under way.
    pub(crate) async fn run(mut self, mut caller: oneshot::Receiver<()>) {
        let permits = self.shared.permits.clone();
        let mut requests = self.ask_for_queues();
        loop {
            let next = self.next_queue();
            if next.is_none() && requests.is_empty() {
                return;
            }
            tokio::select! {
                biased;
                _ = &mut caller, if self.ended.is_none() => {
                    self.end(unavailable("the message was not sent in time"));
                }
                Some(answer) = requests.next() => self.take_in(answer),
                permit = permits.clone().acquire_owned(), if next.is_some() => {
                    let permit = permit.expect("the semaphore is never closed");
                    let queue = next.expect("there is one");
                    requests.extend(self.request(queue, permit));
                }
            }
        }
    }

    fn ask_for_queues(&self) -> Requests {
        let ask = |(at, destination): (usize, &Arc<str>)| -> BoxFuture<'static, Answer> {
            let (shared, destination) = (self.shared.clone(), destination.clone());
            Box::pin(async move {
                let Shared { client, config, queues, permits, .. } = &*shared;
                Answer::Queue(at, queues.find(client, config, permits, &destination).await)
            })
        };
        self.turns.destinations().enumerate().map(ask).collect()
    }

    /// The queue with the most messages whose turn it is.
    fn next_queue(&self) -> Option<usize> {
        let there = |at: &usize| matches!(self.queues[*at], State::There(_));
        let most = (0..self.queues.len()).filter(there).max_by_key(|at| self.turns.ready(*at));
        most.filter(|at| self.turns.ready(*at) > 0)
    }

    /// A request with as many messages as SQS takes; `None` when none of them can ever be sent.
    fn request(
        &mut self,
        at: usize,
        permit: OwnedSemaphorePermit,
    ) -> Option<BoxFuture<'static, Answer>> {
        let State::There(queue) = &self.queues[at] else { return None };
        let queue = queue.clone();
        let (messages, entries) = self.fill(at, &queue);
        if messages.is_empty() {
            return None;
        }
        let shared = self.shared.clone();
        Some(Box::pin(async move {
            let request = shared.client.send_message_batch().queue_url(&queue.url);
            let result = request.set_entries(Some(entries)).send().await;
            drop(permit);
            Answer::Request { queue: at, messages, result: result.map_err(Box::new) }
        }))
    }

    fn fill(
        &mut self,
        at: usize,
        queue: &Queue,
    ) -> (Vec<usize>, Vec<SendMessageBatchRequestEntry>) {
        let (mut messages, mut entries, mut bytes) = (Vec::new(), Vec::new(), 0);
        while messages.len() < MAX_ENTRIES {
            let Some(message) = self.turns.take(at) else { break };
            let written = wire::entry(
                &self.batch.messages()[message],
                messages.len(),
                queue,
                &self.shared.config,
            );
            let written = match written {
                Ok(written) => written,
                Err(defect) => {
                    self.refuse(message, defect);
                    continue;
                }
            };
            let alone = self.alone.contains(&message);
            let is_full = alone || bytes + written.bytes > self.shared.config.max_request_bytes;
            if is_full && !messages.is_empty() {
                self.turns.put_back(message);
                break;
            }
            bytes += written.bytes;
            self.sent[message] = true;
            messages.push(message);
            entries.push(written.entry);
            if alone {
                break;
            }
        }
        (messages, entries)
    }

    fn take_in(&mut self, answer: Answer) {
        match answer {
            Answer::Queue(at, Ok(queue)) if self.ended.is_none() => {
                self.queues[at] = State::There(queue);
            }
            Answer::Queue(_, Ok(_)) => {}
            Answer::Queue(at, Err(failure)) => self.fail_queue(at, failure),
            Answer::Request { queue, messages, result } => {
                self.shared.sent_requests.fetch_add(1, Ordering::Relaxed);
                match result {
                    Ok(output) => self.take_in_entries(queue, &messages, &output),
                    Err(error) => self.take_in_error(queue, &messages, &error),
                }
            }
        }
        self.refuse_ready();
    }

    /// Each message by its own entry. One that is in neither list stays open. B194
    fn take_in_entries(&mut self, at: usize, messages: &[usize], output: &SendMessageBatchOutput) {
        let message = |id: &str| id.parse().ok().and_then(|at: usize| messages.get(at)).copied();
        let mut open: HashSet<usize> = messages.iter().copied().collect();
        for message in output.successful().iter().filter_map(|entry| message(entry.id())) {
            if open.remove(&message) && self.batch.confirm(message) {
                self.shared.sent_messages.fetch_add(1, Ordering::Relaxed);
                self.turns.pass(message);
            }
        }
        let all_failed = output.failed().len() == messages.len();
        for entry in output.failed() {
            let Some(message) = message(entry.id()).filter(|message| open.remove(message)) else {
                continue;
            };
            let destination = self.batch.messages()[message].destination();
            let failure = error::of_entry(entry, all_failed, destination);
            self.refuse(message, failure.clone());
            self.consider(at, failure);
        }
        for message in open {
            self.stop(message);
        }
    }

    fn take_in_error(&mut self, at: usize, messages: &[usize], error: &SendError) {
        let destination = self.batch.messages()[messages[0]].destination();
        match error::of_request(error, destination) {
            Trouble::OneOfThem(_) if messages.len() > 1 => {
                for message in messages.iter().rev() {
                    self.sent[*message] = false;
                    self.alone.insert(*message);
                    self.turns.put_back(*message);
                }
            }
            Trouble::OneOfThem(failure) | Trouble::NotTaken(failure) => {
                for message in messages {
                    self.refuse(*message, failure.clone());
                }
                self.consider(at, failure);
            }
            Trouble::Unknown(reason) => {
                for message in messages {
                    self.stop(*message);
                }
                self.end(unavailable(&format!("one before it in this call is open: {reason}")));
            }
        }
    }

    /// Whether a failure concerns more than its own message.
    fn consider(&mut self, at: usize, failure: Failure) {
        match failure.class {
            FailureClass::Unavailable => self.end(failure),
            FailureClass::Refused => self.fail_queue(at, failure),
            _ => {}
        }
    }

    fn end(&mut self, failure: Failure) {
        self.ended.get_or_insert(failure);
        self.refuse_ready();
    }

    fn fail_queue(&mut self, at: usize, failure: Failure) {
        if let Some(destination) = self.turns.destinations().nth(at) {
            self.shared.queues.forget(destination);
        }
        if failure.class == FailureClass::Unavailable {
            self.end(failure);
        } else {
            self.queues[at] = State::Failed(failure);
        }
    }

    /// What has its turn and cannot be sent gets its verdict.
    fn refuse_ready(&mut self) {
        for at in 0..self.queues.len() {
            let failure = match (&self.ended, &self.queues[at]) {
                (Some(failure), _) | (None, State::Failed(failure)) => failure.clone(),
                (None, State::Asked | State::There(_)) => continue,
            };
            while let Some(message) = self.turns.take(at) {
                self.refuse(message, failure.clone());
            }
        }
    }

    fn refuse(&mut self, message: usize, failure: Failure) {
        let permanent = failure.class == FailureClass::Permanent;
        self.batch.refuse(message, failure);
        if permanent { self.turns.pass(message) } else { self.stop(message) }
    }

    /// Nothing follows this message.
    fn stop(&mut self, message: usize) {
        for behind in self.turns.behind(message) {
            self.batch.refuse(behind, unsent());
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        for message in (0..self.batch.len()).filter(|message| !self.sent[*message]) {
            self.batch.refuse(message, unavailable("the message was abandoned before it was sent"));
        }
    }
}

fn unavailable(reason: &str) -> Failure {
    Failure::new(FailureClass::Unavailable, reason)
}

fn unsent() -> Failure {
    Failure::new(FailureClass::Unsent, "one before it in this call was not taken")
}
