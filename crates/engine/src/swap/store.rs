//! The way out: reserve entries, make their places, name them.

use super::coders::Scratch;
use super::{CodecKind, Swap, checksum, fill};
use crate::codec::Codec;
use crate::vswap::{Group, Location, Word};
use crate::{Cpu, EntryId, GroupId, PAGE_SIZE, PageBytes};

/// Why pages were not stored. They stay where they were.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    /// The pool is at its limit and no device has room.
    #[error("the pool is full and no swap device has room: raise the pool's limit or add a device")]
    Full,
    /// The group is at its pool limit and may not write to devices.
    #[error(
        "the group is at its pool limit and may not write to devices: raise `pool max` or allow writeback"
    )]
    GroupFull,
    /// 2^29 entries are in use.
    #[error("all entries of the virtual swap space are in use: no more than 2 TiB can be swapped")]
    NoEntries,
}

impl From<crate::vswap::NoEntries> for StoreError {
    fn from(_: crate::vswap::NoEntries) -> Self {
        Self::NoEntries
    }
}

/// Pages whose words are named in one go.
pub(super) const BATCH: usize = 64;

impl Swap {
    /// Stores the pages of one folio or run, 1 to 512, into consecutive entries and returns
    /// the first. All or nothing.
    pub fn store(
        &self,
        cpu: Cpu,
        group: GroupId,
        pages: &[&PageBytes],
    ) -> Result<EntryId, StoreError> {
        let group_ref = self.space.group(group);
        let first = match pages.len() {
            1 => {
                let mut one = [EntryId(0)];
                self.space.reserve_each(cpu, group, &mut one)?;
                one[0]
            }
            n => self.space.reserve_run(cpu, group, n)?,
        };
        let mut scratch = self.coders.take(cpu);
        let mut words = [Word::FREE; BATCH];
        for (i, batch) in pages.chunks(BATCH).enumerate() {
            let start = first.plus((i * BATCH) as u32);
            let words = &mut words[..batch.len()];
            let entry = |k: usize| start.plus(k as u32);
            let (named, outcome) =
                self.make_places(cpu, &mut scratch, &group_ref, batch, entry, words);
            self.name(start, &words[..named]);
            if let Err(error) = outcome {
                self.free(cpu, first, pages.len() as u32);
                return Err(error);
            }
        }
        Ok(first)
    }

    /// Stores single pages: `out[i]` is the entry of `pages[i]`. Stops at the first refusal;
    /// how many were stored, or why not even one was.
    pub fn store_each(
        &self,
        cpu: Cpu,
        group: GroupId,
        pages: &[&PageBytes],
        out: &mut [EntryId],
    ) -> Result<usize, StoreError> {
        assert!(
            out.len() >= pages.len(),
            "room for {} entries of {} pages",
            out.len(),
            pages.len()
        );
        let group_ref = self.space.group(group);
        let mut scratch = self.coders.take(cpu);
        let mut words = [Word::FREE; BATCH];
        let mut done = 0;
        for batch in pages.chunks(BATCH) {
            let entries = &mut out[done..done + batch.len()];
            if let Err(error) = self.space.reserve_each(cpu, group, entries) {
                return if done > 0 {
                    Ok(done)
                } else {
                    Err(error.into())
                };
            }
            let words = &mut words[..batch.len()];
            let (named, outcome) =
                self.make_places(cpu, &mut scratch, &group_ref, batch, |k| entries[k], words);
            self.name_each(&entries[..named], &words[..named]);
            done += named;
            if let Err(error) = outcome {
                for &unused in &entries[named..] {
                    self.free(cpu, unused, 1);
                }
                return if done > 0 { Ok(done) } else { Err(error) };
            }
        }
        Ok(done)
    }

    /// Makes the places of a batch; how many words are good, and why no more. When the pool
    /// is full, its coldest pages make room, once a batch; if it refuses a page all the same,
    /// the rest of the batch goes to devices with it.
    fn make_places(
        &self,
        cpu: Cpu,
        scratch: &mut Scratch,
        group: &Group,
        pages: &[&PageBytes],
        entries: impl Fn(usize) -> EntryId,
        words: &mut [Word],
    ) -> (usize, Result<(), StoreError>) {
        let mut refused = (self.config.codec == CodecKind::None && self.has_devices())
            .then_some(StoreError::Full);
        let (mut out, mut which, mut n) = ([&[0; PAGE_SIZE]; BATCH], [0; BATCH], 0);
        let (mut pooled, mut same, mut charge) = (0, 0, 0);
        let mut relieved = false;
        for (k, page) in pages.iter().enumerate() {
            if let Some(pattern) = fill::same_filled(page) {
                words[k] = Word::same(pattern);
                same += 1;
                continue;
            }
            if refused.is_none() {
                let mut place = self.make_place(cpu, scratch, group, page, entries(k));
                if place == Err(StoreError::Full) && !relieved {
                    relieved = true;
                    if self.relieve(cpu) {
                        place = self.make_place(cpu, scratch, group, page, entries(k));
                    }
                }
                match place {
                    Ok((word, bytes)) => {
                        words[k] = word;
                        charge += bytes;
                        pooled += 1;
                        continue;
                    }
                    Err(error) => refused = Some(error),
                }
            }
            (out[n], which[n]) = (page, k);
            n += 1;
        }
        let counters = &self.env.counters;
        counters.swpout_zero.add(same);
        counters.zswpout.add(pooled);
        // Before the words are named: who frees them uncharges.
        group.charge(charge);
        let Some(refused) = refused.filter(|_| n > 0) else {
            return (pages.len(), Ok(()));
        };
        let mut slots = [Word::FREE; BATCH];
        let outcome = if group.writeback() && self.has_devices() {
            self.store_on_devices(
                cpu,
                scratch,
                &out[..n],
                |i| entries(which[i]),
                &mut slots[..n],
            )
        } else {
            Err(refused)
        };
        if outcome.is_err() {
            counters.reject_full.add(n as u64);
            // Same-filled pages after the first refused one are named by nobody.
            return (which[0], outcome);
        }
        for (&k, &word) in which[..n].iter().zip(&slots) {
            words[k] = word;
        }
        (pages.len(), Ok(()))
    }

    /// Puts one page into the pool; the word that will name it, and its bytes to charge.
    fn make_place(
        &self,
        cpu: Cpu,
        scratch: &mut Scratch,
        group: &Group,
        page: &PageBytes,
        owner: EntryId,
    ) -> Result<(Word, u64), StoreError> {
        if group.pool_bytes() >= group.pool_max() {
            return Err(StoreError::GroupFull);
        }
        let (codec, bytes) = match scratch.pack(self.config.codec, page) {
            Some((codec, len)) => (codec, &scratch.data.0[..len]),
            None => {
                self.env.counters.reject_compress_poor.add(1);
                (Codec::Raw, &page[..])
            }
        };
        match self.pool.insert(cpu, codec, bytes, owner) {
            Ok(handle) => {
                let word = Word::pool(handle, checksum(codec, bytes));
                Ok((word, bytes.len() as u64))
            }
            Err(crate::pool::Full) => {
                self.env.counters.pool_limit_hit.add(1);
                Err(StoreError::Full)
            }
        }
    }

    /// Writes the words of consecutive reserved entries.
    fn name(&self, first: EntryId, words: &[Word]) {
        let mut at = 0;
        while at < words.len() {
            let mut locked = self.space.lock(first.plus(at as u32));
            while at < words.len() && locked.seek(first.plus(at as u32)) {
                self.name_one(&mut locked, words[at]);
                at += 1;
            }
        }
    }

    fn name_each(&self, entries: &[EntryId], words: &[Word]) {
        let mut at = 0;
        while at < words.len() {
            let mut locked = self.space.lock(entries[at]);
            while at < words.len() && locked.seek(entries[at]) {
                self.name_one(&mut locked, words[at]);
                at += 1;
            }
        }
    }

    fn name_one(&self, locked: &mut super::Locked<'_>, word: Word) {
        debug_assert_eq!(locked.word(), Word::RESERVED);
        // Entries of a reopened cluster are younger than its place in the clock says.
        let pooled = matches!(word.location(), Location::Pool(_));
        locked.set(word.with_referenced(pooled && locked.reopened()));
        if pooled {
            locked.keep_in_clock();
            locked.set_dense(false);
        }
    }
}
