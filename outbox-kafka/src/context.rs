//! What librdkafka reports: verdicts, errors, statistics, log lines.

use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Instant;

use outbox_core::{Failure, FailureClass};
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::Message as _;
use rdkafka::producer::{DeliveryResult, NoCustomPartitioner, ProducerContext};
use rdkafka::statistics::Statistics;

use crate::error::{self, Meaning};
use crate::live::{Live, Role};
use crate::refusals::Refusals;
use crate::slots::Slots;

/// The receiver of all reports of one producer. Its methods run on that producer's polling thread.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) slots: Slots,
    live: Weak<Live>,
    role: Role,
    refusals: Arc<Refusals>,
    suspects: Mutex<Vec<Suspect>>,
    last_error: Mutex<Option<(Code, String)>>,
    stats: Mutex<Vec<(&'static str, f64)>>,
}

/// A message of a batch that the broker refused as a whole.
#[derive(Clone, Debug)]
pub(crate) struct Suspect {
    opaque: usize,
    topic: String,
    partition: i32,
    code: Code,
}

impl Context {
    pub(crate) fn new(live: Weak<Live>, role: Role, era: u64, refusals: Arc<Refusals>) -> Self {
        Self {
            slots: Slots::new(era),
            live,
            role,
            refusals,
            suspects: Mutex::default(),
            last_error: Mutex::default(),
            stats: Mutex::default(),
        }
    }

    /// The producer's latest trouble with a broker, and its reason for people.
    pub(crate) fn last_error(&self) -> Option<(Code, String)> {
        lock(&self.last_error).clone()
    }

    /// The latest statistics.
    pub(crate) fn latest_stats(&self) -> Vec<(&'static str, f64)> {
        lock(&self.stats).clone()
    }

    /// Settles the messages of refused batches, once no report will come any more. A batch of one message says which
    /// message was meant; the others get no verdict here.
    pub(crate) fn settle_suspects(&self) {
        let suspects = std::mem::take(&mut *lock(&self.suspects));
        for suspect in &suspects {
            let company = |other: &&Suspect| {
                other.topic == suspect.topic && other.partition == suspect.partition
            };
            if suspects.iter().filter(company).nth(1).is_none() {
                let failure = error::failure(FailureClass::Permanent, suspect.code, &suspect.topic);
                self.slots.refuse(suspect.opaque, failure);
            }
        }
    }

    /// The broker said something about a message to this topic that is no matter of the whole cluster.
    fn topic_failed(&self, topic: &str, failure: &Failure) {
        if failure.class == FailureClass::Unavailable {
            return;
        }
        let Some(live) = self.live.upgrade() else { return };
        match self.role {
            Role::Careful => self.refusals.failed(topic, failure, Instant::now()),
            // Without a fatal error the broker was not asked: the client knew the topic to be missing.
            Role::Main if live.is_closing() || live.fatal_error().is_some() => {
                live.blame_topic();
                self.refusals.failed(topic, failure, Instant::now());
            }
            Role::Main => {}
        }
    }

    fn close(&self, reason: String) {
        if let Some(live) = self.live.upgrade() {
            live.close_in_background(Failure::new(FailureClass::Unavailable, reason));
        }
    }
}

impl ProducerContext for Context {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: usize) {
        let (error, message) = match result {
            Ok(message) => {
                if self.role == Role::Careful {
                    self.refusals.confirmed(message.topic());
                }
                return self.slots.confirm(opaque);
            }
            Err((error, message)) => (error, message),
        };
        let (code, topic) = (error::code(error), message.topic());
        match error::meaning(code) {
            Meaning::Verdict(class) => {
                let failure = error::failure(class, code, topic);
                self.topic_failed(topic, &failure);
                self.slots.refuse(opaque, failure);
            }
            Meaning::BatchRefused => {
                let failure = error::failure(FailureClass::Permanent, code, topic);
                self.topic_failed(topic, &failure);
                if self.role == Role::Careful {
                    return self.slots.refuse(opaque, failure);
                }
                let (topic, partition) = (topic.to_owned(), message.partition());
                let reason = format!("a batch for topic {topic} was refused: {code}");
                lock(&self.suspects).push(Suspect { opaque, topic, partition, code });
                self.close(reason);
            }
            // Purged by a close that is on its way already.
            Meaning::Open if matches!(code, Code::PurgeQueue | Code::PurgeInflight) => {}
            Meaning::Open => self.close(format!("the kafka producer had to be replaced: {code}")),
        }
    }

    fn get_custom_partitioner(&self) -> Option<&NoCustomPartitioner> {
        None
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        // Each producer warns that this setting is experimental; it is chosen here, and tested.
        let level = match facility {
            "CONFWARN" if line.contains("enable.gapless.guarantee") => RDKafkaLogLevel::Debug,
            _ => level,
        };
        match level {
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error => tracing::error!(target: "librdkafka", facility, "{line}"),
            RDKafkaLogLevel::Warning => tracing::warn!(target: "librdkafka", facility, "{line}"),
            RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => {
                tracing::info!(target: "librdkafka", facility, "{line}");
            }
            RDKafkaLogLevel::Debug => tracing::debug!(target: "librdkafka", facility, "{line}"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let code = error::code(&error);
        // It comes after the errors of the single brokers, and says less.
        if code != Code::AllBrokersDown {
            *lock(&self.last_error) = Some((code, reason.to_owned()));
        }
        if let Some(fatal) = self.live.upgrade().and_then(|live| live.fatal_error()) {
            self.close(format!("the kafka producer had to be replaced: {fatal}"));
        }
    }

    fn stats(&self, statistics: Statistics) {
        *lock(&self.stats) = figures(&statistics);
    }
}

fn figures(statistics: &Statistics) -> Vec<(&'static str, f64)> {
    let brokers = || statistics.brokers.values();
    let sum =
        |figure: fn(&rdkafka::statistics::Broker) -> u64| brokers().map(figure).sum::<u64>() as f64;
    // Microseconds; the slowest broker's.
    let slowest =
        brokers().filter_map(|broker| broker.rtt.as_ref()).map(|rtt| rtt.p99).max().unwrap_or(0);
    vec![
        ("queue_messages", statistics.msg_cnt as f64),
        ("queue_bytes", statistics.msg_size as f64),
        ("sent_messages", statistics.txmsgs as f64),
        ("sent_bytes", statistics.txmsg_bytes as f64),
        ("requests", statistics.tx as f64),
        ("request_errors", sum(|broker| broker.txerrs + broker.rxerrs)),
        ("request_retries", sum(|broker| broker.txretries)),
        ("request_timeouts", sum(|broker| broker.req_timeouts)),
        ("round_trip_p99_seconds", slowest as f64 / 1e6),
        ("brokers_up", brokers().filter(|broker| broker.state == "UP").count() as f64),
    ]
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic while it is locked")
}
