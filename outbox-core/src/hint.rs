//! The in-process hint: a writer in the same process tells the relay to look now.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// Tells the relays of the same process that there is, or will soon be, something new. Cloning shares it; every relay that
/// listens hears of it.
///
/// It is a hint and nothing more: the relay polls without it, only later. It costs the writer a lock that nobody holds for
/// longer than an addition.
#[derive(Clone, Debug, Default)]
pub struct Hint(Arc<watch::Sender<Hints>>);

/// How often what was told.
#[derive(Clone, Copy, Debug, Default)]
struct Hints {
    armed: u64,
    fired: u64,
}

impl Hint {
    /// How long a relay polls fast after a hint was armed.
    pub const ARMED_FOR: Duration = Duration::from_millis(50);

    /// A hint that nobody listens to yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Something was appended and will be committed soon: the relay polls fast for [`Hint::ARMED_FOR`].
    pub fn arm(&self) {
        self.0.send_modify(|hints| hints.armed = hints.armed.wrapping_add(1));
    }

    /// Something was committed: the relay looks at once.
    pub fn fire(&self) {
        self.0.send_modify(|hints| hints.fired = hints.fired.wrapping_add(1));
    }

    /// Hears every hint from now on.
    pub(crate) fn listen(&self) -> Listener {
        let hints = self.0.subscribe();
        let fired = hints.borrow().fired;
        Listener { _sender: self.0.clone(), hints, fired }
    }
}

/// One relay's ear.
#[derive(Debug)]
pub(crate) struct Listener {
    /// A hint that no writer has is silent, not closed.
    _sender: Arc<watch::Sender<Hints>>,
    hints: watch::Receiver<Hints>,
    /// Commits that it has heard of.
    fired: u64,
}

impl Listener {
    /// Returns at the next hint; of several that came in the meantime it tells once. Cancel safe.
    pub(crate) async fn next(&mut self) -> Hinted {
        self.hints.changed().await.expect("the listener itself holds the sender");
        let fired = self.hints.borrow_and_update().fired;
        if std::mem::replace(&mut self.fired, fired) == fired {
            Hinted::Appended
        } else {
            Hinted::Committed
        }
    }
}

/// What a hint tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hinted {
    Appended,
    Committed,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two pipelines of one process, each over its own types, share the hint of one writer.
    #[tokio::test(start_paused = true)]
    async fn every_listener_hears_every_hint() {
        let hint = Hint::new();
        let mut listeners = [hint.listen(), hint.listen()];
        for hinted in [Hinted::Committed, Hinted::Appended] {
            match hinted {
                Hinted::Committed => hint.fire(),
                Hinted::Appended => hint.arm(),
            }
            for listener in &mut listeners {
                let heard = tokio::time::timeout(Duration::from_secs(1), listener.next()).await;
                assert_eq!(heard, Ok(hinted));
            }
        }
        for listener in &mut listeners {
            let heard = tokio::time::timeout(Duration::from_secs(1), listener.next()).await;
            assert!(heard.is_err(), "once each");
        }
    }
}
