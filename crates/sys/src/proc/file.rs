//! Small files of `/proc`, opened by a path on the stack and read into a buffer of the caller's.

use crate::kernel::file::{Descriptor, read_up_to};
use crate::kernel::tasks;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::CStr;
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};

/// A path under `/proc`, built on the stack.
pub struct Path {
    bytes: [u8; 64],
    len: usize,
}

impl Path {
    /// The path that `parts` spell.
    pub fn new(parts: std::fmt::Arguments<'_>) -> Self {
        let mut path = Self {
            bytes: [0; 64],
            len: 0,
        };
        let mut room = &mut path.bytes[..63];
        let before = room.len();
        // The longest path has two 10-digit numbers: it always fits.
        let _ = room.write_fmt(parts);
        path.len = before - room.len();
        path
    }

    /// Where it leads, as a link; cut where that is longer than `into`.
    pub fn read_link<'a>(&self, into: &'a mut [MaybeUninit<u8>]) -> Result<&'a [u8], Errno> {
        let path = CStr::from_bytes_until_nul(&self.bytes).map_err(|_| Errno::INVAL)?;
        let (link, _) = rustix::fs::readlinkat_raw(rustix::fs::CWD, path, into)?;
        Ok(link)
    }

    /// Opens it.
    pub fn open(&self, flags: OFlags) -> Result<Descriptor, Errno> {
        open(&self.bytes[..self.len], flags)
    }
}

/// Descriptors of `/proc` itself.
struct Directory {
    /// The directory for tasks of ours; below 0: there is none.
    own: AtomicI32,
    /// The number that its parent's helper had, in a forked child.
    inherited: AtomicI32,
}

/// One for the process: tasks of ours have one table of descriptors.
static DIRECTORY: Directory = Directory {
    own: AtomicI32::new(-1),
    inherited: AtomicI32::new(-1),
};

/// On a helper's first task: finds `/proc`, once for all tasks of ours. A forked child whose root directory
/// has none (`chroot`) takes its parent's, from `parent`, the helper of that, where it may.
pub fn find_directory(parent: Option<u32>) {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // Not an empty directory of that name.
    let own = rustix::fs::open(c"/proc/self", flags, Mode::empty())
        .and_then(|_| rustix::fs::open(c"/proc", flags, Mode::empty()));
    if let Some(found) = own.ok().or_else(|| of_parent(parent?).ok()) {
        DIRECTORY.own.store(found.into_raw_fd(), SeqCst);
    }
}

fn of_parent(helper: u32) -> Result<OwnedFd, Errno> {
    use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
    let helper = Pid::from_raw(helper as i32).ok_or(Errno::SRCH)?;
    let helper = pidfd_open(helper, PidfdFlags::empty())?;
    pidfd_getfd(
        helper,
        DIRECTORY.inherited.load(SeqCst),
        PidfdGetfdFlags::empty(),
    )
}

/// In a forked child: its helper has none yet.
pub fn forget_directory() {
    let before = DIRECTORY.own.swap(-1, SeqCst);
    DIRECTORY.inherited.store(before, SeqCst);
}

/// Opens what is at a path that begins with `/proc/`.
pub fn open(path: &[u8], flags: OFlags) -> Result<Descriptor, Errno> {
    let (flags, mode) = (flags | OFlags::CLOEXEC, Mode::empty());
    let directory = DIRECTORY.own.load(SeqCst);
    let opened = match path.strip_prefix(b"/proc/") {
        Some(inside) if directory >= 0 && tasks::is_ours() => {
            // SAFETY: tasks of ours alone have it, and keep it open.
            let directory = unsafe { BorrowedFd::borrow_raw(directory) };
            rustix::fs::openat(directory, inside, flags, mode)
        }
        _ => rustix::fs::open(path, flags, mode),
    };
    opened.map(Descriptor::from)
}

/// Reads a whole small file from its start; a longer one is cut.
pub fn read(fd: impl AsFd, buf: &mut [u8]) -> Result<&[u8], Errno> {
    let len = read_up_to(fd, buf, 0)?;
    Ok(&buf[..len])
}

/// A decimal number; none if another character is in it.
pub fn number(field: &[u8]) -> Option<u64> {
    if field.is_empty() {
        return None;
    }
    field.iter().try_fold(0u64, |n, &b| {
        b.is_ascii_digit()
            .then(|| n.wrapping_mul(10).wrapping_add((b - b'0') as u64))
    })
}
