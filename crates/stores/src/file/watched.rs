//! Reads that a thread watches for.
//!
//! A device of tens of microseconds is done before a thread that sleeps has been woken. So where reads are short, a
//! thread of idle urgency looks for the end of its read itself (`ebb_sys::batch_reads`). On another thread, on a slow
//! device and without O_DIRECT a read is a plain one.
//!
//! A device is slow if reads that were watched for took longer than [`MOST`] in the mean. One in [`RETRIED`] is watched
//! for all the same, to see whether it still is.

use super::FileStore;
use ebb_sys::{clock, thread};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The longest that a thread watches. Beyond that its wake-up is a small part of what a read takes.
const MOST: Duration = Duration::from_micros(200);

/// Reads of a slow device of which one is watched for.
const RETRIED: u32 = 16;

/// How long a thread watched for reads of late. Concurrent updates may lose one.
pub struct ReadTimes {
    /// The mean of their times, in nanoseconds.
    mean: AtomicU64,
    /// Reads that were slept for.
    slept: AtomicU32,
}

impl ReadTimes {
    /// Nothing is known: short ones are assumed.
    pub const fn new() -> Self {
        Self {
            mean: AtomicU64::new(0),
            slept: AtomicU32::new(0),
        }
    }

    /// A read that was watched for took so long.
    fn took(&self, time: Duration) {
        let mean = self.mean.load(Relaxed);
        // One that was held up says little of the others.
        let ns = time.min(4 * MOST).as_nanos() as u64;
        self.mean.store(mean - mean / 16 + ns / 16, Relaxed);
    }

    fn are_short(&self) -> bool {
        self.mean.load(Relaxed) < MOST.as_nanos() as u64
    }

    /// Whether the next one is to be watched for.
    fn are_tried(&self) -> bool {
        self.are_short() || self.slept.fetch_add(1, Relaxed).is_multiple_of(RETRIED)
    }
}

impl FileStore {
    /// How long the calling thread is to watch for the end of its reads; not at all where that does not pay.
    pub(super) fn patience(&self) -> Duration {
        let pays = self.facts.direct
            && self.watches.load(Relaxed)
            && thread::gives_way()
            && self.read_times.are_tried();
        if pays { MOST } else { Duration::ZERO }
    }

    /// The calling thread waited for reads from this time on, with this patience.
    pub(super) fn waited(&self, patience: Duration, begun_ns: u64) {
        if !patience.is_zero() {
            let took = clock::monotonic_ns() - begun_ns;
            self.read_times.took(Duration::from_nanos(took));
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
    use ebb_sys::batch_reads::BatchReads;
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
    fn a_read_that_is_watched_takes_no_longer_than_one_that_is_slept_for() {
        if BatchReads::new().is_err() {
            return println!("skipped: no asynchronous reads");
        }
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
        // A processor that other programs keep busy has no halt to come back from. And some virtual machines read within the
        // call that submits, so that nobody waits. There the ways differ by the calls alone.
        for _ in 0..20 {
            let [slept, watched] = std::thread::scope(|scope| scope.spawn(reads).join().unwrap());
            println!("a read takes {slept:?} slept for, {watched:?} watched");
            if !store.read_times.are_short() {
                return println!("skipped in part: this disk is slow, and its reads are slept for");
            }
            if watched <= slept + slept / 16 {
                return;
            }
        }
        panic!("watching takes longer");
    }

    #[test]
    fn long_reads_are_not_watched_for() {
        let times = ReadTimes::new();
        let took = |time: Duration, reads| (0..reads).for_each(|_| times.took(time));
        assert!(times.are_short(), "nothing is known");
        took(MOST * 2, 100);
        assert!(!times.are_short());
        let tried = (0..10 * RETRIED).filter(|_| times.are_tried()).count();
        assert_eq!(tried, 10, "a few are, to see");
        took(MOST / 2, 100);
        assert!(times.are_short());
        // One that was held up decides nothing.
        took(Duration::from_secs(10), 1);
        assert!(times.are_short());
    }
}
