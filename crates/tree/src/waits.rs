//! In debug builds: the waits of a simulation, in the place of system calls that wait.

use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

/// The parts of a simulation that take the place of system calls.
pub struct Waits {
    /// The wait of a member until a socket is readable.
    pub until_readable: fn(BorrowedFd<'_>),
    /// The call at each news of a member.
    pub news: fn(),
}

static WAITS: OnceLock<Waits> = OnceLock::new();

/// From now on members wait so.
pub fn begin(waits: Waits) {
    WAITS.get_or_init(|| waits);
}

/// Before a member receives.
pub(crate) fn wait_until_readable(socket: BorrowedFd<'_>) {
    if let Some(waits) = WAITS.get() {
        (waits.until_readable)(socket);
    }
}

/// A member has news. Whether a simulation tells those who wait for them.
pub(crate) fn has_news() -> bool {
    WAITS.get().map(|waits| (waits.news)()).is_some()
}
