//! A helper ends with its program, whatever its tasks wait for.
//!
//! The program may be killed at any instruction: within a memory call, or as it forks. Then a thread that is no more has
//! the pager's lock, or the heap's, and a task of ours that wants it waits for ever. The supervisor and the guard end such
//! helpers while they live, and as far as they know them. They know none that has not joined, and no child's that cannot
//! reach them.
//!
//! So a timer interrupts the helper's first task every [`PERIOD`], whatever it does. When it finds the second time that the
//! program has ended, the helper ends. That is done in a signal handler: no lock, no memory. The helper has actions of
//! its own (it was made without CLONE_SIGHAND), and blocks all other signals.
//!
//! The handler has a stack of its own, which is in memory from the beginning. The kernel writes there as the signal
//! comes, and would end the helper if a memory cgroup refused the page for it.
//!
//! Not here: a program that has become another one; its helper ends with that.

use super::{program, task};
use crate::kernel::signal::{self, Action};
use crate::memory::PAGE;
use crate::{proc, raw};
use libc::{c_int, c_long};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// How often the task looks, in seconds.
const PERIOD: i64 = 5;
const SIGNAL: c_int = libc::SIGALRM;

/// Bytes of the handler's stack: what the kernel saves of the processor, 4 KiB at most where no tiles are used, and the
/// handler's own.
const STACK: usize = 2 * PAGE;

/// Flag: the last look found that the program had ended. One for the helper, as its handler has no other owner.
static HAD_ENDED: AtomicBool = AtomicBool::new(false);

/// On the helper's first task, which watches the program: looks from now on. Where the system has no timer the helper
/// may stay for longer than its program.
pub fn begin() {
    /// The time of the system's clock that no setting changes.
    const CLOCK: c_long = libc::CLOCK_MONOTONIC as c_long;
    HAD_ENDED.store(false, Relaxed);
    let flags = libc::SA_RESTART | libc::SA_ONSTACK;
    let action = Action::new(look as *const () as usize, flags, u64::MAX);
    // SAFETY: all zeros is one.
    let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
    event.sigev_notify = libc::SIGEV_THREAD_ID;
    event.sigev_signo = SIGNAL;
    // SAFETY: structures of the kernel's layout; the handler is one, and needs little of the task's stack.
    unsafe {
        event.sigev_notify_thread_id = raw::call(libc::SYS_gettid, [0; 6]) as c_int;
        let mut timer: c_int = 0;
        let args = [
            CLOCK,
            (&raw const event) as c_long,
            (&raw mut timer) as c_long,
            0,
            0,
            0,
        ];
        if raw::call(libc::SYS_timer_create, args) != 0 {
            return;
        }
        take_stack();
        signal::set_action(SIGNAL, Some(&action));
        signal::open(SIGNAL);
        let often = libc::timespec {
            tv_sec: PERIOD,
            tv_nsec: 0,
        };
        let when = libc::itimerspec {
            it_interval: often,
            it_value: often,
        };
        let args = [timer.into(), 0, (&raw const when) as c_long, 0, 0, 0];
        raw::call(libc::SYS_timer_settime, args);
    }
}

/// Gives the handler its stack: that of the go-between, which has no more to run than its end. Where the kernel takes no
/// stack of this size, as for a program that uses tiles, the handler runs on the task's.
fn take_stack() {
    let start = task::spare_stack_end() - STACK;
    for page in (start..start + STACK).step_by(PAGE) {
        // SAFETY: memory of ours; of the lowest byte of a page the go-between has nothing.
        unsafe { (page as *mut u8).write_volatile(0) };
    }
    // SAFETY: all zeros is one.
    let mut stack: libc::stack_t = unsafe { std::mem::zeroed() };
    stack.ss_sp = start as *mut _;
    stack.ss_size = STACK;
    let args = [(&raw const stack) as c_long, 0, 0, 0, 0, 0];
    // SAFETY: a structure of the kernel's layout, of memory that stays.
    unsafe { raw::call(libc::SYS_sigaltstack, args) };
}

extern "C" fn look(_: c_int) {
    let ended = program::pidfd().is_some_and(proc::has_ended);
    if HAD_ENDED.swap(ended, Relaxed) && ended {
        task::end_helper();
    }
}
