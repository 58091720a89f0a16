//! Reads whose end the calling thread watches for, instead of sleeping until it comes.
//!
//! A thread that sleeps is woken by the interrupt, which on an idle processor ends a halt first. In a virtual machine
//! that is 25 of the 70 µs that the read of a page takes. A thread that watches sees the completion as soon as it is posted.
//! It takes processor time for that, so it had better be of idle urgency (`thread::gives_way`).
//!
//! Protocol. The kernel writes to the caller's memory while the read is in flight, so a call returns only when its read
//! has ended. It watches for as long as it is told, and sleeps then.
//!
//! Not here: files opened without O_DIRECT, whose reads are over when they were begun.

use super::aio_context::{Completion, Context};
use crate::kernel::clock;
use libc::iocb;
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;
use std::io::IoSliceMut;
use std::time::Duration;

/// The kernel's number of a read into several places (`linux/aio_abi.h`).
const IOCB_CMD_PREADV: u16 = 7;
/// Between two looks at the ring, where the kernel does not tell of an end.
const NAP: Duration = Duration::from_micros(50);

/// Reads one after the other.
pub struct WatchedReader(Context);

impl WatchedReader {
    /// A reader for one thread at a time.
    ///
    /// # Errors
    /// ENOSYS, EPERM: not allowed here; EAGAIN: `/proc/sys/fs/aio-max-nr` is used up; ENOMEM.
    pub fn new() -> Result<Self, crate::Errno> {
        Context::new(1).map(Self)
    }

    /// Fills `data` from `offset` of the file on, like preadv(2), and returns the bytes read. Watches for the end for
    /// at most `patience`.
    ///
    /// # Errors
    /// EAGAIN: the kernel did not take the request. ENOSYS: it does not hand out completions, so the reader is of no
    /// use. Else those of preadv(2).
    pub fn read(
        &mut self,
        fd: BorrowedFd<'_>,
        data: &mut [IoSliceMut<'_>],
        offset: u64,
        patience: Duration,
    ) -> Result<usize, Errno> {
        // SAFETY: all zeros is a valid request.
        let mut request: iocb = unsafe { std::mem::zeroed() };
        request.aio_lio_opcode = IOCB_CMD_PREADV;
        request.aio_fildes = fd.as_raw_fd() as u32;
        request.aio_buf = data.as_mut_ptr() as u64;
        request.aio_nbytes = data.len() as u64;
        request.aio_offset = offset as i64;
        // SAFETY: `data` is borrowed uniquely until the call returns, which is after the completion.
        if unsafe { self.0.submit(&[&raw mut request]) } == 0 {
            return Err(Errno::AGAIN);
        }
        let patience = patience.as_nanos() as u64;
        self.0.watch(clock::monotonic_ns() + patience);
        let mut completion = [Completion::default()];
        loop {
            match self.0.collect(&mut completion, true) {
                Ok(0) => {}
                Ok(_) => break,
                Err(_) => {
                    // Never before the end: the kernel may be writing to the caller's memory.
                    while !self.0.has_completion() {
                        std::thread::sleep(NAP);
                    }
                    return Err(Errno::NOSYS);
                }
            }
        }
        match completion[0].result {
            moved if moved >= 0 => Ok(moved as usize),
            error => Err(Errno::from_raw_os_error(-error as i32)),
        }
    }

    /// In a forked child: the reader is the parent's.
    pub fn abandon(self) {
        self.0.abandon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::PAGE;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::{FileExt, OpenOptionsExt};

    #[repr(align(4096))]
    struct Pages([u8; 2 * PAGE]);

    #[test]
    fn a_read_is_whole_whether_it_is_watched_or_slept_for() {
        let Ok(mut reader) = WatchedReader::new() else {
            return println!("skipped: no asynchronous reads");
        };
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("pages");
        let mut pages = Pages([0; 2 * PAGE]);
        std::fs::write(&path, [[1; PAGE], [2; PAGE], [3; PAGE]].concat()).unwrap();
        let direct = File::options()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(&path);
        let Ok(file) = direct else {
            return println!("skipped: no O_DIRECT in /var/tmp");
        };
        for patience in [Duration::ZERO, Duration::from_secs(1)] {
            for round in 0..50 {
                pages.0.fill(0);
                let (first, second) = pages.0.split_at_mut(PAGE);
                let mut data = [second, first].map(IoSliceMut::new);
                let read = reader.read(file.as_fd(), &mut data, PAGE as u64, patience);
                assert_eq!(read, Ok(2 * PAGE), "round {round}");
                assert!(pages.0[..PAGE] == [3; PAGE] && pages.0[PAGE..] == [2; PAGE]);
            }
            // Cut by the end of the file, and refused.
            let mut data = [IoSliceMut::new(&mut pages.0)];
            let read = reader.read(file.as_fd(), &mut data, 2 * PAGE as u64, patience);
            assert_eq!(read, Ok(PAGE));
            let refused = reader.read(file.as_fd(), &mut data, 1, patience);
            assert_eq!(refused, Err(Errno::INVAL));
        }
        file.write_all_at(b"x", 0).unwrap_err();
    }
}
