//! In debug builds: a simulation in the place of system calls that wait, and of helpers.

use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

/// The parts of a simulation that take the place of system calls.
pub struct Waits {
    /// The wait of a member until a socket is readable.
    pub until_readable: fn(BorrowedFd<'_>),
    /// The call at each news of a member.
    pub news: fn(),
    /// The helpers of members.
    pub helpers: Helpers,
}

/// Helpers of a simulation, which are no processes of the system. Each has a number.
pub struct Helpers {
    /// The number of a process's helper, by the process's own.
    pub of: fn(u32) -> u32,
    /// The question whether a helper lives.
    pub live: fn(u32) -> bool,
    /// SIGKILL.
    pub kill: fn(u32),
    /// The question whether the program of a process lives.
    pub program_lives: fn(u32) -> bool,
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

/// The helpers, in a simulation.
pub(crate) fn helpers() -> Option<&'static Helpers> {
    WAITS.get().map(|waits| &waits.helpers)
}

/// A member has news. Whether a simulation tells those who wait for them.
pub(crate) fn has_news() -> bool {
    WAITS.get().map(|waits| (waits.news)()).is_some()
}
