//! A store that waits with reads for memory of the system.
//!
//! A control group that is full, or the system, may have no memory for a transfer at a moment. Of a read that
//! is no word on the data: given up, the page would be lost. So the reading thread naps and reads again, for
//! [`LONGEST`] in all. A write is told so at once: its page stays in memory, and is tried again later.
//!
//! No lane and no descriptor of the file is held meanwhile.

use ebb_engine::env::{IoError, ReadOp, Store, WriteOp};
use ebb_sys::clock;
use std::time::Duration;

/// How long a batch of reads waits: as long as a program waits for memory elsewhere before it is ended.
const LONGEST: Duration = Duration::from_secs(10);
/// The first nap; each is twice as long as the one before.
const FIRST_NAP: Duration = Duration::from_millis(1);
/// The longest nap.
const LONGEST_NAP: Duration = Duration::from_millis(64);

/// See the module.
pub struct Patient<S> {
    inner: S,
    longest: Duration,
}

impl<S: Store> Patient<S> {
    /// `inner`, whose reads wait for memory.
    pub const fn new(inner: S) -> Self {
        Self {
            inner,
            longest: LONGEST,
        }
    }
}

impl<S: Store> Store for Patient<S> {
    fn slots(&self) -> u64 {
        self.inner.slots()
    }

    fn free_idle(&self) {
        self.inner.free_idle();
    }

    fn write(&self, ops: &[WriteOp<'_>], results: &mut [Result<(), IoError>]) {
        self.inner.write(ops, results);
    }

    fn read(&self, ops: &mut [ReadOp<'_>], results: &mut [Result<(), IoError>]) {
        self.inner.read(ops, results);
        let again = Err(IoError::Again);
        if !results.contains(&again) {
            return;
        }
        let until = clock::monotonic_ns() + self.longest.as_nanos() as u64;
        let mut nap = FIRST_NAP;
        while results.contains(&again) && clock::monotonic_ns() < until {
            std::thread::sleep(nap);
            nap = LONGEST_NAP.min(nap * 2);
            for (op, result) in ops.iter_mut().zip(&mut *results) {
                if *result == again {
                    let (op, result) = (std::slice::from_mut(op), std::slice::from_mut(result));
                    self.inner.read(op, result);
                }
            }
        }
    }

    fn discard(&self, slot: u64, slots: u64) -> Result<(), IoError> {
        self.inner.discard(slot, slots)
    }

    crate::pass_through::pass_through!();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FaultyStore, RamStore};
    use ebb_engine::PAGE_SIZE;

    const SLOTS: u64 = 64;

    /// A device full of pages of their numbers.
    fn device(faults: &str) -> Patient<FaultyStore<RamStore>> {
        let ram = RamStore::new(SLOTS);
        for slot in 0..SLOTS {
            let data = &[slot as u8; PAGE_SIZE];
            ram.write(&[WriteOp { slot, data }], &mut [Ok(())]);
        }
        Patient::new(FaultyStore::new(ram, faults.parse().unwrap()))
    }

    fn read_all(device: &dyn Store) -> (Vec<[u8; PAGE_SIZE]>, Vec<Result<(), IoError>>) {
        let mut pages = vec![[0xee; PAGE_SIZE]; SLOTS as usize];
        let mut results = vec![Ok(()); SLOTS as usize];
        let ops = (0..).zip(&mut pages);
        let mut ops: Vec<_> = ops.map(|(slot, data)| ReadOp { slot, data }).collect();
        device.read(&mut ops, &mut results);
        drop(ops);
        (pages, results)
    }

    #[test]
    fn reads_wait_for_memory() {
        let device = device("again=2/3,seed=3");
        let (pages, results) = read_all(&device);
        assert!(results.iter().all(Result::is_ok), "{results:?}");
        assert!(
            (0..)
                .zip(&pages)
                .all(|(slot, page)| *page == [slot; PAGE_SIZE])
        );
        assert!(device.inner.injected() > SLOTS, "they went through at once");
    }

    #[test]
    fn other_errors_are_told_at_once() {
        let device = device("read=1/1");
        let (_, results) = read_all(&device);
        assert!(results.iter().all(|result| *result == Err(IoError::Slot)));
        assert_eq!(device.inner.injected(), SLOTS);
    }

    #[test]
    fn a_read_does_not_wait_for_ever() {
        let mut device = device("again=1/1");
        device.longest = Duration::from_millis(20);
        let (_, results) = read_all(&device);
        assert!(results.iter().all(|result| *result == Err(IoError::Again)));
        assert!(device.inner.injected() >= 2 * SLOTS);
    }

    #[test]
    fn writes_do_not_wait() {
        let device = device("again=1/1");
        let mut results = [Ok(())];
        let data = &[1; PAGE_SIZE];
        device.write(&[WriteOp { slot: 0, data }], &mut results);
        assert_eq!(results, [Err(IoError::Again)]);
        assert_eq!(device.inner.injected(), 1);
    }
}
