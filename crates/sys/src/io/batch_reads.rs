//! Batches of vectored reads, all in flight at once (`io_submit(2)`). A call returns when each is done.
//!
//! Protocol. One thread at a time uses it (`&mut self`). The kernel writes to the caller's memory while a read is in
//! flight, so a call returns only when none is. The thread may *watch* for the first end, instead of sleeping until it
//! comes. One that sleeps is woken by the interrupt, which on an idle processor ends a halt first: in a virtual machine
//! that is 25 of the 70 µs that the read of a page takes. Watching takes processor time, so a thread that watches had
//! better be of idle urgency (`thread::gives_way`).
//!
//! Not by io_uring: see `aio_context`. Not done here: writes, which a thread waits for by itself. One that is killed ends
//! when its write has, so whoever sees the end of a process knows that nothing of its is written any more. Files other
//! than regular ones and block devices. Without O_DIRECT a read is over when it was begun.

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
/// Reads that are in flight at a time. The system gives out a limited number of them (`/proc/sys/fs/aio-max-nr`).
const MOST: usize = 16;

/// One vectored read of a batch.
pub struct Read<'a, 'b> {
    /// Byte of the file where it starts.
    pub offset: u64,
    /// Room, filled one after the other.
    pub data: &'a mut [IoSliceMut<'b>],
    /// Bytes read, or why not, as preadv(2) has it; set by [`BatchReads::read`].
    pub result: Result<usize, Errno>,
}

/// See the module.
pub struct BatchReads(Context);

impl BatchReads {
    /// For one thread at a time.
    ///
    /// # Errors
    /// ENOSYS, EPERM: not allowed here; EAGAIN: `/proc/sys/fs/aio-max-nr` is used up; ENOMEM.
    pub fn new() -> Result<Self, crate::Errno> {
        Context::new(MOST).map(Self)
    }

    /// Reads all of a batch, and sets every result. Watches for the first end for at most `patience`.
    ///
    /// # Errors
    /// EAGAIN: the kernel did not take all of it; results that were not set keep what they held. ENOSYS: it does not
    /// hand out completions, so this is of no more use.
    pub fn read(
        &mut self,
        fd: BorrowedFd<'_>,
        batch: &mut [Read<'_, '_>],
        patience: Duration,
    ) -> Result<(), Errno> {
        for part in batch.chunks_mut(MOST) {
            let count = part.len();
            let mut requests = Requests::new(count, |i| {
                let read: &mut Read<'_, '_> = &mut part[i];
                request(fd, read)
            });
            // SAFETY: `part` borrows the room and its vectors, uniquely, until the call returns.
            let done = unsafe { self.run(&mut requests, patience) };
            for (read, result) in part.iter_mut().zip(requests.results) {
                read.result = result.unwrap_or(read.result);
            }
            done?;
        }
        Ok(())
    }

    /// In a forked child: it is the parent's.
    pub fn abandon(self) {
        self.0.abandon();
    }

    /// Submits the requests, and returns when none of them is in flight.
    ///
    /// # Safety
    /// The memory that they name, vectors included, is valid and unshared until this returns.
    unsafe fn run(&mut self, requests: &mut Requests, patience: Duration) -> Result<(), Errno> {
        let Requests {
            blocks,
            count,
            results,
        } = requests;
        let pointers: [*mut iocb; MOST] = std::array::from_fn(|i| &raw mut blocks[i]);
        // SAFETY: the caller's contract; each is waited for below.
        let taken = unsafe { self.0.submit(&pointers[..*count]) };
        if taken > 0 && !patience.is_zero() {
            self.0
                .watch(clock::monotonic_ns() + patience.as_nanos() as u64);
        }
        let mut left = taken;
        while left > 0 {
            let mut ended = [Completion::default(); MOST];
            let Ok(n) = self.0.collect(&mut ended, left) else {
                // Never before the end: the kernel may be moving the caller's memory.
                while self.0.completions() < left {
                    clock::sleep(NAP);
                }
                return Err(Errno::NOSYS);
            };
            for completion in &ended[..n] {
                results[completion.token as usize] = Some(match completion.result {
                    moved if moved >= 0 => Ok(moved as usize),
                    error => Err(Errno::from_raw_os_error(-error as i32)),
                });
            }
            left -= n;
        }
        match taken == *count {
            true => Ok(()),
            false => Err(Errno::AGAIN),
        }
    }
}

/// Requests of a call, and what became of each.
struct Requests {
    blocks: [iocb; MOST],
    count: usize,
    results: [Option<Result<usize, Errno>>; MOST],
}

impl Requests {
    fn new(count: usize, mut request: impl FnMut(usize) -> iocb) -> Self {
        // SAFETY: all zeros are valid requests.
        let mut blocks: [iocb; MOST] = unsafe { std::mem::zeroed() };
        for (i, block) in blocks.iter_mut().take(count).enumerate() {
            *block = request(i);
            block.aio_data = i as u64;
        }
        Self {
            blocks,
            count,
            results: [None; MOST],
        }
    }
}

fn request(fd: BorrowedFd<'_>, read: &mut Read<'_, '_>) -> iocb {
    // SAFETY: all zeros is a valid request.
    let mut request: iocb = unsafe { std::mem::zeroed() };
    request.aio_lio_opcode = IOCB_CMD_PREADV;
    request.aio_fildes = fd.as_raw_fd() as u32;
    request.aio_buf = read.data.as_mut_ptr() as u64;
    request.aio_nbytes = read.data.len() as u64;
    request.aio_offset = read.offset as i64;
    request
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

    fn reads() -> Option<BatchReads> {
        let made = BatchReads::new();
        if made.is_err() {
            println!("skipped: no asynchronous reads");
        }
        made.ok()
    }

    #[test]
    fn a_read_is_whole_whether_it_is_watched_or_slept_for() {
        let Some(mut batch) = reads() else {
            return;
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
        let mut read = |data: &mut [IoSliceMut<'_>], offset, patience| {
            let result = Err(Errno::IO);
            let mut one = [Read {
                offset,
                data,
                result,
            }];
            batch.read(file.as_fd(), &mut one, patience).unwrap();
            one[0].result
        };
        for patience in [Duration::ZERO, Duration::from_secs(1)] {
            for round in 0..50 {
                pages.0.fill(0);
                let (first, second) = pages.0.split_at_mut(PAGE);
                let mut data = [second, first].map(IoSliceMut::new);
                let moved = read(&mut data, PAGE as u64, patience);
                assert_eq!(moved, Ok(2 * PAGE), "round {round}");
                assert!(pages.0[..PAGE] == [3; PAGE] && pages.0[PAGE..] == [2; PAGE]);
            }
            // Cut by the end of the file, and refused.
            let mut data = [IoSliceMut::new(&mut pages.0)];
            assert_eq!(read(&mut data, 2 * PAGE as u64, patience), Ok(PAGE));
            assert_eq!(read(&mut data, 1, patience), Err(Errno::INVAL));
        }
        file.write_all_at(b"x", 0).unwrap_err();
    }

    #[test]
    fn more_than_are_in_flight_at_a_time_are_read_and_an_error_is_of_one_alone() {
        let Some(mut batch) = reads() else {
            return;
        };
        let file = tempfile::tempfile_in("/var/tmp").unwrap();
        let text: Vec<u8> = (0..100u8).flat_map(|i| [i; 6]).collect();
        file.write_all_at(&text, 0).unwrap();
        let mut rooms = vec![[0u8; 6]; 101];
        let mut data: Vec<_> = rooms
            .iter_mut()
            .map(|room| {
                let (a, b) = room.split_at_mut(5);
                [IoSliceMut::new(a), IoSliceMut::new(b)]
            })
            .collect();
        let mut reads: Vec<Read<'_, '_>> = data
            .iter_mut()
            .enumerate()
            .map(|(i, data)| Read {
                offset: i as u64 * 6,
                data,
                result: Err(Errno::IO),
            })
            .collect();
        batch
            .read(file.as_fd(), &mut reads, Duration::ZERO)
            .unwrap();
        assert!(reads[..100].iter().all(|read| read.result == Ok(6)));
        assert_eq!(reads[100].result, Ok(0), "past the end of the file");
        for (i, room) in rooms[..100].iter().enumerate() {
            assert_eq!(*room, [i as u8; 6]);
        }
    }
}
