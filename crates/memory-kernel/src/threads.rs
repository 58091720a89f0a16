//! The interface to who runs threads: [`Threads`].

use crate::frames::Sharers;
use ebb_sys::Errno;
use ebb_sys::paging::{Entry, Time};
use ebb_sys::program::Gone;
use ebb_sys::thread::Urgency;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// A call of the pager's, or a step of a program, before which other threads may run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Call {
    ReadFaults,
    HasFaults,
    Register,
    Unregister,
    Copy,
    Move,
    Protect,
    IsRegistered,
    Wake,
    Poison,
    Look,
    Scan,
    Shared,
    ReadMemory,
    Mmap,
    Munmap,
    Mremap,
    Mprotect,
    Madvise,
    Brk,
    Mlock,
    Munlock,
    DropPages,
    GiveBack,
    WriteMemory,
    Touch,
}

/// What may go wrong with a call, or be otherwise than usual.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Disturbance {
    /// It is done in part, and says EAGAIN.
    Partial,
    /// It is not done at all, and says EAGAIN.
    Again,
    /// The page is in use for a moment: EBUSY.
    Busy,
    /// The system has no page: ENOMEM.
    NoPage,
    /// The process may have no more mappings: ENOMEM.
    NoMapping,
    /// Faults come in another order than they happened, and not all at once.
    Order,
}

/// An event that a thread waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A fault can be read.
    Fault,
    /// The thread of this number may try its page again.
    Page(u32),
}

/// Threads, time and chance, as the kernel in memory needs them. All calls are about the calling thread's process.
pub trait Threads: Sync + Sized + 'static {
    /// The time now.
    fn now(&self) -> Time;
    /// Lets so much time pass.
    fn sleep(&self, time: Duration);
    /// See [`Kernel::wait_word`](ebb_sys::paging::Kernel::wait_word).
    fn wait_word(&self, word: &AtomicU32, seen: u32, timeout: Option<Duration>);
    /// Wakes so many who wait for `word`.
    fn wake_word(&self, word: &AtomicU32, count: i32);
    /// See [`Kernel::wait_for_news`](ebb_sys::paging::Kernel::wait_for_news).
    fn wait_for_news(&self, seen: u32, timeout: Duration, wait: impl FnMut(Duration) -> u32)
    -> u32;
    /// Waits for an event, or so long; whether it came.
    fn wait_event(&self, event: Event, timeout: Option<Duration>) -> bool;
    /// An event happened.
    fn notify(&self, event: Event);
    /// Other threads may run now; `about` says what the call is about, for the trace.
    fn switch(&self, _call: Call, _about: [u64; 2]) {}
    /// Says what came of the call, for the trace.
    fn answered(&self, _call: Call, _answer: u64) {}
    /// Whether this happens to the call.
    fn strikes(&self, _disturbance: Disturbance, _call: Call) -> bool {
        false
    }
    /// A number below `limit`, which is not 0.
    fn below(&self, _limit: usize) -> usize {
        0
    }
    /// Whether threads that populate memory can wait for its pages.
    fn can_wait(&self) -> bool;

    /// The calling thread's number.
    fn thread(&self) -> u32;
    /// The calling process's number.
    fn process(&self) -> u32;
    /// Whether the calling thread is one of the pager's.
    fn is_own_thread(&self) -> bool;
    /// The calling thread has no signals from now on, as long as it is on a stack of the pager's, or has them again.
    fn masks_signals(&self, _masks: bool) {}
    /// The processor of the calling thread.
    fn cpu(&self) -> usize;
    /// The processor on which a thread of the program last ran.
    fn cpu_of(&self, thread: u32) -> Option<usize>;
    /// Processors.
    fn processors(&self) -> usize;
    /// Starts a thread of the pager's; its number.
    fn spawn(&self, entry: Entry, index: usize) -> Result<u32, Errno>;
    /// Sets how a thread competes for its processor; whether that is permitted.
    fn set_urgency(&self, thread: u32, urgency: Urgency) -> bool;
    /// Ends the calling thread of the pager's.
    fn end_thread(&self) -> !;
    /// Starts the helper's first thread.
    fn start_helper(&self, entry: Entry) -> Result<(), Errno>;
    /// Whether the helper lives.
    fn helper_lives(&self) -> bool {
        true
    }
    /// Ends the helper.
    fn end_helper(&self) -> !;
    /// Whether the program is gone.
    fn program_is_gone(&self) -> Option<Gone> {
        None
    }
    /// Ends the program.
    fn kill_program(&self);
    /// Ends the program, of which the calling thread is.
    fn die(&self) -> !;
    /// A line for standard error.
    fn say(&self, line: &[u8]);
    /// Where pages are counted that several host processes map, if there are several.
    fn sharers(&self) -> Option<Sharers> {
        None
    }
}
