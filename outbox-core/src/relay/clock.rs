//! The relay's own clock: it runs through suspend, so that a lease that ended while the machine slept has ended.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time since some moment before the relay started.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clock {
    /// The machine's.
    Boot,
    /// Tokio's, which tests may pause and move; counted from this instant.
    Tokio(tokio::time::Instant),
}

impl Clock {
    pub(crate) fn virtual_time() -> Self {
        Self::Tokio(tokio::time::Instant::now())
    }

    pub(crate) fn now(self) -> Duration {
        match self {
            Self::Boot => boot_time(),
            Self::Tokio(start) => start.elapsed(),
        }
    }
}

#[cfg(target_os = "linux")]
const BOOT: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const BOOT: ClockId = ClockId::Monotonic;

fn boot_time() -> Duration {
    let time = clock_gettime(BOOT);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
