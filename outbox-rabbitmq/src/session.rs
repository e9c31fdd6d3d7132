//! One connection and its channels, from its making to its end.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use lapin::types::ShortString;
use lapin::uri::AMQPUri;
use lapin::{Channel, Connection};
use outbox_core::{Failure, FailureClass, Message, PublishError};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::channel::Sender;
use crate::config::RabbitMqConfig;
use crate::confirms::Letter;
use crate::error::{self, Answer};
use crate::socket::{self, Plug};
use crate::{topology, wire};

/// What was counted, over all sessions of a publisher.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) connections: AtomicU64,
    pub(crate) confirmed: AtomicU64,
    pub(crate) returned: AtomicU64,
    pub(crate) nacked: AtomicU64,
}

/// A connection with its senders. It is never made anew: what was open on it ends with it, and the next call opens another.
pub(crate) struct Session {
    pub(crate) config: Arc<RabbitMqConfig>,
    pub(crate) figures: Arc<Figures>,
    pub(crate) connection: Connection,
    plug: Plug,
    end: watch::Sender<Option<End>>,
    queues: OnceLock<Queues>,
    senders: Mutex<Vec<JoinHandle<()>>>,
    /// Spreads messages without a key.
    turn: AtomicUsize,
    /// For looking at exchanges.
    probe: tokio::sync::Mutex<Option<Channel>>,
    /// Exchanges that are there.
    known: Mutex<HashSet<String>>,
    /// Exchanges for which the broker closed a channel: theirs are sent carefully, until one is confirmed.
    suspects: Mutex<HashSet<String>>,
}

struct Queues {
    by_key: Vec<UnboundedSender<Letter>>,
    careful: UnboundedSender<Letter>,
}

/// How a session ended.
#[derive(Clone, Debug)]
enum End {
    /// What was open gets this verdict.
    Lost(Failure),
    /// What was open gets none: the relay has taken it back.
    Abandoned,
}

impl Session {
    /// Connects, declares what is to be declared, and starts the senders. Ends early when the plug is pulled.
    pub(crate) async fn open(
        config: Arc<RabbitMqConfig>,
        figures: Arc<Figures>,
        uri: AMQPUri,
        plug: Plug,
    ) -> Result<Arc<Self>, PublishError> {
        let connection = socket::connect(uri, config.tls.as_ref(), plug.clone()).await;
        let connection = connection.map_err(|error| error::connecting(&error))?;
        if !(config.exchanges.is_empty() && config.queues.is_empty()) {
            let channel = connection.create_channel().await;
            let channel = channel.map_err(|error| error::connecting(&error))?;
            topology::declare(&channel, &config.exchanges, &config.queues).await?;
        }
        figures.connections.fetch_add(1, Ordering::Relaxed);
        let session = Arc::new(Self {
            config,
            figures,
            connection,
            plug,
            end: watch::Sender::new(None),
            queues: OnceLock::new(),
            senders: Mutex::default(),
            turn: AtomicUsize::new(0),
            probe: tokio::sync::Mutex::default(),
            known: Mutex::default(),
            suspects: Mutex::default(),
        });
        session.start();
        Ok(session)
    }

    fn start(self: &Arc<Self>) {
        let start = |careful: bool| {
            let (queue, letters): (_, UnboundedReceiver<Letter>) = unbounded_channel();
            let sender = Sender::new(self.clone(), letters, careful);
            lock(&self.senders).push(tokio::spawn(sender.run()));
            queue
        };
        let by_key = (0..self.config.channels).map(|_| start(false)).collect();
        let _ = self.queues.set(Queues { by_key, careful: start(true) });
    }

    /// Queues a message: on the channel of its key, or carefully when its exchange is a suspect.
    pub(crate) fn hand_over(&self, letter: Letter) {
        let message = letter.message();
        let exchange = wire::exchange(message, &self.config.routing);
        if lock(&self.suspects).contains(exchange) {
            return self.hand_over_carefully(letter);
        }
        let queues = self.queues();
        let event = message.event();
        let number = match event.aggregate_id() {
            Some(id) => {
                let mut hasher = DefaultHasher::new();
                (event.aggregate_type(), id).hash(&mut hasher);
                hasher.finish() as usize
            }
            None => self.turn.fetch_add(1, Ordering::Relaxed),
        };
        self.push(&queues.by_key[number % queues.by_key.len()], letter);
    }

    /// Queues a message to be sent alone.
    pub(crate) fn hand_over_carefully(&self, letter: Letter) {
        self.push(&self.queues().careful, letter);
    }

    fn push(&self, queue: &UnboundedSender<Letter>, letter: Letter) {
        let Err(closed) = queue.send(letter) else { return };
        if let Some(failure) = self.verdict_on_open() {
            closed.0.batch.refuse(closed.0.index, failure);
        }
    }

    fn queues(&self) -> &Queues {
        self.queues.get().expect("the senders are started before the session is used")
    }

    /// Looks whether `exchange` is there, once for each connection.
    ///
    /// # Errors
    ///
    /// Why messages to it fail.
    pub(crate) async fn find_exchange(&self, exchange: &str) -> Result<(), Failure> {
        if exchange.is_empty() || lock(&self.known).contains(exchange) {
            return Ok(());
        }
        // What is too long for a name is found out with the message.
        let Ok(name) = ShortString::try_new(exchange) else { return Ok(()) };
        let mut probe = self.probe.lock().await;
        let channel = match probe.take().filter(|channel| channel.status().connected()) {
            Some(channel) => Ok(channel),
            None => self.connection.create_channel().await,
        };
        let found = match &channel {
            Ok(channel) => topology::look_at_exchange(channel, name).await,
            Err(error) => Err(error.clone()),
        };
        match found {
            Ok(()) => {
                *probe = channel.ok();
                lock(&self.known).insert(exchange.to_owned());
                Ok(())
            }
            Err(error) if error::is_of_a_channel(&error) && self.is_connected() => {
                Err(error::failure(Answer::ChannelClosed(&error), exchange, ""))
            }
            Err(error) => {
                self.lose(&error);
                Err(error::failure(Answer::NoConnection, exchange, &error::describe(&error)))
            }
        }
    }

    /// The broker may have lost the exchange of this message.
    pub(crate) fn forget(&self, message: &Message) {
        lock(&self.known).remove(wire::exchange(message, &self.config.routing));
    }

    /// The broker closed a channel for this message.
    pub(crate) fn suspect(&self, message: &Message, error: &lapin::Error) {
        self.forget(message);
        if error::is_about_the_exchange(error) {
            let exchange = wire::exchange(message, &self.config.routing);
            lock(&self.suspects).insert(exchange.to_owned());
        }
    }

    /// The broker took this message.
    pub(crate) fn clear(&self, message: &Message) {
        lock(&self.suspects).remove(wire::exchange(message, &self.config.routing));
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connection.status().connected()
    }

    /// Whether the broker has said that it takes nothing for now.
    pub(crate) fn is_blocked(&self) -> bool {
        self.connection.status().blocked()
    }

    /// The connection is gone.
    pub(crate) fn lose(&self, error: &lapin::Error) {
        self.lose_with(&format!(
            "it was lost before the message was confirmed, which may have been written: {}",
            error::describe(error)
        ));
    }

    pub(crate) fn lose_with(&self, text: &str) {
        self.finish(End::Lost(error::failure(Answer::NoConnection, "", text)));
        self.plug.pull();
    }

    /// Ends the session. Once this has returned nothing of it is sent any more.
    pub(crate) async fn abandon(&self) {
        self.finish(End::Abandoned);
        self.plug.pull();
        let senders = std::mem::take(&mut *lock(&self.senders));
        for sender in senders {
            let _ = sender.await;
        }
    }

    fn finish(&self, end: End) {
        self.end.send_if_modified(|ended| {
            let first = ended.is_none();
            if first {
                *ended = Some(end);
            }
            first
        });
    }

    pub(crate) fn is_over(&self) -> bool {
        self.end.borrow().is_some()
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        matches!(&*self.end.borrow(), Some(End::Abandoned))
    }

    /// Returns when the session is over. Cancel safe.
    pub(crate) async fn ended(&self) {
        let _ = self.end.subscribe().wait_for(Option::is_some).await;
    }

    /// Returns when the session was abandoned. Cancel safe.
    pub(crate) async fn abandoned(&self) {
        let _ = self.end.subscribe().wait_for(|end| matches!(end, Some(End::Abandoned))).await;
    }

    /// The verdict on what is open when the session is over.
    pub(crate) fn verdict_on_open(&self) -> Option<Failure> {
        match &*self.end.borrow() {
            Some(End::Lost(failure)) => Some(failure.clone()),
            Some(End::Abandoned) => None,
            None => Some(Failure::new(FailureClass::Unavailable, "the runtime is shutting down")),
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("connected", &self.is_connected())
            .field("end", &*self.end.borrow())
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic while it is locked")
}
