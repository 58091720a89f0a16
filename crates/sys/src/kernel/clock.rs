//! Clocks of the kernel.

use crate::kernel::raw;
use rustix::thread::NanosleepRelativeResult;
use rustix::time::Timespec;
use std::time::Duration;

/// In debug builds, the clock of a simulation in the place of CLOCK_MONOTONIC.
#[cfg(debug_assertions)]
static SIMULATED: std::sync::OnceLock<fn() -> u64> = std::sync::OnceLock::new();

/// The clock of this process is a simulation's from now on.
#[cfg(debug_assertions)]
pub fn simulate(monotonic_ns: fn() -> u64) {
    SIMULATED.get_or_init(|| monotonic_ns);
}

/// CLOCK_MONOTONIC, in nanoseconds.
pub fn monotonic_ns() -> u64 {
    #[cfg(debug_assertions)]
    if let Some(simulated) = SIMULATED.get() {
        return simulated();
    }
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Sleeps so long, whatever signals come. Not by the standard library's function, under which is libc's: a point
/// of cancellation for threads of the program.
pub fn sleep(time: Duration) {
    let mut left = Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    };
    while let NanosleepRelativeResult::Interrupted(rest) = rustix::thread::nanosleep(&left) {
        left = rest;
    }
}

/// Time since boot, as `/proc/PID/stat` has it for the start of a process: in hundredths of a second
/// (USER_HZ), cut.
pub fn ticks() -> u64 {
    const USER_HZ: u64 = 100;
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * USER_HZ + now.tv_nsec as u64 / (1_000_000_000 / USER_HZ)
}

/// Processor time that the calling thread has used.
pub fn of_thread() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Processor time that the threads of a process have used; none if it has ended.
pub fn of_process(pid: u32) -> Option<Duration> {
    /// The clock of a process's scheduled time (`CPUCLOCK_SCHED`), beside the number in the upper bits.
    const SCHEDULED: i64 = 2;
    let clock = !i64::from(pid) << 3 | SCHEDULED;
    let mut time = [0i64; 2];
    let args = [clock, time.as_mut_ptr() as libc::c_long, 0, 0, 0, 0];
    // SAFETY: the kernel writes two words of ours, a `timespec`.
    unsafe { raw::checked(libc::SYS_clock_gettime, args).ok()? };
    Some(Duration::new(time[0] as u64, time[1] as u32))
}
