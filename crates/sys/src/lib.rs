//! The unsafe floor: every kernel interface ebbtide uses, behind functions that state what
//! they need. Nothing here decides anything.
//!
//! Memory calls go through `syscall(2)`, never through libc's `mmap` and its siblings: inside
//! the preload library those symbols are our own.
#![allow(clippy::missing_safety_doc)] // Each unsafe fn says "Requires:" in its first lines.

pub mod ahead;
pub mod background;
pub mod blkid;
pub mod block;
pub mod codec;
mod control_block;
pub mod executable;
pub mod fault;
pub mod futex;
pub mod heap;
pub mod kernel;
pub mod link;
pub mod loader;
pub mod memory;
pub mod memory_file;
pub mod pagemap;
pub mod peer;
pub mod probe;
pub mod proc;
pub mod program;
pub mod raw;
pub mod ring;
pub mod robust;
pub mod secret;
pub mod shm;
pub mod sigfd;
pub mod signal;
pub mod stack;
pub mod syscall_trap;
mod task;
pub mod thread;
pub mod user;

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
