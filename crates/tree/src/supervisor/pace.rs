//! How often the supervisor does what it does again and again.

use std::time::Duration;

/// The least time from tick to tick.
pub(super) const FASTEST: Duration = Duration::from_millis(2);
/// The same in a tree that pages, where nothing that is measured has changed for [`QUIET_TICKS`].
pub(super) const QUIET: Duration = Duration::from_millis(8);
/// Ticks without a change.
pub(super) const QUIET_TICKS: u32 = 50;
/// The most.
pub(super) const SLOWEST: Duration = Duration::from_millis(50);

/// Processor time of this thread.
pub(super) fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
