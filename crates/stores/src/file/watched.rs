//! Reads that a thread watches for.
//!
//! A device of tens of microseconds is done before a thread that sleeps has been woken. So where reads are short, a
//! thread that gives way to every other looks for the end of its read itself (`ebb_sys::watched_read`). On another
//! thread, on a slow device and without O_DIRECT a read is a plain one.
//!
//! ```text
//! watched  =>  the reads of late took less than MOST in the mean
//! ```
//!
//! Not here: batches through io_uring, and reads ahead, which nobody waits for.

use super::FileStore;
use super::lane::LaneReader;
use ebb_sys::watched_read::WatchedReader;
use ebb_sys::{clock, thread};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::io::IoSliceMut;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The longest that a thread watches. Beyond that its wake-up is a small part of what a read takes.
const MOST: Duration = Duration::from_micros(200);

/// How long reads took of late: their mean, in nanoseconds. Concurrent updates may lose one.
pub struct ReadTimes(AtomicU64);

impl ReadTimes {
    /// Nothing is known: short ones are assumed.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    fn took(&self, ns: u64) {
        let mean = self.0.load(Relaxed);
        // One that was held up says little of the others.
        let ns = ns.min(8 * MOST.as_nanos() as u64);
        self.0.store(mean - mean / 16 + ns / 16, Relaxed);
    }

    fn are_short(&self) -> bool {
        self.0.load(Relaxed) < MOST.as_nanos() as u64
    }
}

impl FileStore {
    /// Reads a run; watches for its end where that pays.
    pub(super) fn read_run(
        &self,
        fd: BorrowedFd<'_>,
        reader: Option<&mut LaneReader>,
        data: &mut [IoSliceMut<'_>],
        offset: u64,
    ) -> Result<usize, Errno> {
        if !self.facts.direct || !thread::gives_way() {
            return rustix::io::preadv(fd, data, offset);
        }
        let begun = clock::monotonic_ns();
        let reader = reader.filter(|_| self.read_times.are_short());
        let watched = reader.and_then(LaneReader::get).and_then(|reader| {
            match reader.read(fd, data, offset, MOST) {
                // Not taken: it goes the other way.
                Err(Errno::AGAIN) => None,
                read => Some(read),
            }
        });
        let read = watched.unwrap_or_else(|| rustix::io::preadv(fd, data, offset));
        self.read_times.took(clock::monotonic_ns() - begun);
        read
    }
}

impl LaneReader {
    /// The reader, if there is one or can be.
    fn get(&mut self) -> Option<&mut WatchedReader> {
        if let Self::Untried = self {
            *self = WatchedReader::new().map_or(Self::Refused, Self::Ready);
        }
        match self {
            Self::Ready(reader) => Some(reader),
            _ => None,
        }
    }

    /// In a forked child: the reader is the parent's.
    pub(super) fn abandon(&mut self) {
        if let Self::Ready(reader) = std::mem::replace(self, Self::Untried) {
            reader.abandon();
        }
    }
}
