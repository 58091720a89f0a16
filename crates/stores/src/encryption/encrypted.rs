//! Encryption of what a store holds: AES-256 in XTS mode, as disks are encrypted.
//!
//! Each page is one XTS sector; its tweak is the slot and the device number, so the same
//! page looks different in every slot of every device. Which key it is encrypted with, and where keys
//! are, says [`super::keyring`]. There is no authentication here: the engine keeps a keyed checksum of
//! every page in RAM, which whoever can write the device cannot reach.
//!
//! A write is encrypted into a preallocated buffer and goes on from there, a read is
//! decrypted where it arrived. The buffers are taken as in [`crate::FileStore`]: tried,
//! never waited for, with a page of the stack as the last resort.

use super::key_id::KeyId;
use super::keyring::Keyring;
use super::slot_keys::SlotKeys;
use super::xts::Tweak;
use crate::file::{BOUNCE_PAGES, LANES};
use crate::transfer::batch::{Cursor, PIECES, Piece, Round, Shape};
use crate::transfer::bounce::{Bounce, StackPage};
use crate::transfer::one_by_one::OneByOne;
use ebb_engine::PAGE_SIZE;
use ebb_engine::env::{IoError, ReadOp, Store, WriteOp};
use std::sync::{Arc, Mutex, TryLockError};

/// A store whose slots hold nothing readable without the keys.
pub struct Encrypted<S> {
    inner: S,
    keyring: Arc<Keyring>,
    slot_keys: Arc<SlotKeys>,
    device: u64,
    lanes: [Mutex<Bounce>; LANES],
}

impl<S: Store> Encrypted<S> {
    /// Encrypts what goes to `inner`. `device` must differ between devices that share a ring.
    pub fn new(inner: S, keyring: Arc<Keyring>, device: u64) -> Self {
        Self {
            slot_keys: Arc::new(SlotKeys::new(inner.slots())),
            inner,
            keyring,
            device,
            lanes: std::array::from_fn(|_| Mutex::new(Bounce::new(BOUNCE_PAGES))),
        }
    }

    /// The store underneath.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// Which key each slot was written with.
    pub fn slot_keys(&self) -> &Arc<SlotKeys> {
        &self.slot_keys
    }

    fn tweak(&self, slot: u64) -> Tweak {
        let mut tweak = [0; 16];
        tweak[..8].copy_from_slice(&slot.to_le_bytes());
        tweak[8..].copy_from_slice(&self.device.to_le_bytes());
        tweak
    }

    /// Puts the pieces of a round into the buffer, encrypted; false if there is no such key.
    fn encrypt(&self, key: KeyId, buffer: &mut [u8], round: &Round, ops: &[WriteOp<'_>]) -> bool {
        let mut open = self.keyring.open();
        let Some(cipher) = open.cipher(key) else {
            return false;
        };
        for piece in round.pieces() {
            let at = piece.bounce.unwrap_or(0);
            let data = &mut buffer[at..at + piece.len];
            data.copy_from_slice(&ops[piece.op].data[piece.range()]);
            let first = ops[piece.op].slot + (piece.at / PAGE_SIZE) as u64;
            let pages = (piece.len / PAGE_SIZE) as u64;
            self.slot_keys.set(first..first + pages, key);
            cipher.encrypt(data, |page| self.tweak(first + page));
        }
        true
    }

    /// Pages that this process neither wrote nor inherited stay as they were read: no checksum matches
    /// them.
    fn decrypt(&self, ops: &mut [ReadOp<'_>], results: &[Result<(), IoError>]) {
        let mut open = self.keyring.open();
        for (op, _) in ops.iter_mut().zip(results).filter(|(_, r)| r.is_ok()) {
            let end = op.slot + (op.data.len() / PAGE_SIZE) as u64;
            for (run, key) in self.slot_keys.runs(op.slot..end) {
                let at = |slot: u64| (slot - op.slot) as usize * PAGE_SIZE;
                let bytes = at(run.start)..at(run.end);
                if let Some(cipher) = key.and_then(|key| open.cipher(key)) {
                    let data = &mut op.data[bytes];
                    cipher.decrypt(data, |page| self.tweak(run.start + page));
                }
            }
        }
    }

    fn with_buffer(&self, f: impl FnOnce(&mut [u8])) {
        for lane in &self.lanes {
            match lane.try_lock() {
                Ok(mut bounce) => return f(bounce.get()),
                Err(TryLockError::Poisoned(bounce)) => return f(bounce.into_inner().get()),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        f(&mut StackPage([0; PAGE_SIZE]).0);
    }

    fn write_round(
        &self,
        key: KeyId,
        buffer: &mut [u8],
        round: &Round,
        ops: &[WriteOp<'_>],
        results: &mut [Result<(), IoError>],
    ) {
        if !self.encrypt(key, buffer, round, ops) {
            for piece in round.pieces() {
                results[piece.op] = Err(IoError::NoSpace);
            }
            return;
        }
        // The pieces of a run lie side by side in the buffer too, so it goes as one.
        let runs = round.runs();
        let mut batch = [WriteOp { slot: 0, data: &[] }; PIECES];
        let mut at = 0;
        for (op, run) in batch.iter_mut().zip(runs) {
            op.slot = run.offset / PAGE_SIZE as u64;
            op.data = &buffer[at..at + run.len];
            at += run.len;
        }
        let mut outcome = [Ok(()); PIECES];
        self.inner
            .write(&batch[..runs.len()], &mut outcome[..runs.len()]);
        for (run, outcome) in runs.iter().zip(outcome) {
            let pieces = &round.pieces()[run.pieces()];
            match (outcome, pieces) {
                (Ok(()), _) => {}
                (Err(error), [piece]) => results[piece.op] = Err(error),
                (Err(_), pieces) => self.write_each(buffer, pieces, ops, results),
            }
        }
    }

    /// Writes the pieces of a run that failed, each by itself: one of them may have failed alone, and those before it are
    /// good.
    fn write_each(
        &self,
        buffer: &[u8],
        pieces: &[Piece],
        ops: &[WriteOp<'_>],
        results: &mut [Result<(), IoError>],
    ) {
        let mut singly = OneByOne::new();
        for piece in pieces {
            let at = piece.bounce.unwrap_or(0);
            let op = WriteOp {
                slot: ops[piece.op].slot + (piece.at / PAGE_SIZE) as u64,
                data: &buffer[at..at + piece.len],
            };
            let written = singly.make(|| {
                let mut alone = [Ok(())];
                self.inner.write(&[op], &mut alone);
                alone[0]
            });
            results[piece.op] = results[piece.op].and(written);
        }
    }
}

impl<S: Store> Store for Encrypted<S> {
    fn slots(&self) -> u64 {
        self.inner.slots()
    }

    fn free_idle(&self) {
        for lane in &self.lanes {
            if let Ok(mut bounce) = lane.try_lock() {
                bounce.free_idle();
            }
        }
        self.inner.free_idle();
    }

    fn write(&self, ops: &[WriteOp<'_>], results: &mut [Result<(), IoError>]) {
        assert_eq!(ops.len(), results.len());
        let slots = self.inner.slots();
        let shape = |i: usize| {
            let WriteOp { slot, data } = ops[i];
            let end = slot.checked_add((data.len() / PAGE_SIZE) as u64)?;
            let whole = !data.is_empty() && data.len().is_multiple_of(PAGE_SIZE);
            (whole && end <= slots).then(|| Shape {
                offset: slot * PAGE_SIZE as u64,
                len: data.len(),
                direct: false,
            })
        };
        for (i, result) in results.iter_mut().enumerate() {
            *result = shape(i).map(|_| ()).ok_or(IoError::Request);
        }
        // Without a key nothing is written; there may be one later.
        let Ok(key) = self.keyring.writing() else {
            return results.fill(Err(IoError::NoSpace));
        };
        self.with_buffer(|buffer| {
            let mut cursor = Cursor::default();
            while let Some(round) = Round::next(&mut cursor, ops.len(), buffer.len(), shape) {
                self.write_round(key, buffer, &round, ops, results);
            }
        });
    }

    fn read(&self, ops: &mut [ReadOp<'_>], results: &mut [Result<(), IoError>]) {
        self.inner.read(ops, results);
        self.decrypt(ops, results);
    }

    fn discard(&self, slot: u64, slots: u64) -> Result<(), IoError> {
        self.inner.discard(slot, slots)
    }

    crate::pass_through::pass_through!();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Faults, FaultyStore, RamStore};
    use proptest::prelude::*;
    use std::sync::Arc;

    fn encrypted<S: Store>(inner: S, device: u64) -> Encrypted<S> {
        Encrypted::new(inner, Arc::default(), device)
    }

    fn write(store: &dyn Store, slot: u64, data: &[u8]) -> Result<(), IoError> {
        let mut results = [Ok(())];
        store.write(&[WriteOp { slot, data }], &mut results);
        results[0]
    }

    fn read(store: &dyn Store, slot: u64, pages: usize) -> Vec<u8> {
        let mut data = vec![0; pages * PAGE_SIZE];
        let mut results = [Ok(())];
        store.read(
            &mut [ReadOp {
                slot,
                data: &mut data,
            }],
            &mut results,
        );
        assert_eq!(results[0], Ok(()));
        data
    }

    proptest! {
        #[test]
        fn reads_return_what_was_written(
            batches in proptest::collection::vec(
                proptest::collection::vec((0..300u64, 1..90usize, any::<u8>()), 1..70), 1..4),
        ) {
            let store = encrypted(RamStore::new(300), 3);
            let mut model = vec![None; 300];
            for batch in batches {
                let data: Vec<_> = batch.iter().map(|op| vec![op.2; op.1 * PAGE_SIZE]).collect();
                let mut taken = vec![false; 400];
                let ops: Vec<_> = batch.iter().zip(&data).filter_map(|(&(slot, pages, _), data)| {
                    let range = slot as usize..slot as usize + pages;
                    let free = range.clone().all(|slot| !taken[slot]);
                    taken[range].fill(true);
                    free.then_some(WriteOp { slot, data })
                }).collect();
                let mut results = vec![Ok(()); ops.len()];
                store.write(&ops, &mut results);
                for (op, result) in ops.iter().zip(results) {
                    let range = op.slot as usize..op.slot as usize + op.data.len() / PAGE_SIZE;
                    prop_assert_eq!(result.is_ok(), range.end <= 300);
                    if result.is_ok() {
                        model[range].fill(Some(op.data[0]));
                    }
                }
            }
            for (slot, byte) in model.into_iter().enumerate() {
                if let Some(byte) = byte {
                    prop_assert!(read(&store, slot as u64, 1).iter().all(|b| *b == byte));
                }
            }
        }
    }

    #[test]
    fn nothing_readable_lies_below_and_no_two_places_look_alike() {
        let ram = Arc::new(RamStore::new(8));
        let other = Arc::new(RamStore::new(8));
        let data = vec![0x41; 2 * PAGE_SIZE];
        let keyring = Arc::<Keyring>::default();
        let store = Encrypted::new(ram.clone(), keyring.clone(), 0);
        write(&store, 2, &data).unwrap();
        write(&Encrypted::new(other.clone(), keyring, 1), 2, &data).unwrap();
        let below = read(&ram, 2, 2);
        assert!(below.windows(8).all(|bytes| bytes != [0x41; 8]));
        assert!(below[..PAGE_SIZE] != below[PAGE_SIZE..], "slots alike");
        assert!(below != read(&other, 2, 2), "devices alike");
        assert!(read(&store, 2, 2) == data);
        // Another process, which has written to the same slots of its own device.
        let others = Arc::new(RamStore::new(8));
        let another = encrypted(others.clone(), 0);
        write(&another, 2, &data).unwrap();
        write(&others, 2, &read(&ram, 2, 2)).unwrap();
        assert!(read(&another, 2, 2) != data, "another key reads it");
    }

    #[test]
    fn an_error_is_told_of_the_operation_that_failed() {
        let faults: Faults = "bad=1/4,seed=3".parse().unwrap();
        let ram = Arc::new(RamStore::new(256));
        let plain = FaultyStore::new(ram.clone(), faults);
        let alone: Vec<_> = (0..64)
            .map(|slot| write(&plain, slot, &[1; PAGE_SIZE]))
            .collect();
        assert!(alone.iter().any(Result::is_err) && alone.iter().any(Result::is_ok));
        let store = encrypted(FaultyStore::new(ram, faults), 0);
        let page = [1; PAGE_SIZE];
        let ops: Vec<_> = (0..64).map(|slot| WriteOp { slot, data: &page }).collect();
        let mut results = vec![Ok(()); 64];
        store.write(&ops, &mut results);
        assert_eq!(results, alone);
    }

    /// Refuses transfers of more than a page, and has room for so many pages.
    struct Narrow {
        ram: RamStore,
        room: std::sync::atomic::AtomicUsize,
    }

    impl Store for Narrow {
        fn slots(&self) -> u64 {
            self.ram.slots()
        }
        fn write(&self, ops: &[WriteOp<'_>], results: &mut [Result<(), IoError>]) {
            use std::sync::atomic::Ordering::SeqCst;
            for (op, result) in ops.iter().zip(results) {
                let less = |room: usize| room.checked_sub(1);
                *result = match op.data.len() {
                    PAGE_SIZE if self.room.fetch_update(SeqCst, SeqCst, less).is_err() => {
                        Err(IoError::NoSpace)
                    }
                    PAGE_SIZE => write(&self.ram, op.slot, op.data),
                    _ => Err(IoError::Request),
                };
            }
        }
        fn read(&self, ops: &mut [ReadOp<'_>], results: &mut [Result<(), IoError>]) {
            self.ram.read(ops, results);
        }
        fn discard(&self, slot: u64, slots: u64) -> Result<(), IoError> {
            self.ram.discard(slot, slots)
        }
    }

    /// Operations on neighbouring slots go as one transfer. The error of that is no operation's.
    #[test]
    fn a_refused_transfer_is_tried_again_page_by_page() {
        for room in [64, 20] {
            let ram = RamStore::new(64);
            let room_left = room.into();
            let store = encrypted(
                Narrow {
                    ram,
                    room: room_left,
                },
                0,
            );
            let page = [1; PAGE_SIZE];
            let ops: Vec<_> = (0..64).map(|slot| WriteOp { slot, data: &page }).collect();
            let mut results = vec![Ok(()); 64];
            store.write(&ops, &mut results);
            let (good, full) = results.split_at(room);
            assert!(good.iter().all(Result::is_ok), "{results:?}");
            assert!(full.iter().all(|result| *result == Err(IoError::NoSpace)));
            assert!(read(&store, 0, room).iter().all(|byte| *byte == 1));
        }
    }

    #[test]
    fn more_threads_than_lanes() {
        let store = encrypted(RamStore::new(12 * 64), 0);
        std::thread::scope(|scope| {
            for thread in 0..12u64 {
                let store = &store;
                scope.spawn(move || {
                    for round in 0..8 {
                        let data = vec![(thread * 8 + round) as u8; 64 * PAGE_SIZE];
                        write(store, thread * 64, &data).unwrap();
                        assert!(read(store, thread * 64, 64) == data);
                    }
                });
            }
        });
    }
}
