//! The in-process hint: a writer in the same process tells the relay to look now.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

/// Tells a relay of the same process that there is, or will soon be, something new. Cloning shares it.
///
/// It is a hint and nothing more: the relay polls without it, only later. It costs the writer one atomic operation.
#[derive(Clone, Debug, Default)]
pub struct Hint(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    armed: Notify,
    fired: Notify,
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
        self.0.armed.notify_one();
    }

    /// Something was committed: the relay looks at once.
    pub fn fire(&self) {
        self.0.fired.notify_one();
    }

    /// Returns at the next hint. Cancel safe.
    pub(crate) async fn next(&self) -> Hinted {
        tokio::select! {
            biased;
            () = self.0.fired.notified() => Hinted::Committed,
            () = self.0.armed.notified() => Hinted::Appended,
        }
    }
}

/// What a hint tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hinted {
    Appended,
    Committed,
}
