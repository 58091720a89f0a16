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
    /// How long the calling thread is to watch for the end of a read; not at all where that does not pay.
    pub(super) fn patience(&self) -> Duration {
        let pays = self.facts.direct
            && self.watches.load(Relaxed)
            && self.read_times.are_short()
            && thread::gives_way();
        if pays { MOST } else { Duration::ZERO }
    }

    /// Reads a run; watches for its end where that pays.
    pub(super) fn read_run(
        &self,
        fd: BorrowedFd<'_>,
        reader: Option<&mut LaneReader>,
        data: &mut [IoSliceMut<'_>],
        offset: u64,
    ) -> Result<usize, Errno> {
        let begun = clock::monotonic_ns();
        let patience = self.patience();
        let watched = reader
            .filter(|_| !patience.is_zero())
            .and_then(LaneReader::get)
            .map(|reader| reader.read(fd, data, offset, patience))
            // Not taken: it goes the other way.
            .filter(|read| *read != Err(Errno::AGAIN));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Facts;
    use ebb_engine::PAGE_SIZE;
    use ebb_engine::env::{ReadOp, Store};
    use ebb_engine::random::Random;
    use rustix::fs::OFlags;
    use std::os::unix::fs::FileExt;
    use std::time::Instant;

    const SLOTS: u64 = 4096;

    #[repr(align(4096))]
    struct Page([u8; PAGE_SIZE]);

    /// A file past the page cache, each page full of its number.
    fn file() -> Option<std::fs::File> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::DIRECT;
        let file = std::fs::File::from(rustix::fs::open("/var/tmp", flags, 0o600.into()).ok()?);
        let mut page = Page([0; PAGE_SIZE]);
        for slot in 0..SLOTS {
            page.0.fill(slot as u8);
            file.write_all_at(&page.0, slot * PAGE_SIZE as u64).ok()?;
        }
        Some(file)
    }

    fn read(store: &FileStore, slot: u64) -> Duration {
        let mut page = Page([0; PAGE_SIZE]);
        let mut result = [Ok(())];
        let begun = Instant::now();
        let data = &mut page.0;
        store.read(&mut [ReadOp { slot, data }], &mut result);
        let took = begun.elapsed();
        assert!(
            result == [Ok(())] && page.0 == [slot as u8; PAGE_SIZE],
            "slot {slot}"
        );
        took
    }

    #[test]
    fn a_read_that_is_watched_takes_less_than_one_that_is_slept_for() {
        let Some(file) = file() else {
            return println!("skipped: no O_DIRECT in /var/tmp");
        };
        let mut facts = Facts::new(SLOTS);
        facts.direct = true;
        let store = FileStore::from_fd(file.into(), facts);
        let reads = || {
            thread::set_urgency(0, thread::Urgency::Idle).expect("anyone may give way");
            let mut random = Random::new(1);
            let mut times = [const { Vec::new() }; 2];
            for _ in 0..500 {
                for (watches, times) in [false, true].into_iter().zip(&mut times) {
                    store.set_watches(watches);
                    times.push(read(&store, random.below(SLOTS as usize) as u64));
                }
            }
            times.map(|mut times| {
                times.sort_unstable();
                times[times.len() / 2]
            })
        };
        // A processor that other programs keep busy has no halt to come back from.
        for _ in 0..20 {
            let [slept, watched] = std::thread::scope(|scope| scope.spawn(reads).join().unwrap());
            println!("a read takes {slept:?} slept for, {watched:?} watched");
            if !store.read_times.are_short() {
                return println!("skipped in part: this disk is slow, and its reads are slept for");
            }
            if watched.mul_f64(1.1) < slept {
                return;
            }
        }
        panic!("watching saves less than a tenth");
    }

    #[test]
    fn long_reads_are_not_watched_for() {
        let times = ReadTimes::new();
        let took =
            |time: Duration, reads| (0..reads).for_each(|_| times.took(time.as_nanos() as u64));
        assert!(times.are_short(), "nothing is known");
        took(MOST * 2, 100);
        assert!(!times.are_short());
        took(MOST / 2, 100);
        assert!(times.are_short());
        // One that was held up decides nothing.
        took(Duration::from_secs(10), 1);
        assert!(times.are_short());
    }
}
