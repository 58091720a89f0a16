//! A file or block device as a store.
//!
//! Transfers take a *lane*: a bounce buffer (and, where they are allowed, asynchronous reads) behind a
//! lock that is only ever tried, never waited for. So no thread waits for another's
//! transfer, but for one of the page cache to be written back; one that finds every lane taken moves its pages through a page on its own
//! stack. Nothing is allocated after the store was made.
//!
//! With O_DIRECT, memory that the device can reach goes as it is, other memory through the bounce buffer.
//! Without O_DIRECT every transfer ends by dropping its range from the page cache, a write after having
//! waited for it. So the cache holds at most the batches in flight.
//!
//! A transfer that ends short is taken up again, piece by piece, until it is whole or fails. The end of a
//! file that was cut behind our back is an error of the slot, never zeros. A file cut and then written
//! beyond the cut reads as zeros in between: the engine's checksums find that.
//!
//! Fork: the store may be copied by a fork while no transfer is in flight. The child then
//! calls [`FileStore::reattach`] before anything else.

mod errno;
mod lane;
mod on_demand;
mod read_ahead;
mod rounds;
mod watched;

pub use lane::{BOUNCE_PAGES, LANES};

use crate::Facts;
use crate::transfer::batch::{Cursor, Round, Shape};
use crate::transfer::bounce::Bounce;
use ebb_engine::env::{IoError, ReadOp, Store, WriteOp};
use ebb_engine::{CLUSTER_SLOTS, Node, PAGE_SIZE};
use ebb_sys::{block_device, clock};
use errno::classify;
use lane::Lane;
use on_demand::OnDemand;
use read_ahead::ReadAhead;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use rustix::fs::{AtFlags, FallocateFlags, OFlags, StatxFlags};
use rustix::io::Errno;
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError, RwLock};
use watched::ReadTimes;

const PAGE: u64 = PAGE_SIZE as u64;

/// A file or block device by its descriptor.
pub struct FileStore {
    facts: Facts,
    fd: RwLock<OwnedFd>,
    lanes: [Mutex<Lane>; LANES],
    ahead: ReadAhead,
    read_times: ReadTimes,
    watches: AtomicBool,
    /// The alignment of memory that the device can reach.
    reach: usize,
    discards: AtomicBool,
    /// Flag: a descriptor that only reads is in the place of one that wrote.
    writes_no_more: AtomicBool,
    last_errno: AtomicI32,
    /// Errors of writing back so far. Whoever asks first is told of each, whose ever write it was; held while one asks.
    write_back: Mutex<u64>,
    batches: AtomicBool,
    refusal: AtomicI32,
}

/// A transfer was in flight at the fork, so the copy cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a transfer of the swap device was in flight at the fork")]
pub struct InUse;

fn reads_only(fd: &OwnedFd) -> bool {
    let flags = rustix::fs::fcntl_getfl(fd);
    flags.is_ok_and(|flags| flags & OFlags::ACCMODE == OFlags::RDONLY)
}

impl FileStore {
    /// The store of a descriptor, opened for reading and writing as `facts` say.
    pub fn from_fd(fd: OwnedFd, facts: Facts) -> Self {
        let reach = if facts.direct {
            memory_alignment(&fd)
        } else {
            1
        };
        Self {
            facts,
            writes_no_more: AtomicBool::new(false),
            lanes: std::array::from_fn(|_| {
                Mutex::new(Lane {
                    bounce: Bounce::new(BOUNCE_PAGES),
                    reads: OnDemand::Untried,
                })
            }),
            ahead: ReadAhead::new(),
            read_times: ReadTimes::new(),
            watches: AtomicBool::new(true),
            fd: RwLock::new(fd),
            reach,
            discards: AtomicBool::new(facts.wants_discard),
            last_errno: AtomicI32::new(0),
            write_back: Mutex::new(0),
            batches: AtomicBool::new(true),
            refusal: AtomicI32::new(0),
        }
    }

    /// In a forked child: goes on with another descriptor of the same device. The old
    /// descriptor's number is left alone, for in the child it may be the program's by now.
    pub fn reattach(&self, fd: OwnedFd) -> Result<(), InUse> {
        for lane in &self.lanes {
            let mut lane = lane.try_lock().map_err(|_| InUse)?;
            if let Some(reads) = lane.reads.take() {
                reads.abandon();
            }
        }
        if !self.ahead.abandon() {
            return Err(InUse);
        }
        let mut slot = self.fd.try_write().map_err(|_| InUse)?;
        self.writes_no_more.store(reads_only(&fd), Relaxed);
        let _ = std::mem::replace(&mut *slot, fd).into_raw_fd();
        Ok(())
    }

    /// Goes on with another descriptor of the same device, as soon as no transfer is under way, and
    /// closes the old one. If it only reads, nothing is written any more, as if there were no room.
    pub fn replace(&self, fd: OwnedFd) {
        let mut slot = self.fd.write().unwrap_or_else(PoisonError::into_inner);
        self.writes_no_more.store(reads_only(&fd), Relaxed);
        *slot = fd;
    }

    /// Whether the descriptor reads alone.
    pub fn reads_only(&self) -> bool {
        reads_only(&self.fd.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The number of its descriptor, in the table it was opened in.
    pub fn descriptor(&self) -> i32 {
        let fd = self.fd.read().unwrap_or_else(PoisonError::into_inner);
        fd.as_raw_fd()
    }

    /// The facts it was made with.
    pub fn facts(&self) -> Facts {
        self.facts
    }

    /// Whether the file system says that it has room for a cluster of slots more; none for a block device, or where
    /// it does not say. It says nothing of quotas.
    pub fn has_blocks(&self) -> Option<bool> {
        if self.facts.block || !ours() {
            return None;
        }
        let fd = self.fd.read().unwrap_or_else(PoisonError::into_inner);
        let space = rustix::fs::fstatvfs(&*fd).ok()?;
        let is_enough =
            |blocks: u64| blocks.saturating_mul(space.f_frsize) >= CLUSTER_SLOTS as u64 * PAGE;
        has_room(
            is_enough(space.f_bavail),
            is_enough(space.f_bfree),
            rustix::process::geteuid().is_root(),
        )
    }

    /// The system's error number of the last transfer that failed, for messages.
    pub fn last_errno(&self) -> Option<Errno> {
        match self.last_errno.load(Relaxed) {
            0 => None,
            code => Some(Errno::from_raw_os_error(code)),
        }
    }

    /// Why reads are not asynchronous, or none if they are (or none had to be yet).
    pub fn refusal(&self) -> Option<Errno> {
        match self.refusal.load(Relaxed) {
            0 => None,
            code => Some(Errno::from_raw_os_error(code)),
        }
    }

    /// Whether the reads of a batch are in flight at once where that is allowed; on at first.
    pub fn set_batches(&self, on: bool) {
        self.batches.store(on, Relaxed);
    }

    /// Whether a thread that gives way to every other may watch for the end of its reads; on at first.
    pub fn set_watches(&self, on: bool) {
        self.watches.store(on, Relaxed);
    }

    /// The operation's place on the device, or none if it is out of range.
    fn shape(&self, slot: u64, data: &[u8]) -> Option<Shape> {
        let pages = NonZeroU64::new(data.len() as u64 / PAGE)?.get();
        let fits = slot
            .checked_add(pages)
            .is_some_and(|end| end <= self.facts.slots);
        (fits && data.len().is_multiple_of(PAGE_SIZE)).then(|| Shape {
            offset: self.offset(slot),
            len: data.len(),
            direct: data.as_ptr().addr().is_multiple_of(self.reach),
        })
    }

    fn offset(&self, slot: u64) -> u64 {
        self.facts.base + slot * PAGE
    }

    fn failed(&self, fd: BorrowedFd<'_>, errno: Errno) -> IoError {
        self.last_errno.store(errno.raw_os_error(), Relaxed);
        match classify(errno) {
            IoError::NoSpace if self.is_cut(fd) => IoError::Device,
            error => error,
        }
    }

    /// Whether it is a block device that has become smaller than what is used of it, or nothing: it was taken away.
    /// Behind its end the system says that there is no space, as a thin device does while its pool is full.
    fn is_cut(&self, fd: BorrowedFd<'_>) -> bool {
        let end = self.offset(self.facts.slots);
        self.facts.block && block_device::size_bytes(fd).is_ok_and(|size| size < end)
    }
}

/// The alignment of addresses for O_DIRECT, a page where the system does not say.
fn memory_alignment(fd: &OwnedFd) -> usize {
    rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        .ok()
        .map(|found| found.stx_dio_mem_align as usize)
        .filter(|align| align.is_power_of_two() && *align <= PAGE_SIZE)
        .unwrap_or(PAGE_SIZE)
}

/// Whether there is room, where there is some for everybody, or for root. Root in a namespace may have none of what is
/// kept for root, so nobody can tell then.
fn has_room(everybody: bool, root: bool, is_root: bool) -> Option<bool> {
    match everybody {
        false if root && is_root => None,
        everybody => Some(everybody),
    }
}

#[cfg(test)]
#[test]
fn blocks_that_are_kept_for_root_may_be_room_for_root_alone() {
    let ours = [has_room(false, true, true), has_room(false, false, true)];
    assert_eq!(ours, [None, Some(false)]);
    assert_eq!(has_room(false, true, false), Some(false));
    assert_eq!(has_room(true, true, true), Some(true));
}

/// Whether this thread's descriptor table is the one that the file was opened in. In another the
/// same number may be a file of the program's.
fn ours() -> bool {
    ebb_sys::thread::has_our_descriptors()
}

impl Store for FileStore {
    fn slots(&self) -> u64 {
        self.facts.slots
    }

    fn free_idle(&self) {
        if !ours() {
            return;
        }
        for lane in &self.lanes {
            if let Ok(mut lane) = lane.try_lock() {
                lane.free_idle();
            }
        }
    }

    fn write(&self, ops: &[WriteOp<'_>], results: &mut [Result<(), IoError>]) {
        assert_eq!(ops.len(), results.len());
        let shape = |i: usize| self.shape(ops[i].slot, ops[i].data);
        for (i, result) in results.iter_mut().enumerate() {
            *result = shape(i).map(|_| ()).ok_or(IoError::Request);
        }
        if !ours() {
            return results.fill(Err(IoError::Request));
        }
        self.with_mover(|mover| {
            // While nobody replaces the descriptor.
            if self.writes_no_more.load(Relaxed) {
                return results.fill(Err(IoError::NoSpace));
            }
            let mut cursor = Cursor::default();
            let bounce = mover.bounce.len();
            while let Some(round) = Round::next(&mut cursor, ops.len(), bounce, shape) {
                self.write_round(mover, &round, ops, results);
            }
        });
        for shape in ops.iter().filter_map(|op| self.shape(op.slot, op.data)) {
            self.ahead.written(shape.offset, shape.len);
        }
    }

    fn read(&self, ops: &mut [ReadOp<'_>], results: &mut [Result<(), IoError>]) {
        assert_eq!(ops.len(), results.len());
        for (op, result) in ops.iter().zip(&mut *results) {
            *result = self
                .shape(op.slot, op.data)
                .map(|_| ())
                .ok_or(IoError::Request);
        }
        if !ours() {
            return results.fill(Err(IoError::Request));
        }
        // A bit for each operation that was read ahead; those past the last bit are not asked for.
        let mut here = 0u128;
        let wanted = ops.iter_mut().take(u128::BITS as usize).map(|op| {
            let offset = self.shape(op.slot, op.data)?.offset;
            Some((offset, &mut *op.data))
        });
        let patience = self.patience();
        let begun = clock::monotonic_ns();
        self.ahead.take(patience, wanted, |i| here |= 1 << i);
        if here != 0 {
            self.waited(patience, begun);
        }
        let left = |i: usize| i >= u128::BITS as usize || here & 1 << i == 0;
        if (0..ops.len()).all(|i| !left(i)) {
            return;
        }
        self.with_mover(|mover| {
            mover.patience = patience;
            let mut cursor = Cursor::default();
            let bounce = mover.bounce.len();
            while let Some(round) = Round::next(&mut cursor, ops.len(), bounce, |i| {
                left(i)
                    .then(|| self.shape(ops[i].slot, ops[i].data))
                    .flatten()
            }) {
                self.read_round(mover, &round, ops, results);
            }
        });
    }

    fn expect(&self, slots: &[Range<u64>]) {
        // Past the page cache alone are reads asynchronous.
        if !self.facts.direct || !ours() {
            return;
        }
        let fd = match self.fd.read() {
            Ok(fd) => fd,
            Err(poisoned) => poisoned.into_inner(),
        };
        let stretches = slots
            .iter()
            .filter(|slots| slots.start < slots.end && slots.end <= self.facts.slots)
            .map(|slots| {
                let pages = (slots.end - slots.start) as usize;
                (self.offset(slots.start), pages * PAGE_SIZE)
            });
        self.ahead.begin(fd.as_fd(), stretches);
    }

    fn discard(&self, slot: u64, slots: u64) -> Result<(), IoError> {
        let end = slot.checked_add(slots).ok_or(IoError::Request)?;
        if slots == 0 || end > self.facts.slots || !ours() {
            return Err(IoError::Request);
        }
        let fd = match self.fd.read() {
            Ok(fd) => fd,
            Err(poisoned) => poisoned.into_inner(),
        };
        let done = if self.facts.block {
            block_device::discard(&*fd, self.offset(slot), slots * PAGE)
        } else {
            rustix::fs::fallocate(
                &*fd,
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                self.offset(slot),
                slots * PAGE,
            )
        };
        match done {
            Ok(()) => Ok(()),
            // Asking again would be a waste.
            Err(errno @ (Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY)) => {
                self.discards.store(false, Relaxed);
                Err(self.failed(fd.as_fd(), errno))
            }
            Err(errno) => Err(self.failed(fd.as_fd(), errno)),
        }
    }

    fn wants_discard(&self) -> bool {
        self.discards.load(Relaxed)
    }

    fn rotational(&self) -> bool {
        self.facts.rotational
    }

    fn node(&self) -> Option<Node> {
        self.facts.node()
    }
}
