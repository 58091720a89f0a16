//! The way back.

use super::coders::Scratch;
use super::device_io::set_cache_only;
use super::error::{LoadError, Source};
use super::write_batch::BATCH;
use super::{Swap, same_filled};
use crate::codec::Codec;
use crate::entries::{EntryWord, Location, Locked};
use crate::{Cpu, EntryId, PageBytes};
use std::ops::Range;

impl Swap {
    /// Brings one page back. With `keep` the entry stays valid as a clean copy of the
    /// resident page, else it is freed.
    pub fn load(
        &self,
        cpu: Cpu,
        entry: EntryId,
        out: &mut PageBytes,
        keep: bool,
    ) -> Result<Source, LoadError> {
        let mut scratch = self.coders.take(cpu);
        self.load_with(cpu, &mut scratch, entry, out, keep)
    }

    /// Brings many pages back, each into its own `out`; `results` says how each went.
    pub fn load_each(
        &self,
        cpu: Cpu,
        entries: &[EntryId],
        out: &mut [&mut PageBytes],
        keep: bool,
        results: &mut [Result<Source, LoadError>],
    ) {
        assert!(
            out.len() == entries.len() && results.len() == entries.len(),
            "lengths differ"
        );
        let mut scratch = self.coders.take(cpu);
        for start in (0..entries.len()).step_by(BATCH) {
            let end = entries.len().min(start + BATCH);
            let mut words = [EntryWord::FREE; BATCH];
            let words = &mut words[..end - start];
            self.space.words(&entries[start..end], words);
            let mut on_device = 0;
            // Device reads are the slow ones; they are found first and go out together.
            for i in start..end {
                let word = words[i - start];
                // Pages in one object with this page come with it.
                let next = words.get(i - start + 1);
                if next.is_some_and(|next| next.is_in_pool() && !next.same_place(word)) {
                    self.prefetch(entries[i + 1]);
                }
                if let Location::Slot(_) = word.location() {
                    on_device += 1;
                } else {
                    results[i] = self.load_with(cpu, &mut scratch, entries[i], out[i], keep);
                }
            }
            let slot = |word: &EntryWord| matches!(word.location(), Location::Slot(_));
            let others = words.iter_mut().filter(|word| !slot(word));
            others.for_each(|word| *word = EntryWord::FREE);
            if on_device > 0 {
                self.load_from_devices(
                    cpu,
                    &mut scratch,
                    &entries[start..end],
                    words,
                    &mut out[start..end],
                    keep,
                    &mut results[start..end],
                );
            }
        }
    }

    pub(super) fn load_with(
        &self,
        cpu: Cpu,
        scratch: &mut Scratch,
        entry: EntryId,
        out: &mut PageBytes,
        keep: bool,
    ) -> Result<Source, LoadError> {
        let mut locked = self.space.lock(entry);
        let word = locked.word();
        match word.location() {
            Location::Same(pattern) => {
                if keep {
                    locked.set(word.with_cached(true));
                    drop(locked);
                } else {
                    locked.release();
                }
                same_filled::fill(out, pattern);
                self.env.counters.swpin_zero.add(1);
                Ok(Source::Zero)
            }
            Location::Pool(handle) => {
                if let Some(page) = scratch.page(entry, word) {
                    drop(locked);
                    out.copy_from_slice(page);
                    self.blocks.loaded(true);
                } else {
                    let (len, codec) = self.pool.read(handle, &mut scratch.data.0);
                    drop(locked);
                    self.decode(scratch, (codec, 0..len), (entry, word), out)
                        .ok_or(LoadError::PoolCorrupt)?;
                    if codec == Codec::Block {
                        self.blocks.loaded(false);
                    }
                }
                self.env.counters.zswpin.add(1);
                self.loaded(cpu, entry, keep);
                Ok(Source::Pool)
            }
            Location::Slot(_) => {
                drop(locked);
                let mut result = [Err(LoadError::Empty)];
                self.load_from_devices(
                    cpu,
                    scratch,
                    &[entry],
                    &[word],
                    &mut [out],
                    keep,
                    &mut result,
                );
                result[0]
            }
            Location::Free | Location::Reserved | Location::Dropped => Err(LoadError::Empty),
        }
    }

    /// Decompresses what lies in the scratch, if it is what the word says.
    pub(super) fn decode(
        &self,
        scratch: &mut Scratch,
        (codec, at): (Codec, Range<usize>),
        (entry, word): (EntryId, EntryWord),
        out: &mut PageBytes,
    ) -> Option<()> {
        let data = &scratch.data.0[at.clone()];
        if !word.checksum_matches(self.env.checksums.of(codec, data)) {
            self.env.counters.checksum_error.add(1);
            return None;
        }
        match codec {
            Codec::Raw => out.copy_from_slice(data),
            Codec::Block => {
                if scratch.page(entry, word).is_none() {
                    scratch.unpack(at, word)?;
                }
                out.copy_from_slice(scratch.page(entry, word)?);
            }
            codec => scratch.coder.decompress(codec, data, out).ok()?,
        }
        Some(())
    }

    /// After a good load: the entry is kept as a clean copy, or freed.
    pub(super) fn loaded(&self, cpu: Cpu, entry: EntryId, keep: bool) {
        let mut locked = self.space.lock(entry);
        if keep {
            return self.keep(&mut locked);
        }
        let group = locked.cluster().group().clone();
        let vacated = locked.release_unsettled();
        self.count_left(&mut locked, vacated);
        locked.settle();
        self.free_vacated(cpu, &group, entry, vacated);
    }

    /// Marks the entry as its page's clean copy, wherever that has gone since it was read.
    fn keep(&self, locked: &mut Locked<'_>) {
        let word = locked.word();
        locked.set(word.with_cached(true));
        // Under the lock: once it is free, the slot may be another's.
        if let (Location::Slot(place), Some(devices)) = (word.location(), &self.devices) {
            set_cache_only(devices, place, true);
        }
    }
}
