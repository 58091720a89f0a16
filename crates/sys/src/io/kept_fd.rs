//! A descriptor kept by number for the life of the descriptor table it was opened in.
//!
//! The threads that serve a managed process have a descriptor table of their own, which the program cannot
//! see. After a fork the child has a copy of our memory, but not of that table. So ownership of such a
//! descriptor is not ownership of an object in memory: a drop in the child would close a descriptor of the
//! program. A [`KeptFd`] never closes: the kernel does when the table goes, at exit or exec.

use crate::Errno;
use crate::kernel::{clock, raw};
use std::ffi::c_long;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::time::Duration;

/// The number of a descriptor that the kernel will close. Use it only on threads that share
/// the table in which it was set; elsewhere the calls fail or reach something else.
#[derive(Debug)]
pub struct KeptFd(AtomicI32);

impl Default for KeptFd {
    fn default() -> Self {
        Self(AtomicI32::new(-1))
    }
}

impl KeptFd {
    /// Takes over `fd`, for good. An older one is forgotten, not closed.
    pub fn keep(&self, fd: OwnedFd) {
        self.0.store(fd.into_raw_fd(), Relaxed);
    }

    /// Forgets the number, in a forked child whose table is another.
    pub fn forget(&self) {
        self.0.store(-1, Relaxed);
    }

    /// The descriptor, for the calls that this type has not; none if there is none.
    pub fn get(&self) -> Option<BorrowedFd<'_>> {
        let fd = self.0.load(Relaxed);
        // SAFETY: not -1. It is open, for nothing closes it but the end of its table; on a
        // thread with another table the calls fail or reach something else, as documented.
        (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Sends one packet without waiting and without SIGPIPE. Whether it went.
    pub fn send(&self, packet: &[u8]) -> bool {
        self.try_send(packet).is_ok()
    }

    /// The same, of words that must not be lost: asks again for a second where the system has no memory for the packet.
    pub fn send_for_certain(&self, packet: &[u8]) {
        /// How often it asks again, and how long it sleeps before.
        const TRIES: u32 = 100;
        const STEP: Duration = Duration::from_millis(10);
        for _ in 0..TRIES {
            match self.try_send(packet) {
                Err(Errno(libc::ENOMEM | libc::ENOBUFS)) => clock::sleep(STEP),
                _ => return,
            }
        }
    }

    fn try_send(&self, packet: &[u8]) -> Result<(), Errno> {
        let fd = self.0.load(Relaxed);
        if fd < 0 {
            return Err(Errno(libc::EBADF));
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let (at, len) = (packet.as_ptr() as c_long, packet.len() as c_long);
        let args = [fd.into(), at, len, flags.into(), 0, 0];
        // SAFETY: reads `packet` and touches no other memory, whatever `fd` is.
        unsafe { raw::checked(libc::SYS_sendto, args) }.map(drop)
    }
}
