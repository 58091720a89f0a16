//! Calls on block devices and the page cache that have no safe wrapper.

use crate::kernel::raw;
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;
use rustix::ioctl::{self, Getter, Opcode, Setter};
use std::ffi::c_long;

const BLKGETSIZE64: Opcode = ioctl::opcode::read::<usize>(0x12, 114);
const BLKDISCARD: Opcode = ioctl::opcode::none(0x12, 119);
const LOOP_GET_STATUS64: Opcode = ioctl::opcode::none(b'L', 5);

/// Bytes of the block device behind `fd`. ENOTTY: not a block device.
pub fn size_bytes(fd: impl AsFd) -> Result<u64, Errno> {
    // SAFETY: BLKGETSIZE64 writes one u64 and reads nothing.
    unsafe { ioctl::ioctl(fd, Getter::<BLKGETSIZE64, u64>::new()) }
}

/// The file under a loop device: the number of its file system, and its own there. ENXIO: there is none.
pub fn loop_file(fd: impl AsFd) -> Result<(u64, u64), Errno> {
    // SAFETY: LOOP_GET_STATUS64 writes a `loop_info64`, of 29 words, and reads nothing.
    let [file_system, file, ..] =
        unsafe { ioctl::ioctl(fd, Getter::<LOOP_GET_STATUS64, [u64; 29]>::new()) }?;
    Ok((file_system, file))
}

/// Tells the block device that `len` bytes from `offset` are no longer needed.
/// EOPNOTSUPP: it does not discard.
pub fn discard(fd: impl AsFd, offset: u64, len: u64) -> Result<(), Errno> {
    // SAFETY: BLKDISCARD reads two u64 (start, length) and writes nothing of ours.
    unsafe { ioctl::ioctl(fd, Setter::<BLKDISCARD, [u64; 2]>::new([offset, len])) }
}

/// Starts writing the dirty page cache of a range; with `wait` it returns when the data is written. The
/// metadata that finds it again after a crash may still be dirty: swap never needs that. EIO, ENOSPC: a
/// write since the last call failed.
pub fn flush_range(fd: impl AsFd, offset: u64, len: u64, wait: bool) -> Result<(), Errno> {
    let mut flags = libc::SYNC_FILE_RANGE_WRITE;
    if wait {
        flags |= libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    }
    let fd = fd.as_fd().as_raw_fd().into();
    let args = [fd, offset as c_long, len as c_long, flags.into(), 0, 0];
    // SAFETY: the call takes numbers only and touches no memory of ours.
    match unsafe { raw::checked(libc::SYS_sync_file_range, args) } {
        Ok(_) => Ok(()),
        Err(error) => Err(Errno::from_raw_os_error(error.0)),
    }
}
