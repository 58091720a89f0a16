//! A small io_uring: batches of vectored reads and writes, all in flight at once, each call
//! returning only when every transfer of it is done.
//!
//! Protocol. One thread at a time uses a ring (`&mut self`). A call fills the submission
//! queue, enters the kernel until every completion has come, and leaves both queues empty.
//! So the kernel holds no pointer to the caller's memory after a call, which is what makes
//! the calls safe. Should the kernel refuse to wait while transfers are in flight, the call
//! goes on by watching the completion queue; it never returns early.
//!
//! Not done here: files other than regular ones and block devices (their transfers could
//! wait for ever), registered buffers, polling threads. The queues' memory comes from the
//! kernel directly, not through libc's mmap.
//!
//! Fork: the queues are shared with the parent, so the child must call
//! [`Ring::abandon`] and never anything else.

use crate::memory::{self, own::OWN};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::io_uring::{
    self, IORING_OFF_SQ_RING, IORING_OFF_SQES, IoringEnterFlags, IoringFeatureFlags, IoringOp,
    io_uring_cqe, io_uring_params, io_uring_ptr, io_uring_sqe, io_uring_user_data,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// One vectored write of a batch.
pub struct Write<'a> {
    /// Byte of the file where it goes.
    pub offset: u64,
    /// The bytes, one after the other.
    pub data: &'a [IoSlice<'a>],
    /// Bytes written, or why not; set by [`Ring::write`].
    pub result: Result<usize, Errno>,
}

/// One vectored read of a batch.
pub struct Read<'a, 'b> {
    /// Byte of the file where it starts.
    pub offset: u64,
    /// Room, filled one after the other.
    pub data: &'a mut [IoSliceMut<'b>],
    /// Bytes read, or why not; set by [`Ring::read`].
    pub result: Result<usize, Errno>,
}

/// A mapping of the ring's memory.
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

impl Mapping {
    fn new(fd: &OwnedFd, len: usize, offset: u64) -> Result<Self, Errno> {
        let start = OWN.map_file(fd.as_fd(), offset, len, libc::MAP_POPULATE)?;
        let start = NonNull::new(start as *mut u8).ok_or(Errno::NOMEM)?;
        Ok(Self { start, len })
    }

    /// A pointer to the `T` at byte `offset`; EINVAL if `count` of them do not lie within.
    fn at<T>(&self, offset: u32, count: u32) -> Result<NonNull<T>, Errno> {
        let end = offset as usize + count as usize * size_of::<T>();
        if end > self.len || !(offset as usize).is_multiple_of(align_of::<T>()) {
            return Err(Errno::INVAL);
        }
        // SAFETY: within the mapping, as just checked.
        Ok(unsafe { self.start.add(offset as usize) }.cast())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let len = memory::page_up(self.len);
        // SAFETY: ours alone, and the ring that points into it is being dropped.
        let _ = unsafe { OWN.unmap(self.start.as_ptr() as usize, len) };
    }
}

/// An io_uring of one thread at a time.
pub struct Ring {
    fd: ManuallyDrop<OwnedFd>,
    entries: u32,
    sq_head: NonNull<AtomicU32>,
    sq_tail: NonNull<AtomicU32>,
    sq_mask: u32,
    sqes: NonNull<io_uring_sqe>,
    cq_head: NonNull<AtomicU32>,
    cq_tail: NonNull<AtomicU32>,
    cq_mask: u32,
    cqes: NonNull<io_uring_cqe>,
    _queues: Mapping,
    _sqes: Mapping,
    closed: bool,
}

// SAFETY: the pointers lead into the mappings that the ring owns, which any thread may use;
// `&mut self` keeps it to one at a time.
unsafe impl Send for Ring {}

/// A transfer in the kernel's terms.
struct Transfer {
    op: IoringOp,
    offset: u64,
    vectors: *const u8,
    count: u32,
}

impl Ring {
    /// A ring for batches of up to `entries` transfers. ENOSYS, EPERM, EACCES: not allowed
    /// here, reads and writes must do; EOPNOTSUPP: a kernel older than 5.5.
    pub fn new(entries: u32) -> Result<Self, Errno> {
        let mut params = io_uring_params::default();
        // SAFETY: the parameters ask for nothing but a plain ring.
        let fd = unsafe { io_uring::io_uring_setup(entries, &mut params) }?;
        let needed = IoringFeatureFlags::SINGLE_MMAP | IoringFeatureFlags::NODROP;
        if !params.features.contains(needed) {
            return Err(Errno::OPNOTSUPP);
        }
        let sq_len = params.sq_off.array as usize + params.sq_entries as usize * 4;
        let cq_len =
            params.cq_off.cqes as usize + params.cq_entries as usize * size_of::<io_uring_cqe>();
        let queues = Mapping::new(&fd, sq_len.max(cq_len), IORING_OFF_SQ_RING)?;
        let sqes_len = params.sq_entries as usize * size_of::<io_uring_sqe>();
        let sqes = Mapping::new(&fd, sqes_len, IORING_OFF_SQES)?;
        let array: NonNull<u32> = queues.at(params.sq_off.array, params.sq_entries)?;
        for i in 0..params.sq_entries {
            // Position i of the queue always means entry i.
            // SAFETY: within the mapping, as `at` checked; the kernel reads it only when
            // entries are submitted.
            unsafe { array.add(i as usize).write(i) };
        }
        Ok(Self {
            entries: params.sq_entries,
            sq_head: queues.at(params.sq_off.head, 1)?,
            sq_tail: queues.at(params.sq_off.tail, 1)?,
            sq_mask: params.sq_entries - 1,
            sqes: sqes.at(0, params.sq_entries)?,
            cq_head: queues.at(params.cq_off.head, 1)?,
            cq_tail: queues.at(params.cq_off.tail, 1)?,
            cq_mask: params.cq_entries - 1,
            cqes: queues.at(params.cq_off.cqes, params.cq_entries)?,
            _queues: queues,
            _sqes: sqes,
            fd: ManuallyDrop::new(fd),
            closed: false,
        })
    }

    /// Writes all of `batch` to `fd`, at most as many as the ring has entries at a time, and
    /// sets every result. An error means that the kernel took nothing more; results not set
    /// keep what they held. After EAGAIN or EBUSY (the kernel is short of memory) the ring may
    /// be used again; after any other error it is of no more use.
    pub fn write(&mut self, fd: BorrowedFd<'_>, batch: &mut [Write<'_>]) -> Result<(), Errno> {
        for part in batch.chunks_mut(self.entries as usize) {
            for (i, write) in part.iter().enumerate() {
                self.fill(
                    i as u32,
                    fd,
                    Transfer {
                        op: IoringOp::Writev,
                        offset: write.offset,
                        vectors: write.data.as_ptr().cast(),
                        count: write.data.len() as u32,
                    },
                );
            }
            // SAFETY: `part` borrows the data and its vectors until the call returns.
            unsafe { self.run(part.len() as u32, |i, result| part[i].result = result) }?;
        }
        Ok(())
    }

    /// Reads all of `batch` from `fd`; otherwise as [`Ring::write`].
    pub fn read(&mut self, fd: BorrowedFd<'_>, batch: &mut [Read<'_, '_>]) -> Result<(), Errno> {
        for part in batch.chunks_mut(self.entries as usize) {
            for (i, read) in part.iter_mut().enumerate() {
                self.fill(
                    i as u32,
                    fd,
                    Transfer {
                        op: IoringOp::Readv,
                        offset: read.offset,
                        vectors: read.data.as_mut_ptr().cast_const().cast(),
                        count: read.data.len() as u32,
                    },
                );
            }
            // SAFETY: `part` borrows the room and its vectors, uniquely, until the call
            // returns; the closure touches results only.
            unsafe { self.run(part.len() as u32, |i, result| part[i].result = result) }?;
        }
        Ok(())
    }

    /// In a forked child: lets go of the parent's ring without touching its queues, and
    /// without closing its descriptor, whose number may be the program's by now.
    pub fn abandon(mut self) {
        self.closed = true;
    }

    /// Puts a transfer at position `i` behind the queue's tail.
    fn fill(&mut self, i: u32, fd: BorrowedFd<'_>, transfer: Transfer) {
        // SAFETY: the tail is ours to write and valid as long as the mapping.
        let tail = unsafe { self.sq_tail.as_ref() }.load(Ordering::Relaxed);
        let at = tail.wrapping_add(i) & self.sq_mask;
        let mut sqe = io_uring_sqe {
            opcode: transfer.op,
            fd: fd.as_raw_fd(),
            user_data: io_uring_user_data::from_u64(u64::from(i)),
            ..io_uring_sqe::default()
        };
        sqe.off_or_addr2.off = transfer.offset;
        sqe.addr_or_splice_off_in.addr = io_uring_ptr::new(transfer.vectors.cast_mut().cast());
        sqe.len.len = transfer.count;
        // SAFETY: masked, so within the entries; the kernel does not look behind the tail.
        unsafe { self.sqes.add(at as usize).write(sqe) };
    }

    /// Submits the `count` transfers filled in, and hands each result to `done` by its
    /// position. Returns only when none is in flight.
    ///
    /// # Safety
    /// The memory that the transfers name, vectors included, is valid and unshared until
    /// this returns.
    unsafe fn run(
        &mut self,
        count: u32,
        mut done: impl FnMut(usize, Result<usize, Errno>),
    ) -> Result<(), Errno> {
        // SAFETY: both words lie in the mapping, are aligned and live as long as `self`, and
        // both sides use them as atomics.
        let (sq_head, sq_tail) = unsafe { (self.sq_head.as_ref(), self.sq_tail.as_ref()) };
        let start = sq_tail.load(Ordering::Relaxed);
        sq_tail.store(start.wrapping_add(count), Ordering::Release);
        let mut reaped = 0;
        while reaped < count {
            let submitted = sq_head.load(Ordering::Acquire).wrapping_sub(start);
            // SAFETY: what is submitted stays valid, by this function's contract.
            let entered = unsafe {
                io_uring::io_uring_enter(
                    &*self.fd,
                    count - submitted,
                    count - reaped,
                    IoringEnterFlags::GETEVENTS,
                )
            };
            reaped += self.reap(&mut done);
            match entered {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => {
                    let submitted = sq_head.load(Ordering::Acquire).wrapping_sub(start);
                    if reaped == submitted {
                        // Nothing is in flight: take back what the kernel did not take.
                        sq_tail.store(start.wrapping_add(submitted), Ordering::Release);
                        return Err(errno);
                    }
                    if errno == Errno::BADF {
                        // Somebody closed our descriptor. Whether the kernel will ever report
                        // what is in flight is unknown, and returning would let it write to
                        // memory that is in use for something else. A panic ends the process, and says so.
                        panic!(
                            "the descriptor of io_uring was closed while transfers were under way"
                        );
                    }
                    // The kernel reports transfers in flight whether or not we may wait for them.
                    rustix::thread::sched_yield();
                }
            }
        }
        Ok(())
    }

    /// Takes what is in the completion queue.
    fn reap(&mut self, done: &mut impl FnMut(usize, Result<usize, Errno>)) -> u32 {
        // SAFETY: as in `run`.
        let (head_word, tail_word) = unsafe { (self.cq_head.as_ref(), self.cq_tail.as_ref()) };
        let mut head = head_word.load(Ordering::Relaxed);
        let tail = tail_word.load(Ordering::Acquire);
        let count = tail.wrapping_sub(head);
        while head != tail {
            // SAFETY: masked, so within the entries; between head and tail the kernel does
            // not write. Only the two plain fields are read.
            let (position, code) = unsafe {
                let cqe = self.cqes.add((head & self.cq_mask) as usize).as_ptr();
                ((*cqe).user_data.u64_(), (*cqe).res)
            };
            let result = match usize::try_from(code) {
                Ok(bytes) => Ok(bytes),
                Err(_) => Err(Errno::from_raw_os_error(-code)),
            };
            done(position as usize, result);
            head = head.wrapping_add(1);
        }
        head_word.store(head, Ordering::Release);
        count
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: taken once, here, and not used afterwards.
        let fd = unsafe { ManuallyDrop::take(&mut self.fd) };
        if self.closed {
            let _ = fd.into_raw_fd();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use std::fs::File;

    fn ring(entries: u32) -> Option<Ring> {
        match Ring::new(entries) {
            Ok(ring) => Some(ring),
            Err(errno) => {
                eprintln!("skipped: no io_uring: {errno}");
                None
            }
        }
    }

    fn temporary() -> File {
        let dir = std::env::temp_dir();
        let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR;
        rustix::fs::open(dir, flags, 0o600.into())
            .expect("a file")
            .into()
    }

    #[test]
    fn written_data_is_read_in_any_order() {
        let Some(mut ring) = ring(8) else { return };
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
        ring.write(file.as_fd(), &mut writes).unwrap();
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
        ring.read(file.as_fd(), &mut reads).unwrap();
        assert!(reads[..100].iter().all(|read| read.result == Ok(6)));
        assert_eq!(reads[100].result, Ok(0), "past the end of the file");
        for i in 0..100 {
            assert_eq!(rooms[i * 37 % 100], [i as u8; 6]);
        }
    }

    #[test]
    fn an_error_is_that_transfers_alone() {
        let Some(mut ring) = ring(4) else { return };
        let read_only = File::open("/proc/self/exe").unwrap();
        let data = [IoSlice::new(b"x")];
        let mut writes = [Write {
            offset: 0,
            data: &data,
            result: Ok(0),
        }];
        ring.write(read_only.as_fd(), &mut writes).unwrap();
        assert_eq!(writes[0].result, Err(Errno::BADF));
    }

    #[test]
    fn a_ring_abandoned_leaves_its_descriptor_alone() {
        let Some(ring) = ring(4) else { return };
        let number = ring.fd.as_raw_fd();
        ring.abandon();
        assert!(std::path::Path::new(&format!("/proc/self/fd/{number}")).exists());
    }
}
