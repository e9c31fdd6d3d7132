//! One channel of the connection: sends within its window, takes in confirms and returns.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{Channel, Confirmation};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::confirms::{Confirms, Letter};
use crate::error::{self, Answer};
use crate::session::Session;
use crate::wire;

/// Sends what is in its queue, until its session ends.
///
/// When the broker closes the channel, it says for which reason and not for which message, and the confirms that were on
/// their way are lost with it. So all its open messages go to the *careful* sender of the session, which has one message open
/// at a time: what fails there alone is to blame, and the others are not hurt. Those that the broker had taken
/// already come twice.
pub(crate) struct Sender {
    pub(crate) session: Arc<Session>,
    pub(crate) queue: UnboundedReceiver<Letter>,
    pub(crate) careful: bool,
    channel: Option<Channel>,
    /// Messages that are sent and have no answer.
    open: HashMap<u64, Letter>,
    open_bytes: usize,
    next_id: u64,
    flying: FuturesUnordered<Flight>,
    confirms: Confirms,
    /// Why the channel is gone; its other messages are still to say so.
    closed: Option<lapin::Error>,
    /// Open when the channel went.
    orphans: Vec<Letter>,
}

type Flight = Pin<Box<dyn Future<Output = (u64, lapin::Result<Confirmation>)> + Send>>;

impl Sender {
    pub(crate) fn new(
        session: Arc<Session>,
        queue: UnboundedReceiver<Letter>,
        careful: bool,
    ) -> Self {
        Self {
            session,
            queue,
            careful,
            channel: None,
            open: HashMap::new(),
            open_bytes: 0,
            next_id: 0,
            flying: FuturesUnordered::new(),
            confirms: Confirms::default(),
            closed: None,
            orphans: Vec::new(),
        }
    }

    /// Runs until the session ends.
    pub(crate) async fn run(mut self) {
        let session = self.session.clone();
        tokio::select! {
            biased;
            () = session.ended() => {}
            () = self.work() => {}
        }
        self.end();
    }

    /// Returns when the connection is gone.
    async fn work(&mut self) {
        loop {
            self.look();
            if self.confirms.wants_a_look() {
                continue;
            }
            if self.closed.is_some() && self.flying.is_empty() {
                self.leave_channel();
            }
            if self.session.is_over() {
                return;
            }
            tokio::select! {
                Some((id, answer)) = self.flying.next(), if !self.flying.is_empty() => {
                    self.take_in(id, answer);
                }
                Some(letter) = self.queue.recv(), if self.has_room() => {
                    if self.send(letter).await.is_none() {
                        return;
                    }
                }
                else => return,
            }
        }
    }

    fn has_room(&self) -> bool {
        let config = &self.session.config;
        let (window, bytes) = if self.careful {
            (1, usize::MAX)
        } else {
            (config.window, config.window_bytes / usize::from(config.channels))
        };
        // What is held is decided when all open messages are confirmed: none may be added.
        let settling = self.closed.is_some() || self.confirms.holds();
        !settling && (self.open.is_empty() || self.open.len() < window && self.open_bytes < bytes)
    }

    /// Hands a message to lapin; `None` when the connection is gone.
    async fn send(&mut self, letter: Letter) -> Option<()> {
        let envelope = match wire::envelope(letter.message(), &self.session.config) {
            Ok(envelope) => envelope,
            Err(failure) => {
                letter.batch.refuse(letter.index, failure);
                return Some(());
            }
        };
        let id = self.next_id;
        self.next_id += 1;
        self.open_bytes += bytes(&letter);
        self.open.insert(id, letter.clone());
        let channel = self.channel().await?;
        self.flying.push(Box::pin(async move {
            let options = BasicPublishOptions { mandatory: true, ..Default::default() };
            let payload = letter.message().payload().unwrap_or_default();
            let wire::Envelope { exchange, routing_key, properties } = envelope;
            let sent = channel.basic_publish(exchange, routing_key, options, payload, properties);
            let answer = match sent.await {
                Ok(confirm) => confirm.await,
                Err(error) => Err(error),
            };
            (id, answer)
        }));
        Some(())
    }

    async fn channel(&mut self) -> Option<Channel> {
        if let Some(channel) = self.channel.as_ref().filter(|channel| channel.status().connected())
        {
            return Some(channel.clone());
        }
        let open = async {
            let channel = self.session.connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            Ok(channel)
        };
        match open.await {
            Ok(channel) => {
                self.channel = Some(channel.clone());
                Some(channel)
            }
            Err(error) => {
                self.session.lose(&error);
                None
            }
        }
    }

    /// Takes in whatever has been answered by now, and decides what is decided by that.
    fn look(&mut self) {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let mut context = Context::from_waker(&waker);
        loop {
            match self.flying.poll_next_unpin(&mut context) {
                Poll::Ready(Some((id, answer))) => self.take_in(id, answer),
                Poll::Ready(None) => break,
                // It may return early, to let others run; then it has woken us.
                Poll::Pending if woken.0.swap(false, Ordering::SeqCst) => {}
                Poll::Pending => break,
            }
        }
        let none_open = self.flying.is_empty() && self.closed.is_none();
        for (letter, returned) in self.confirms.end_look(none_open) {
            let Some(text) = returned else {
                self.session.figures.confirmed.fetch_add(1, Ordering::Relaxed);
                letter.batch.confirm(letter.index);
                if self.careful {
                    self.session.clear(letter.message());
                }
                continue;
            };
            self.session.figures.returned.fetch_add(1, Ordering::Relaxed);
            let answer = Answer::Returned(self.session.config.unroutable);
            self.refuse(&letter, answer, &text);
        }
    }

    fn take_in(&mut self, id: u64, answer: lapin::Result<Confirmation>) {
        let letter = self.open.remove(&id).expect("each open message is answered once");
        self.open_bytes -= bytes(&letter);
        match answer {
            Ok(Confirmation::Ack(returned)) => self.confirms.take_in(letter, returned),
            Ok(Confirmation::Nack(returned)) => {
                if let Some(returned) = returned {
                    self.confirms.take_in_return(&returned);
                }
                self.session.figures.nacked.fetch_add(1, Ordering::Relaxed);
                self.refuse(&letter, Answer::Nacked, "");
            }
            Ok(Confirmation::NotRequested) => {
                unreachable!("confirms are selected before a channel is used")
            }
            Err(error) => {
                if !(error::is_of_a_channel(&error) && self.session.is_connected()) {
                    self.session.lose(&error);
                }
                self.orphans.push(letter);
                // The first error has the broker's reason; those behind it only say that the channel is closed.
                self.closed.get_or_insert(error);
            }
        }
    }

    /// Finds out which message the channel was closed for.
    fn leave_channel(&mut self) {
        let Some(error) = self.closed.take() else { return };
        self.channel = None;
        self.orphans.append(&mut self.confirms.give_up());
        if self.session.is_over() {
            return;
        }
        for letter in std::mem::take(&mut self.orphans) {
            if self.careful {
                self.session.suspect(letter.message(), &error);
                self.refuse(&letter, Answer::ChannelClosed(&error), "");
            } else {
                self.session.forget(letter.message());
                self.session.hand_over_carefully(letter);
            }
        }
    }

    fn refuse(&self, letter: &Letter, answer: Answer<'_>, text: &str) {
        let destination = letter.message().destination();
        letter.batch.refuse(letter.index, error::failure(answer, destination, text));
    }

    /// The session has ended: confirms that have arrived count, and the rest gets the session's verdict, or none.
    fn end(mut self) {
        self.queue.close();
        self.look();
        self.look();
        let Some(failure) = self.session.verdict_on_open() else { return };
        let mut rest: Vec<Letter> = self.open.drain().map(|(_, letter)| letter).collect();
        rest.append(&mut self.orphans);
        rest.append(&mut self.confirms.give_up());
        while let Ok(letter) = self.queue.try_recv() {
            rest.push(letter);
        }
        for letter in rest {
            letter.batch.refuse(letter.index, failure.clone());
        }
    }
}

fn bytes(letter: &Letter) -> usize {
    letter.message().payload().map_or(0, <[u8]>::len)
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}
