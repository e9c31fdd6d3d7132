//! The publisher: hands messages to the connection, opens another when it is gone.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use lapin::uri::{AMQPAuthority, AMQPUri};
use outbox_core::{Batch, Failure, KeyOrder, PublishError, PublishErrorKind, Publisher};

use crate::RabbitMqConfig;
use crate::confirms::Letter;
use crate::error::{self, Answer};
use crate::session::{Figures, Session};
use crate::socket::Plug;
use crate::wire;

/// RabbitMQ as a [`Publisher`].
///
/// # Verdicts
///
/// - *Confirmed*: the broker has confirmed the message and has not returned it. Where its queues are durable it is on disk,
///   where they are quorum queues on most of their nodes.
/// - `Permanent`: the payload is missing, or larger than [`RabbitMqConfig::max_message_bytes`] or the broker allows; a name is
///   longer than AMQP allows; the event was written before 1970; or it is unroutable and
///   [`RabbitMqConfig::unroutable`] says so.
/// - `Refused`: no queue takes the message, the exchange is missing or not permitted, or a queue is full and rejects.
/// - `Unavailable`: there is no connection, the broker blocks its publishers for want of memory or disk, or the connection
///   was lost while the message was open. In the last case it may have been written.
/// - `Transient`: the channel was closed for this message, for a reason that says nothing of the above.
///
/// While the broker does not answer there is no verdict, until it does, the heartbeat is missed, or the message is
/// abandoned. What was abandoned gets none either: it may have been written, and it will not be sent any more.
///
/// # Order
///
/// [`KeyOrder::Unordered`]: a message may be refused while one behind it is taken. A key always goes by the same channel.
///
/// # Connection
///
/// One, opened by the first call, and by the next call after it was lost: the relay decides when to try again. It leads to
/// the node that the last one led to, or to the next of [`RabbitMqConfig::hosts`] that gives one.
/// Nothing is taken over from one connection to the next. When a broker closes a *channel* for one of its messages,
/// the others of that channel are sent again one by one, and may come twice.
///
/// Needs a tokio runtime with its timer and its I/O.
#[derive(Debug)]
pub struct RabbitMqPublisher {
    config: Arc<RabbitMqConfig>,
    /// One for each node.
    uris: Vec<AMQPUri>,
    /// The node to be tried next.
    node: AtomicUsize,
    figures: Arc<Figures>,
    live: Mutex<Option<Arc<Session>>>,
    /// Ends the connection that is being made.
    connecting: Mutex<Plug>,
    /// One call at a time makes a connection.
    turn: tokio::sync::Mutex<()>,
    /// How often the messages were abandoned.
    abandons: AtomicU64,
}

impl RabbitMqPublisher {
    /// A publisher with these settings. Does not connect yet: [`Publisher::check`] does, and says whether it could.
    ///
    /// # Errors
    ///
    /// When a setting is refused; the text names it and says why.
    pub fn new(config: &RabbitMqConfig) -> Result<Self, PublishError> {
        Ok(Self {
            uris: config.uris()?,
            node: AtomicUsize::new(0),
            config: Arc::new(config.clone()),
            figures: Arc::default(),
            live: Mutex::default(),
            connecting: Mutex::default(),
            turn: tokio::sync::Mutex::new(()),
            abandons: AtomicU64::new(0),
        })
    }

    /// The session, or a new one in place of one that is over. `None` for a call from before an `abandon`: it counts among
    /// what was abandoned.
    async fn session(&self, era: u64) -> Option<Result<Arc<Session>, PublishError>> {
        let _turn = self.turn.lock().await;
        if let Some(session) = lock(&self.live).clone() {
            if session.is_connected() && !session.is_over() {
                return (self.era() == era).then_some(Ok(session));
            }
            session.lose_with(
                "it was lost before the message was confirmed, which may have been written",
            );
        }
        let mut errors = Vec::new();
        for _ in &self.uris {
            // Whatever ends this try, the next one is at another node.
            let node = self.node.fetch_add(1, Ordering::Relaxed) % self.uris.len();
            match self.connect(era, &self.uris[node]).await? {
                Ok(session) => {
                    self.node.store(node, Ordering::Relaxed);
                    return Some(Ok(session));
                }
                Err(error) => errors.push((node, error)),
            }
        }
        Some(Err(self.no_node(errors)))
    }

    fn no_node(&self, mut errors: Vec<(usize, PublishError)>) -> PublishError {
        use PublishErrorKind::{Misconfigured, Unavailable};
        if errors.len() == 1 {
            return errors.remove(0).1;
        }
        let reasons: Vec<String> = errors
            .iter()
            .map(|(node, error)| {
                let AMQPAuthority { host, port, .. } = &self.uris[*node].authority;
                format!("{host}:{port}: {error}")
            })
            .collect();
        // One node that may come back is worth another try.
        let may_come_back = errors.iter().find(|(_, error)| error.kind() == Unavailable);
        let kind = may_come_back.map_or(Misconfigured, |_| Unavailable);
        let error = PublishError::new(kind, reasons.join("; "));
        match errors.pop() {
            Some((_, last)) => error.with_source(last),
            None => error,
        }
    }

    async fn connect(&self, era: u64, uri: &AMQPUri) -> Option<Result<Arc<Session>, PublishError>> {
        let plug = Plug::default();
        *lock(&self.connecting) = plug.clone();
        // Checked behind the plug: an `abandon` from now on pulls it.
        if self.era() != era {
            return None;
        }
        let guard = plug.guard();
        let open = Session::open(self.config.clone(), self.figures.clone(), uri.clone(), plug);
        let timeout = self.config.connect_timeout;
        let opened = tokio::time::timeout(timeout, open).await.unwrap_or_else(|_| {
            Err(PublishError::unavailable(format!(
                "no connection to rabbitmq within {timeout:?}; see the settings url and connect_timeout"
            )))
        });
        let session = match opened {
            Ok(session) => session,
            Err(error) => return (self.era() == era).then_some(Err(error)),
        };
        guard.keep();
        *lock(&self.live) = Some(session.clone());
        // From here on it is the session that pulls it, after it has said why.
        *lock(&self.connecting) = Plug::default();
        if self.era() == era {
            return Some(Ok(session));
        }
        session.abandon().await;
        None
    }

    /// Queues the messages; `None` when all have a verdict, or were abandoned.
    async fn hand_over(&self, batch: &Batch) -> Option<Arc<Session>> {
        let session = match self.session(self.era()).await? {
            Ok(session) => session,
            Err(error) => {
                batch.refuse_open(&Failure::new(
                    error::class(Answer::NoConnection),
                    error.to_string(),
                ));
                return None;
            }
        };
        if session.is_blocked() {
            batch.refuse_open(&error::failure(Answer::Blocked, "", ""));
            return None;
        }
        let mut exchanges: Vec<(&str, Result<(), Failure>)> = Vec::new();
        for message in batch.messages() {
            let exchange = wire::exchange(message, &self.config.routing);
            if !exchanges.iter().any(|(name, _)| *name == exchange) {
                exchanges.push((exchange, session.find_exchange(exchange).await));
            }
        }
        if session.is_abandoned() {
            return None;
        }
        for (index, message) in batch.messages().iter().enumerate() {
            let exchange = wire::exchange(message, &self.config.routing);
            let found = exchanges.iter().find(|(name, _)| *name == exchange);
            match found {
                Some((_, Err(failure))) => {
                    batch.refuse(index, failure.clone());
                }
                _ => session.hand_over(Letter { batch: batch.clone(), index }),
            }
        }
        Some(session)
    }

    fn era(&self) -> u64 {
        self.abandons.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Publisher for RabbitMqPublisher {
    async fn publish(&self, batch: Batch) {
        if batch.is_empty() {
            return;
        }
        let settled = async {
            if let Some(session) = self.hand_over(&batch).await {
                tokio::select! {
                    () = batch.all_settled() => {}
                    () = session.abandoned() => {}
                }
            }
        };
        // Past the deadline nothing is known: the messages stay open, and their confirms may still come.
        let _ = tokio::time::timeout(self.config.delivery_deadline, settled).await;
    }

    async fn abandon(&self) {
        // First: a session that is made from now on serves no call from before.
        self.abandons.fetch_add(1, Ordering::SeqCst);
        lock(&self.connecting).pull();
        let live = lock(&self.live).take();
        if let Some(session) = live {
            session.abandon().await;
        }
    }

    fn key_order(&self) -> KeyOrder {
        KeyOrder::Unordered
    }

    fn stats(&self) -> Vec<(&'static str, f64)> {
        let live = lock(&self.live).clone();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        vec![
            ("connections_opened", count(&self.figures.connections)),
            ("confirmed_messages", count(&self.figures.confirmed)),
            ("returned_messages", count(&self.figures.returned)),
            ("nacked_messages", count(&self.figures.nacked)),
            ("blocked", f64::from(u8::from(live.is_some_and(|session| session.is_blocked())))),
        ]
    }

    async fn check(&self) -> Result<(), PublishError> {
        match self.session(self.era()).await {
            Some(Ok(session)) if session.is_blocked() => {
                let failure = error::failure(Answer::Blocked, "", "");
                Err(PublishError::unavailable(failure.reason.to_string()))
            }
            Some(Ok(_)) => Ok(()),
            Some(Err(error)) => Err(error),
            None => Err(PublishError::unavailable(
                "the publisher was abandoned while it was connecting",
            )),
        }
    }
}

impl Drop for RabbitMqPublisher {
    fn drop(&mut self) {
        lock(&self.connecting).pull();
        if let Some(session) = lock(&self.live).take() {
            session.lose_with("the publisher was dropped before the message was confirmed, which may have been written");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic while it is locked")
}
