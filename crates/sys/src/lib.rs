//! The unsafe floor: every kernel interface that Ebbtide uses, behind functions that state their
//! requirements. Nothing here decides anything.
//!
//! Memory calls go through the system call itself, never through libc's `mmap` and its siblings: inside
//! the preload library those symbols are our own.
//!
//! # Rooms, each using only those under it
//! ```text
//! probe    what this kernel lets this process do
//! process  programs, their threads and stacks, tasks of our own, credentials, executables
//! io       devices, sockets and signals as descriptors; asynchronous reads
//! memory   maps, the internal heap, keys, shared memory, page maps, userfaultfd
//! proc     `/proc`: processes, this one, pidfds
//! kernel   raw calls, futexes, signals, clocks, random numbers, the registry of our own tasks
//! ```
//!
//! # State of the process
//! State is a field of its owner wherever there is one. These statics stay, one a part, because a signal
//! handler, the kernel, libc or a bare stack pointer has to find them, or because a forked child goes on
//! with its copy before anything can be allocated:
//!
//! | static | why it is one for the process |
//! |---|---|
//! | `kernel::tasks::REGISTRY` | a task knows itself from its stack pointer alone, in `malloc` too |
//! | `process::task::LAUNCH` | a new task has nothing but its number to find its order by |
//! | `process::credentials::CHANGES` | any thread of the program changes users for all tasks |
//! | `process::program::PROGRAM` | the kernel clears its word when the first thread ends |
//! | `process::program::OWN_PAGE` | the kernel empties it in a forked child, and it costs no mapping |
//! | `process::end_watch::HAD_ENDED` | a signal handler has no other owner |
//! | `process::elf::LOADER` | a child of `vfork` asks, which has no value of ours |
//! | `process::inherited::IGNORES_PIPE`, `LACKS_STREAM`, `NOTE` | Rust's runtime changes it before there is a value |
//! | `process::stack::STACK_SET` | a thread knows its stack from its stack pointer alone |
//! | `process::syscall_trap::TRAP` | a signal handler finds it by its symbol; the kernel reads its selector |
//! | `proc::file::DIRECTORY` | descriptors belong to the table that all our tasks share |
//! | `memory::own::OWN` | the global allocator, which has no value, maps by it |
//! | `memory::heap::ARENA` | the state of the global allocator, which has no value |
//! | `io::aio_context::WATCHERS` | what the system says of the process's threads is corrected by it |
//! | `memory::secret::LOCKED` | memory calls of the program lock the keys' area again, and wait for nobody |
//! | `memory::secret::AREA_STATE` | keys of all devices lie in one locked area, relocked after a fork |
//! | `kernel::clock::SIMULATED` | in debug builds: a clock is read without a handle, and a simulation has its own |
//! | `process::robust::SIMULATED` | in debug builds: simulated threads are none whose locks the kernel knows |
//! | `proc::process::SIMULATED` | in debug builds: a simulated exec is none of a process of the system |
#![allow(clippy::missing_safety_doc)] // Each unsafe fn says "Requires:" in its first lines.

mod io;
mod kernel;
pub mod lz4;
pub mod memory;
pub mod paging;
pub mod probe;
pub mod proc;
mod process;
pub mod system_kernel;

pub use io::{aio, batch_reads, blkid, block_device, interruption, kept_fd, peer, signalfd};
pub use kernel::{clock, file, futex, random, raw, signal};
pub use memory::{futex_lock, heap, memory_file, pagemap, secret, shm, userfaultfd};
pub use process::{
    credentials, daemon, descriptors, elf, inherited, loader, program, robust, stack, syscall_trap,
};

/// Threads, tasks of our own among them.
pub mod thread {
    pub use crate::kernel::tasks::{HELPER, has_our_descriptors, helper_lives, is_ours};
    pub use crate::process::cpu::*;
    pub use crate::process::schedule::*;
    pub use crate::process::task::*;
    pub use crate::process::thread::*;
}

/// An error number of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

impl Errno {
    /// The calling thread's last error.
    pub fn last() -> Self {
        // SAFETY: errno is a thread-local of libc, always readable.
        Self(unsafe { *libc::__errno_location() })
    }

    /// `Ok` if a system call succeeded, or the error it left.
    pub fn check(result: libc::c_long) -> Result<(), Errno> {
        Self::of(result).map(|_| ())
    }

    /// `Ok` with a system call's result, or the error it left.
    pub(crate) fn of(result: libc::c_long) -> Result<usize, Errno> {
        if result < 0 {
            Err(Self::last())
        } else {
            Ok(result as usize)
        }
    }
}

impl From<Errno> for rustix::io::Errno {
    fn from(errno: Errno) -> Self {
        Self::from_raw_os_error(errno.0)
    }
}

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for Errno {}

impl From<Errno> for std::io::Error {
    fn from(errno: Errno) -> Self {
        Self::from_raw_os_error(errno.0)
    }
}
