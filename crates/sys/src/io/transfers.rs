//! Batches of vectored reads and writes, all in flight at once (`io_submit(2)`). A call returns when each is done.
//!
//! Protocol. One thread at a time uses it (`&mut self`). The kernel moves data to and from the caller's memory while a
//! transfer is in flight, so a call returns only when none is. The thread may *watch* for the end, instead of sleeping
//! until it comes. One that sleeps is woken by the interrupt, which on an idle processor ends a halt first: in a virtual
//! machine that is 25 of the 70 µs that the read of a page takes. Watching takes processor time, so a thread that
//! watches had better be of idle urgency (`thread::gives_way`).
//!
//! Not by io_uring. A process that ends does not wait for what its rings write, so a slot of its could be given to
//! another process, and be overwritten. It waits for these, when nobody uses its memory any more.
//!
//! Not done here: files other than regular ones and block devices. Without O_DIRECT a transfer is over when it was
//! begun.

use super::aio_context::{Completion, Context};
use crate::kernel::clock;
use libc::iocb;
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

/// The kernel's numbers of a read into several places, and of a write from them (`linux/aio_abi.h`).
const IOCB_CMD_PREADV: u16 = 7;
const IOCB_CMD_PWRITEV: u16 = 8;
/// Between two looks at the ring, where the kernel does not tell of an end.
const NAP: Duration = Duration::from_micros(50);
/// Transfers that are in flight at a time.
const MOST: usize = 64;

/// One vectored write of a batch.
pub struct Write<'a> {
    /// Byte of the file where it goes.
    pub offset: u64,
    /// The bytes, one after the other.
    pub data: &'a [IoSlice<'a>],
    /// Bytes written, or why not, as pwritev(2) has it; set by [`Transfers::write`].
    pub result: Result<usize, Errno>,
}

/// One vectored read of a batch.
pub struct Read<'a, 'b> {
    /// Byte of the file where it starts.
    pub offset: u64,
    /// Room, filled one after the other.
    pub data: &'a mut [IoSliceMut<'b>],
    /// Bytes read, or why not, as preadv(2) has it; set by [`Transfers::read`].
    pub result: Result<usize, Errno>,
}

/// See the module.
pub struct Transfers(Context);

impl Transfers {
    /// For one thread at a time.
    ///
    /// # Errors
    /// ENOSYS, EPERM: not allowed here; EAGAIN: `/proc/sys/fs/aio-max-nr` is used up; ENOMEM.
    pub fn new() -> Result<Self, crate::Errno> {
        Context::new(MOST).map(Self)
    }

    /// Writes all of a batch, and sets every result.
    ///
    /// # Errors
    /// EAGAIN: the kernel did not take all of it; results that were not set keep what they held. ENOSYS: it does not
    /// hand out completions, so this is of no more use.
    pub fn write(&mut self, fd: BorrowedFd<'_>, batch: &mut [Write<'_>]) -> Result<(), Errno> {
        for part in batch.chunks_mut(MOST) {
            let mut requests = Requests::new(part.len(), |i| {
                let write: &Write<'_> = &part[i];
                let place = (write.data.as_ptr() as u64, write.data.len());
                request(fd, IOCB_CMD_PWRITEV, place, write.offset)
            });
            // SAFETY: `part` borrows the data and its vectors until the call returns.
            let done = unsafe { self.run(&mut requests, Duration::ZERO) };
            for (write, result) in part.iter_mut().zip(requests.results) {
                write.result = result.unwrap_or(write.result);
            }
            done?;
        }
        Ok(())
    }

    /// Reads all of a batch; otherwise as [`write`](Self::write). Watches for the first end for at most `patience`.
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
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
                let place = (read.data.as_mut_ptr() as u64, read.data.len());
                request(fd, IOCB_CMD_PREADV, place, read.offset)
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
            let Ok(n) = self.0.collect(&mut ended, true) else {
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

/// A request about vectors at an address, so many.
fn request(fd: BorrowedFd<'_>, what: u16, (vectors, count): (u64, usize), offset: u64) -> iocb {
    // SAFETY: all zeros is a valid request.
    let mut request: iocb = unsafe { std::mem::zeroed() };
    request.aio_lio_opcode = what;
    request.aio_fildes = fd.as_raw_fd() as u32;
    request.aio_buf = vectors;
    request.aio_nbytes = count as u64;
    request.aio_offset = offset as i64;
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

    fn transfers() -> Option<Transfers> {
        let made = Transfers::new();
        if made.is_err() {
            println!("skipped: no asynchronous reads");
        }
        made.ok()
    }

    #[test]
    fn a_read_is_whole_whether_it_is_watched_or_slept_for() {
        let Some(mut transfers) = transfers() else {
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
            transfers.read(file.as_fd(), &mut one, patience).unwrap();
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

    fn temporary() -> File {
        tempfile::tempfile_in("/var/tmp").unwrap()
    }

    #[test]
    fn written_data_is_read_in_any_order() {
        let Some(mut transfers) = transfers() else {
            return;
        };
        let file = temporary();
        let parts: Vec<[u8; 6]> = (0..100u8).map(|i| [i; 6]).collect();
        let data: Vec<[IoSlice<'_>; 2]> = parts
            .iter()
            .map(|part| [IoSlice::new(&part[..2]), IoSlice::new(&part[2..])])
            .collect();
        let mut writes: Vec<Write<'_>> = data
            .iter()
            .enumerate()
            .map(|(i, data)| Write {
                offset: i as u64 * 37 % 100 * 6,
                data,
                result: Err(Errno::IO),
            })
            .collect();
        transfers.write(file.as_fd(), &mut writes).unwrap();
        assert!(writes.iter().all(|write| write.result == Ok(6)));
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
        transfers
            .read(file.as_fd(), &mut reads, Duration::ZERO)
            .unwrap();
        assert!(reads[..100].iter().all(|read| read.result == Ok(6)));
        assert_eq!(reads[100].result, Ok(0), "past the end of the file");
        for i in 0..100 {
            assert_eq!(rooms[i * 37 % 100], [i as u8; 6]);
        }
    }

    #[test]
    fn an_error_is_that_transfers_alone() {
        let Some(mut transfers) = transfers() else {
            return;
        };
        let file = temporary();
        let data = [IoSlice::new(b"good")];
        let offsets = [0, u64::MAX >> 1, 4];
        let mut writes = offsets.map(|offset| Write {
            offset,
            data: &data,
            result: Ok(0),
        });
        // The kernel takes none behind the one that it refuses to begin, or says so of it alone.
        let all = transfers.write(file.as_fd(), &mut writes);
        assert_eq!(writes[0].result, Ok(4));
        assert!(writes[1].result.is_err() || all == Err(Errno::AGAIN));
        let again = [0, 4].map(|offset| Write {
            offset,
            data: &data,
            result: Ok(0),
        });
        let mut writes = again;
        assert_eq!(transfers.write(file.as_fd(), &mut writes), Ok(()));
        assert_eq!(writes.map(|write| write.result), [Ok(4); 2]);
    }
}
