//! A store that fails as told, the same way each time for the same seed.
//!
//! Every operation of a batch has a number, in order of arrival. Whether a fault strikes it is a function
//! of seed, kind of fault and number (for `bad`, of the slot). So a sequence of operations by one thread
//! meets the same faults on every run.

mod faults;

pub use faults::{FAULTS_VARIABLE, Faults, FaultsError};

use ebb_engine::PAGE_SIZE;
use ebb_engine::env::{IoError, ReadOp, Store, WriteOp};
use faults::{Kind, mix};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A store that fails as told.
pub struct FaultyStore<S> {
    inner: S,
    faults: Faults,
    operations: AtomicU64,
    written: AtomicU64,
    injected: AtomicU64,
}

/// The outcome of one write.
enum Fate<'a> {
    /// It goes through.
    Pass,
    /// It goes through with these bytes instead.
    Instead(Vec<u8>),
    /// Its first bytes are written, and it fails.
    Torn(&'a [u8]),
    /// It is not done, with this answer.
    Not(Result<(), IoError>),
}

impl<S: Store> FaultyStore<S> {
    /// `inner`, with faults.
    pub fn new(inner: S, faults: Faults) -> Self {
        Self {
            inner,
            faults,
            operations: AtomicU64::new(0),
            written: AtomicU64::new(0),
            injected: AtomicU64::new(0),
        }
    }

    /// The store underneath.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// Faults that struck so far.
    pub fn injected(&self) -> u64 {
        self.injected.load(Relaxed)
    }

    /// Counts a fault that strikes with `fate`.
    fn struck<T>(&self, fate: T) -> T {
        self.injected.fetch_add(1, Relaxed);
        fate
    }

    /// The operation's number, or that the device is gone; sleeps if it is to be slow.
    fn next(&self) -> Result<u64, IoError> {
        let number = self.operations.fetch_add(1, Relaxed);
        if self.faults.gone_after.is_some_and(|after| number >= after) {
            return self.struck(Err(IoError::Device));
        }
        if self.faults.strikes(Kind::Delay, self.faults.delay, number) {
            std::thread::sleep(self.struck(self.faults.delay_for));
        }
        Ok(number)
    }

    fn bad(&self, first: u64, len: usize) -> bool {
        (first..first.saturating_add((len / PAGE_SIZE) as u64))
            .any(|slot| self.faults.strikes(Kind::Bad, self.faults.bad, slot))
    }

    fn flip(&self, number: u64, data: &mut [u8]) {
        if !data.is_empty() {
            let bit = mix(self.faults.seed, Kind::Position as u64, number) as usize;
            data[bit / 8 % data.len()] ^= 1 << (bit % 8);
        }
    }

    fn fate<'a>(&self, op: &WriteOp<'a>) -> Fate<'a> {
        let faults = &self.faults;
        let number = match self.next() {
            Ok(number) => number,
            Err(error) => return Fate::Not(Err(error)),
        };
        let len = op.data.len();
        let before = self.written.fetch_add(len as u64, Relaxed);
        if faults
            .enospc_after
            .is_some_and(|after| before + len as u64 > after)
        {
            return self.struck(Fate::Not(Err(IoError::NoSpace)));
        }
        if faults.strikes(Kind::Again, faults.again, number) {
            return self.struck(Fate::Not(Err(IoError::Again)));
        }
        if self.bad(op.slot, len) || faults.strikes(Kind::Write, faults.write, number) {
            return self.struck(Fate::Not(Err(IoError::Slot)));
        }
        if faults.strikes(Kind::Short, faults.short, number) {
            return self.struck(Fate::Torn(op.data));
        }
        if faults.strikes(Kind::Lost, faults.lost, number) {
            return self.struck(Fate::Not(Ok(())));
        }
        if faults.strikes(Kind::Rot, faults.rot, number) {
            let mut data = op.data.to_vec();
            self.flip(number, &mut data);
            return self.struck(Fate::Instead(data));
        }
        Fate::Pass
    }

    /// Writes the first half of `data`, the last page of it half old, half new.
    fn tear(&self, slot: u64, data: &[u8]) {
        let half = data.len() / 2;
        let pages = half.div_ceil(PAGE_SIZE) * PAGE_SIZE;
        let mut torn = data[..pages].to_vec();
        let last = pages.saturating_sub(PAGE_SIZE);
        let mut old = vec![0; pages - last];
        let mut result = [Ok(())];
        self.inner.read(
            &mut [ReadOp {
                slot: slot + (last / PAGE_SIZE) as u64,
                data: &mut old,
            }],
            &mut result,
        );
        torn[half..].copy_from_slice(&old[half - last..]);
        self.inner
            .write(&[WriteOp { slot, data: &torn }], &mut result);
    }
}

impl<S: Store> Store for FaultyStore<S> {
    fn slots(&self) -> u64 {
        self.inner.slots()
    }

    fn free_idle(&self) {
        self.inner.free_idle();
    }

    fn write(&self, ops: &[WriteOp<'_>], results: &mut [Result<(), IoError>]) {
        assert_eq!(ops.len(), results.len());
        let fates: Vec<_> = ops.iter().map(|op| self.fate(op)).collect();
        let mut pass = Vec::new();
        let mut places = Vec::new();
        for (i, (op, fate)) in ops.iter().zip(&fates).enumerate() {
            let data = match fate {
                Fate::Pass => op.data,
                Fate::Instead(data) => data,
                Fate::Torn(data) => {
                    self.tear(op.slot, data);
                    results[i] = Err(IoError::Slot);
                    continue;
                }
                Fate::Not(result) => {
                    results[i] = *result;
                    continue;
                }
            };
            pass.push(WriteOp {
                slot: op.slot,
                data,
            });
            places.push(i);
        }
        let mut outcome = vec![Ok(()); pass.len()];
        self.inner.write(&pass, &mut outcome);
        for (place, outcome) in places.into_iter().zip(outcome) {
            results[place] = outcome;
        }
    }

    fn read(&self, ops: &mut [ReadOp<'_>], results: &mut [Result<(), IoError>]) {
        assert_eq!(ops.len(), results.len());
        let numbers: Vec<_> = ops.iter().map(|_| self.next()).collect();
        self.inner.read(ops, results);
        for ((op, result), number) in ops.iter_mut().zip(results).zip(numbers) {
            let number = match number {
                Ok(number) => number,
                Err(error) => {
                    *result = Err(error);
                    continue;
                }
            };
            let faults = &self.faults;
            if faults.strikes(Kind::Again, faults.again, number) {
                *result = self.struck(Err(IoError::Again));
            } else if self.bad(op.slot, op.data.len())
                || faults.strikes(Kind::Read, faults.read, number)
            {
                *result = self.struck(Err(IoError::Slot));
            } else if faults.strikes(Kind::Corrupt, faults.corrupt, number) {
                self.flip(self.struck(number), op.data);
            }
        }
    }

    fn discard(&self, slot: u64, slots: u64) -> Result<(), IoError> {
        self.next()?;
        self.inner.discard(slot, slots)
    }

    crate::pass_through::pass_through!();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RamStore;
    use std::time::Duration;

    const SLOTS: u64 = 256;

    fn page(slot: u64) -> Vec<u8> {
        vec![slot as u8 ^ 0x5a; PAGE_SIZE]
    }

    /// Results and content of one run of 3000 operations.
    fn run(faults: &str) -> (Vec<Result<(), IoError>>, Vec<Vec<u8>>, u64) {
        let store = FaultyStore::new(RamStore::new(SLOTS), faults.parse().unwrap());
        let (mut seen, mut contents) = (Vec::new(), Vec::new());
        for i in 0..1500u64 {
            let slot = i * 7 % SLOTS;
            let data = page(slot);
            let mut results = [Ok(())];
            store.write(&[WriteOp { slot, data: &data }], &mut results);
            seen.push(results[0]);
            let mut data = vec![0; PAGE_SIZE];
            store.read(
                &mut [ReadOp {
                    slot,
                    data: &mut data,
                }],
                &mut results,
            );
            seen.push(results[0]);
            contents.push(data);
        }
        (seen, contents, store.injected())
    }

    #[test]
    fn the_same_seed_replays_exactly() {
        let faults =
            "read=1/20,write=1/30,short=1/40,corrupt=1/10,rot=1/50,lost=1/60,bad=1/90,seed=";
        let first = run(&format!("{faults}7"));
        assert!(first.2 > 100);
        assert!(first == run(&format!("{faults}7")));
        assert!(
            first != run(&format!("{faults}8")),
            "the seed changes nothing"
        );
    }

    #[test]
    fn rates_are_kept_roughly() {
        let (seen, _, injected) = run("write=1/10");
        let failed = seen
            .iter()
            .filter(|result| **result == Err(IoError::Slot))
            .count() as u64;
        assert!(
            failed >= injected && (80..300).contains(&injected),
            "{injected}"
        );
    }

    #[test]
    fn corrupt_and_rot_flip_one_bit() {
        for faults in ["corrupt=1/1", "rot=1/1"] {
            let (seen, contents, _) = run(faults);
            assert!(seen.iter().all(Result::is_ok));
            for (i, content) in contents.iter().enumerate() {
                let want = page(i as u64 * 7 % SLOTS);
                let flipped: u32 = content
                    .iter()
                    .zip(&want)
                    .map(|(a, b)| (a ^ b).count_ones())
                    .sum();
                assert_eq!(flipped, 1, "{faults}");
            }
        }
    }

    #[test]
    fn gone_stays_gone() {
        let (seen, _, _) = run("gone-after=100");
        assert!(seen[..100].iter().all(Result::is_ok));
        assert!(
            seen[100..]
                .iter()
                .all(|result| *result == Err(IoError::Device))
        );
    }

    #[test]
    fn space_ends() {
        let (seen, _, _) = run("enospc-after=40K");
        let writes: Vec<_> = seen.iter().step_by(2).collect();
        assert!(writes[..10].iter().all(|result| result.is_ok()));
        assert!(
            writes[10..]
                .iter()
                .all(|result| **result == Err(IoError::NoSpace))
        );
    }

    #[test]
    fn a_short_write_leaves_half_and_says_so() {
        let store = FaultyStore::new(RamStore::new(8), "short=1/1".parse().unwrap());
        let old = vec![1; 3 * PAGE_SIZE];
        let mut results = [Ok(())];
        store.inner().write(
            &[WriteOp {
                slot: 0,
                data: &old,
            }],
            &mut results,
        );
        let new = vec![2; 3 * PAGE_SIZE];
        store.write(
            &[WriteOp {
                slot: 0,
                data: &new,
            }],
            &mut results,
        );
        assert_eq!(results[0], Err(IoError::Slot));
        let mut data = vec![0; 3 * PAGE_SIZE];
        store.inner().read(
            &mut [ReadOp {
                slot: 0,
                data: &mut data,
            }],
            &mut results,
        );
        let half = 3 * PAGE_SIZE / 2;
        assert!(data[..half].iter().all(|byte| *byte == 2));
        assert!(data[half..].iter().all(|byte| *byte == 1));
    }

    #[test]
    fn a_lost_write_says_it_worked() {
        let (seen, contents, _) = run("lost=1/1");
        assert!(seen.iter().step_by(2).all(Result::is_ok));
        assert!(contents.iter().flatten().all(|byte| *byte == 0));
    }

    #[test]
    fn delays_delay() {
        let store = FaultyStore::new(RamStore::new(8), "delay=1/1:20ms".parse().unwrap());
        let start = std::time::Instant::now();
        store.write(
            &[WriteOp {
                slot: 0,
                data: &page(0),
            }],
            &mut [Ok(())],
        );
        assert!(start.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn refusals_say_what_is_allowed() {
        for (text, says) in [
            ("nonsense", "unknown fault \"nonsense\": allowed are read"),
            ("reed=1/2", "unknown fault"),
            ("read=2", "like 1/1000"),
            ("read=1/0", "like 1/1000"),
            ("read=3/2", "like 1/1000"),
            ("delay=1/2", "like 1/100:5ms"),
            ("delay=1/2:5h", "like 1/100:5ms"),
            ("gone-after=soon", "a whole number"),
            ("enospc-after=64", "has no unit"),
            ("enospc-after=5%", "a size like 64M"),
        ] {
            let error = text.parse::<Faults>().expect_err(text).to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
        assert_eq!("".parse(), Ok(Faults::default()));
    }
}
