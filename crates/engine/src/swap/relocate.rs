//! The slot allocator's requests to the entries: to give up the slots of cached ones, and to move a
//! slot's content to another slot, or into the pool if there is none.

use super::coders::Coders;
use super::device_io::set_cache_only;
use super::slot_format::{place, single, verify};
use super::write_batch::{Retry, write_runs};
use super::{CodecKind, CountersRef};
use crate::codec::Codec;
use crate::entries::{CLUSTER_ENTRIES, Dense, EntryWord, Location, SlotPlace, Space};
use crate::env::{IoError, ReadOp, Store, Topology, WriteOp};
use crate::pool::{Object, Pool};
use crate::slots::{CacheReclaim, Devices, Extent, Moved, Mover};
use crate::{Checksums, Cpu, EntryId, PAGE_SIZE};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// The entries, as the devices see them. The devices hold this, so it does not hold them.
pub struct Relocator {
    pub space: Arc<Space>,
    pub devices: Weak<Devices>,
    pub topology: Arc<dyn Topology>,
    pub pool: Arc<Pool>,
    pub coders: Arc<Coders>,
    pub codec: CodecKind,
    pub counters: CountersRef,
    pub checksums: Checksums,
    /// Pages that may be put into the pool: see `Swap::let_drained_into_pool`.
    pub allowance: Arc<AtomicU64>,
}

impl CacheReclaim for Relocator {
    fn reclaim(&self, owner: EntryId) -> bool {
        let (Some(devices), Some(mut locked)) =
            (self.devices.upgrade(), self.space.lock_if_used(owner))
        else {
            return false;
        };
        let word = locked.word();
        let Location::Slot(place) = word.location() else {
            return false;
        };
        if !word.cached() || word.busy() {
            return false;
        }
        locked.set(word.dropped());
        drop(locked);
        let freed = devices.free_now(self.topology.cpu(), owner, single(place));
        freed.is_ok()
    }
}

impl Relocator {
    /// The words of consecutive entries of one cluster, if they name the slots of `from`.
    fn words(&self, owner: EntryId, from: Extent) -> Option<Vec<EntryWord>> {
        let mut locked = self.space.lock_if_used(owner)?;
        (0..u32::from(from.len))
            .map(|i| {
                locked.seek(owner.plus(i));
                let word = locked.word();
                names(word, from, i).then_some(word)
            })
            .collect()
    }

    /// Reads the slots of `from`, each page checked against its word; twice if need be.
    fn read_checked(
        &self,
        store: &dyn Store,
        from: Extent,
        words: &[EntryWord],
    ) -> Result<Vec<u8>, Moved> {
        let mut data = vec![0u8; words.len() * PAGE_SIZE];
        for _ in 0..2 {
            let mut result = [Err(IoError::Device)];
            store.read(
                &mut [ReadOp {
                    slot: u64::from(from.start.0),
                    data: &mut data,
                }],
                &mut result,
            );
            if result[0] == Err(IoError::Again) {
                return Err(Moved::Later);
            }
            let good = result[0].is_ok()
                && data
                    .as_chunks::<PAGE_SIZE>()
                    .0
                    .iter()
                    .zip(words)
                    .all(|(slot, &word)| verify(self.checksums, word, slot).is_some());
            if good {
                return Ok(data);
            }
        }
        Err(Moved::Failed)
    }

    /// The words of the entries that name the slots of `from`, and what these hold. Damaged pages are not moved: a
    /// copy would carry the damage on, and give up the chance that it was the transfer.
    fn read_source(
        &self,
        devices: &Devices,
        owner: EntryId,
        from: Extent,
    ) -> Result<(Vec<EntryWord>, Vec<u8>), Moved> {
        let words = self.words(owner, from).ok_or(Moved::Gone)?;
        let source = devices.store(from.device).ok_or(Moved::Failed)?;
        let data = self.read_checked(&*source, from, &words)?;
        Ok((words, data))
    }
}

impl Relocator {
    /// Moves one slot's content into the pool.
    fn to_pool(&self, devices: &Devices, cpu: Cpu, owner: EntryId, from: Extent) -> Moved {
        let take = |left: u64| left.checked_sub(1);
        if self.codec == CodecKind::None
            || from.len != 1
            || self.allowance.fetch_update(Relaxed, Relaxed, take).is_err()
        {
            return Moved::NoPlace;
        }
        let (words, data) = match self.read_source(devices, owner, from) {
            Ok(read) => read,
            Err(not_moved) => {
                self.allowance.fetch_add(1, Relaxed);
                return not_moved;
            }
        };
        let Some((page, (codec, len))) = data
            .first_chunk::<PAGE_SIZE>()
            .and_then(|page| Some((page, verify(self.checksums, words[0], page)?)))
        else {
            return Moved::Failed;
        };
        // A page written as it was may never have been compressed.
        let mut scratch = self.coders.take(cpu);
        let packed = match codec {
            Codec::Raw => scratch.pack(self.codec, page, 0),
            _ => None,
        };
        let (codec, bytes) = match packed {
            Some((codec, len)) => (codec, &scratch.data.0[..len]),
            None => (codec, &page[..len]),
        };
        let object = Object {
            codec,
            data: bytes,
            owner,
            pages: 1,
        };
        let Ok(handle) = self.pool.insert(cpu, object) else {
            return Moved::NoPlace;
        };
        let new = EntryWord::pool(handle, self.checksums.of(codec, bytes));
        if let Some(mut locked) = self.space.lock_still(owner, &words) {
            let word = locked.word();
            let group = locked.cluster().group().clone();
            // Before it is named: who frees it uncharges.
            group.charge(bytes.len() as u64);
            locked.set(
                new.with_cached(word.cached())
                    .with_referenced(word.referenced()),
            );
            locked.keep_in_clock();
            locked.set_dense(Dense::No);
            return Moved::Yes;
        }
        self.pool.remove(handle);
        Moved::Gone
    }
}

fn names(word: EntryWord, from: Extent, i: u32) -> bool {
    match word.location() {
        Location::Slot(at) => {
            at.device == from.device && at.slot.0 == from.start.0 + i && !word.busy()
        }
        _ => false,
    }
}

impl Mover for Relocator {
    fn takes(&self) -> u64 {
        match self.codec {
            CodecKind::None => 0,
            _ => self.allowance.load(Relaxed),
        }
    }

    fn relocate(&self, cpu: Cpu, owner: EntryId, from: Extent, to: Option<Extent>) -> Moved {
        let Some(devices) = self.devices.upgrade() else {
            return Moved::Failed;
        };
        let Some(to) = to else {
            return self.to_pool(&devices, cpu, owner, from);
        };
        let pages = u32::from(from.len);
        // The words change in one step only if one lock guards them all.
        let cluster = |entry: EntryId| entry.0 / CLUSTER_ENTRIES as u32;
        if cluster(owner) != cluster(owner.plus(pages - 1)) {
            return Moved::Failed;
        }
        let (words, data) = match self.read_source(&devices, owner, from) {
            Ok(read) => read,
            Err(not_moved) => return not_moved,
        };
        let run = WriteOp {
            slot: u64::from(to.start.0),
            data: &data,
        };
        let mut results = vec![Err(IoError::Device); words.len()];
        write_runs(&devices, to.device, &[run], &mut results, Retry::UntilBad);
        for (page, result) in (0..).zip(results) {
            match result {
                Ok(()) => {}
                Err(IoError::Again) => return Moved::Later,
                Err(error) => {
                    self.counters.write_error.add(1);
                    return Moved::Unwritten { page, error };
                }
            }
        }
        devices.wrote(to.device, pages);
        let Some(mut locked) = self.space.lock_still(owner, &words) else {
            return Moved::Gone;
        };
        for i in 0..pages {
            locked.seek(owner.plus(i));
            let word = locked.word();
            let new = place(to, i, false);
            if let Location::Slot(old) = word.location() {
                locked.set(word.moved_to(EntryWord::slot(
                    SlotPlace {
                        raw: old.raw,
                        ..new
                    },
                    0,
                )));
                if word.cached() {
                    set_cache_only(&devices, new, true);
                }
            }
        }
        Moved::Yes
    }
}
