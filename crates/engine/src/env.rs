//! The engine's only needs from outside: it makes no system call, reads no clock and starts no thread.
//! The pager passes real things, the lab simulated ones, tests faulty ones.

use crate::types::{ClusterIndex, Cpu, Node};
use std::fmt;
use std::ops::Range;

/// Time since an arbitrary start.
pub trait Clock: Send + Sync {
    /// Nanoseconds, never going back.
    fn now_ns(&self) -> u64;
}

/// Processors and memory nodes.
pub trait Topology: Send + Sync {
    /// The processor this thread runs on now; below `cpus()`. A hint: it may be stale.
    fn cpu(&self) -> Cpu;
    /// How many processors there are, at least 1.
    fn cpus(&self) -> usize;
    /// The memory node of a processor.
    fn node(&self, cpu: Cpu) -> Node;
}

/// Operations on memory besides reading and writing it.
pub trait Memory: Send + Sync {
    /// Returns the whole pages inside `bytes` to the system. They read as zeros afterwards
    /// and cost memory again when next written. The part of `bytes` outside whole pages
    /// keeps its content.
    fn give_back(&self, bytes: &mut [u8]);
    /// So many bytes of zeros, which cost memory as they are written. None: the process may have no more addresses.
    fn zeros(&self, bytes: usize) -> Option<Box<[u8]>> {
        Some(vec![0; bytes].into_boxed_slice())
    }
    /// Says that these bytes will be read or written soon. It waits for nothing.
    fn prefetch(&self, _bytes: &[u8]) {}
}

/// Why a store could not do what was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoError {
    /// This transfer failed; another slot may work (EIO on a range, short transfer).
    Slot,
    /// No room behind the store: a full file system (ENOSPC, EDQUOT). May pass.
    NoSpace,
    /// This process may write no file so large (EFBIG, RLIMIT_FSIZE): nothing is wrong with the device.
    FileLimit,
    /// The system had no memory for the transfer at this moment (ENOMEM, EAGAIN): that says nothing of slot or device.
    Again,
    /// The device is gone or refuses everything; nothing on it can be used again.
    Device,
    /// The request was refused (EINVAL): out of range, or of a size that the device takes no more.
    Request,
}

impl IoError {
    /// Whether it may be of one transfer of several alone: each is to be tried by itself then.
    pub fn is_of_one(self) -> bool {
        matches!(self, Self::Slot | Self::Request)
    }
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IoError::Slot => "the transfer failed",
            IoError::NoSpace => "no space is left behind the device",
            IoError::FileLimit => "the process may write no file so large",
            IoError::Again => "the system has no memory for the transfer",
            IoError::Device => "the device is gone",
            IoError::Request => "the request was refused",
        })
    }
}

impl std::error::Error for IoError {}

/// One transfer of a batch: consecutive slots and the bytes that go there.
#[derive(Clone, Copy)]
pub struct WriteOp<'a> {
    /// First slot.
    pub slot: u64,
    /// Data; a multiple of a page long.
    pub data: &'a [u8],
}

/// One transfer of a batch: consecutive slots and the room for their bytes.
pub struct ReadOp<'a> {
    /// First slot.
    pub slot: u64,
    /// Room; a multiple of a page long.
    pub data: &'a mut [u8],
}

/// A device: numbered slots of one page each. Calls block until done; a batch is in flight all at once.
/// A store keeps no order between batches that overlap in time. Defaults describe a plain device; a
/// store over another passes the calls on.
pub trait Store: Send + Sync {
    /// Slots of the device, whether or not space is behind them yet.
    fn slots(&self) -> u64;
    /// Writes every operation; `results[i]` says how `ops[i]` went. Lengths are equal.
    fn write(&self, ops: &[WriteOp<'_>], results: &mut [Result<(), IoError>]);
    /// Reads every operation; `results[i]` says how `ops[i]` went. Lengths are equal.
    fn read(&self, ops: &mut [ReadOp<'_>], results: &mut [Result<(), IoError>]);
    /// Says that these slots will probably be read soon, in this order. A store may begin to read
    /// them; it does not wait, and what goes wrong shows when they are read.
    fn expect(&self, _slots: &[Range<u64>]) {}
    /// Says that the slots' content is no longer needed. Reading them afterwards gives
    /// anything at all. An error: what is behind them stays taken.
    fn discard(&self, _slot: u64, _slots: u64) -> Result<(), IoError> {
        Ok(())
    }
    /// Whether `discard` is worth calling.
    fn wants_discard(&self) -> bool {
        false
    }
    /// Frees the buffers that no transfer has used since the last call.
    fn free_idle(&self) {}
    /// Whether the device has a head to move: then one cursor serves all processors.
    fn rotational(&self) -> bool {
        false
    }
    /// The memory node the device hangs on, if known.
    fn node(&self) -> Option<Node> {
        None
    }
}

impl<S: Store + ?Sized> Store for std::sync::Arc<S> {
    fn slots(&self) -> u64 {
        (**self).slots()
    }
    fn write(&self, ops: &[WriteOp<'_>], results: &mut [Result<(), IoError>]) {
        (**self).write(ops, results);
    }
    fn read(&self, ops: &mut [ReadOp<'_>], results: &mut [Result<(), IoError>]) {
        (**self).read(ops, results);
    }
    fn expect(&self, slots: &[Range<u64>]) {
        (**self).expect(slots);
    }
    fn discard(&self, slot: u64, slots: u64) -> Result<(), IoError> {
        (**self).discard(slot, slots)
    }
    fn wants_discard(&self) -> bool {
        (**self).wants_discard()
    }
    fn free_idle(&self) {
        (**self).free_idle();
    }
    fn rotational(&self) -> bool {
        (**self).rotational()
    }
    fn node(&self) -> Option<Node> {
        (**self).node()
    }
}

/// Shares a device's clusters among processes that each run an engine of their own.
///
/// A process allocates only in clusters it holds; after a fork the child may still read
/// slots of its parent's clusters, which the parent then must not reuse. Single-process
/// users pass none and hold everything.
pub trait Lender: Send + Sync {
    /// Takes one free cluster for this process, or says that none is left.
    fn acquire(&self) -> Option<ClusterIndex>;
    /// Gives an empty cluster back.
    fn release(&self, cluster: ClusterIndex);
    /// Whether a process other than this one may still read slots of `cluster`, which this
    /// process owns.
    fn has_readers(&self, cluster: ClusterIndex) -> bool;
    /// A count that grows after a process has ceased to read a cluster, whichever; it may grow at other times too. Of a
    /// cluster that had a reader after this was asked, one who finds the same count again need not ask.
    fn returned(&self) -> u64;
    /// This process no longer refers to any slot of `cluster`, which another process owns.
    fn stop_reading(&self, cluster: ClusterIndex);
    /// Has this process own `cluster`, of which it reads slots, if its owner has ended and nobody else reads it. False,
    /// and nothing changed, if not.
    fn adopt(&self, cluster: ClusterIndex) -> bool;
    /// Clusters nobody holds, a hint: some may have readers, and cannot be taken.
    fn free_clusters(&self) -> u64;
    /// Whether a process looked for a free cluster in vain, and none has come back since: empty ones
    /// are not to be kept.
    fn is_wanted(&self) -> bool;
}
