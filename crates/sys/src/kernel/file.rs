//! Descriptors and reads without libc, whose `close`, `read` and `write` are points of cancellation: a thread of the
//! program that is to be cancelled would end there, in the midst of an allocation or a fork.

use super::raw;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::ffi::c_long;
use std::mem::ManuallyDrop;

/// A descriptor that a thread of the program may drop.
#[derive(Debug)]
pub struct Descriptor(ManuallyDrop<OwnedFd>);

impl From<OwnedFd> for Descriptor {
    fn from(fd: OwnedFd) -> Self {
        Self(ManuallyDrop::new(fd))
    }
}

impl From<Descriptor> for OwnedFd {
    fn from(descriptor: Descriptor) -> Self {
        let mut kept = ManuallyDrop::new(descriptor);
        // SAFETY: taken once, and what it was taken from is never dropped.
        unsafe { ManuallyDrop::take(&mut kept.0) }
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        let args = [self.0.as_raw_fd().into(), 0, 0, 0, 0, 0];
        // SAFETY: our own, used no more; there is nothing to do if it cannot be closed.
        unsafe { raw::call(libc::SYS_close, args) };
    }
}

/// Writes a line to standard error, as far as that takes it.
pub fn write_standard_error(line: &[u8]) {
    let (at, len) = (line.as_ptr() as c_long, line.len() as c_long);
    // SAFETY: the bytes of the line are read.
    unsafe { raw::call(libc::SYS_write, [2, at, len, 0, 0, 0]) };
}

/// Bytes of a regular file on a disk, by a descriptor of the program's. None for others: no such file, a device, memory
/// (tmpfs, and files without a name there), huge pages, and files that the system makes up.
pub fn size_on_disk(fd: i32) -> Option<u64> {
    const IN_MEMORY: [i64; 5] = [
        libc::TMPFS_MAGIC,
        libc::HUGETLBFS_MAGIC,
        libc::PROC_SUPER_MAGIC,
        libc::SYSFS_MAGIC,
        libc::RDTGROUP_SUPER_MAGIC,
    ];
    if fd < 0 {
        return None;
    }
    // SAFETY: used for these two calls alone, which say so if it is none.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let facts = rustix::fs::fstat(fd).ok()?;
    let regular = facts.st_mode & libc::S_IFMT == libc::S_IFREG;
    let system = rustix::fs::fstatfs(fd).ok()?.f_type;
    (regular && !IN_MEMORY.contains(&system)).then_some(facts.st_size as u64)
}

/// Whether a lock of another open file, or of a process, is on any byte of the file. Those of flock(2) are of another
/// kind. This takes none.
///
/// # Errors
/// Those of fcntl(2).
pub fn is_locked(fd: impl AsFd) -> Result<bool, Errno> {
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    let fd = fd.as_fd().as_raw_fd().into();
    let lock_at = (&raw mut lock).expose_provenance() as c_long;
    let args = [fd, libc::F_OFD_GETLK.into(), lock_at, 0, 0, 0];
    // SAFETY: the kernel reads the lock and writes the one that is in its way there.
    unsafe { raw::checked(libc::SYS_fcntl, args) }?;
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}

/// Reads from `offset` on until `into` is full or the file ends; the bytes read.
///
/// # Errors
/// Those of pread(2), but for EINTR.
pub fn read_up_to(fd: impl AsFd, into: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while done < into.len() {
        match rustix::io::pread(&fd, &mut into[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}
