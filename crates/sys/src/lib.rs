//! The unsafe floor: every kernel interface ebbtide uses, behind functions that state what
//! they need. Nothing here decides anything.
//!
//! Memory calls go through `syscall(2)`, never through libc's `mmap` and its siblings: inside
//! the preload library those symbols are our own.
#![allow(clippy::missing_safety_doc)] // Each unsafe fn says "Requires:" in its first lines.

mod io;
mod kernel;
pub mod lz4;
pub mod memory;
pub mod paging;
pub mod probe;
pub mod proc;
mod process;

pub use io::{aio, blkid, block_device, kept_fd, peer, ring, signalfd};
pub use kernel::{clock, file, futex, random, raw, signal};
pub use memory::{heap, memory_file, pagemap, secret, shm, userfaultfd};
pub use process::{credentials, daemon, elf, loader, program, robust, stack, syscall_trap};

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
