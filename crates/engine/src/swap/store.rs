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

/// What is wanted of a batch that finds too little room.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Aim {
    /// All of it or nothing.
    All,
    /// Whatever there is room for.
    Each,
}

/// Who stores, for whom, with what.
struct Storing<'a> {
    cpu: Cpu,
    group: &'a Group,
    scratch: &'a mut Scratch,
    aim: Aim,
}

/// Pages whose words are named in one go.
pub(super) const BATCH: usize = 64;
/// How often a batch makes room in a full pool. What went may have left holes that are of no use to
/// the page at hand: if that went to a device then, older ones would stay.
const RELIEFS: u32 = 4;

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
        let mut storing = Storing {
            cpu,
            group: &group_ref,
            scratch: &mut self.coders.take(cpu),
            aim: Aim::All,
        };
        let mut words = [Word::FREE; BATCH];
        for (i, batch) in pages.chunks(BATCH).enumerate() {
            let start = first.plus((i * BATCH) as u32);
            let words = &mut words[..batch.len()];
            let entry = |k: usize| start.plus(k as u32);
            let outcome = self.make_places(&mut storing, batch, entry, words);
            self.name(start, words);
            if let Err(error) = outcome {
                self.free(cpu, first, pages.len() as u32);
                return Err(error);
            }
        }
        Ok(first)
    }

    /// Stores single pages: `out[i]` is the entry of `pages[i]`, or none if there was no room for
    /// it; the others are stored all the same. How many were, or why not even one.
    pub fn store_each(
        &self,
        cpu: Cpu,
        group: GroupId,
        pages: &[&PageBytes],
        out: &mut [Option<EntryId>],
    ) -> Result<usize, StoreError> {
        assert!(
            out.len() >= pages.len(),
            "room for {} entries of {} pages",
            out.len(),
            pages.len()
        );
        let group_ref = self.space.group(group);
        let mut storing = Storing {
            cpu,
            group: &group_ref,
            scratch: &mut self.coders.take(cpu),
            aim: Aim::Each,
        };
        let mut words = [Word::FREE; BATCH];
        let mut entries = [EntryId(0); BATCH];
        let (mut stored, mut outcome) = (0, Ok(()));
        out.fill(None);
        for (batch, out) in pages.chunks(BATCH).zip(out.chunks_mut(BATCH)) {
            let entries = &mut entries[..batch.len()];
            if let Err(error) = self.space.reserve_each(cpu, group, entries) {
                outcome = Err(error.into());
                break;
            }
            let words = &mut words[..batch.len()];
            let places = self.make_places(&mut storing, batch, |k| entries[k], words);
            outcome = outcome.and(places);
            self.name_each(entries, words);
            for ((out, &entry), word) in out.iter_mut().zip(&*entries).zip(&*words) {
                if word.is_free() {
                    self.free(cpu, entry, 1);
                } else {
                    *out = Some(entry);
                    stored += 1;
                }
            }
        }
        match outcome {
            Err(error) if stored == 0 => Err(error),
            _ => Ok(stored),
        }
    }

    /// Makes the places of a batch; a page that has none keeps the word of a free entry, and the
    /// error says why. When the pool is full, its coldest pages make room, [`RELIEFS`] times a
    /// batch; if it refuses a page all the same, the rest of the batch goes to devices with it.
    fn make_places(
        &self,
        storing: &mut Storing<'_>,
        pages: &[&PageBytes],
        entries: impl Fn(usize) -> EntryId,
        words: &mut [Word],
    ) -> Result<(), StoreError> {
        words.fill(Word::FREE);
        let mut refused = (self.config.codec == CodecKind::None && self.has_devices())
            .then_some(StoreError::Full);
        let (mut out, mut which, mut n) = ([&[0; PAGE_SIZE]; BATCH], [0; BATCH], 0);
        let (mut pooled, mut same, mut charge) = (0, 0, 0);
        let mut relieved = 0;
        for (k, page) in pages.iter().enumerate() {
            if let Some(pattern) = fill::same_filled(page) {
                words[k] = Word::same(pattern);
                same += 1;
                continue;
            }
            if refused.is_none() {
                let mut place = self.make_place(storing, page, entries(k));
                while place == Err(StoreError::Full) && relieved < RELIEFS {
                    relieved += 1;
                    if !self.relieve(storing.cpu) {
                        break;
                    }
                    place = self.make_place(storing, page, entries(k));
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
        storing.group.charge(charge);
        let Some(refused) = refused.filter(|_| n > 0) else {
            return Ok(());
        };
        let mut slots = [Word::FREE; BATCH];
        if storing.group.writeback() && self.has_devices() {
            let (cpu, aim) = (storing.cpu, storing.aim);
            let entries = |i: usize| entries(which[i]);
            let (out, slots) = (&out[..n], &mut slots[..n]);
            self.store_on_devices(cpu, storing.scratch, out, entries, slots, aim);
        }
        for (&k, &word) in which[..n].iter().zip(&slots) {
            words[k] = word;
        }
        let without = slots[..n].iter().filter(|word| word.is_free()).count();
        counters.reject_full.add(without as u64);
        if without > 0 { Err(refused) } else { Ok(()) }
    }

    /// Puts one page into the pool; the word that will name it, and its bytes to charge.
    fn make_place(
        &self,
        storing: &mut Storing<'_>,
        page: &PageBytes,
        owner: EntryId,
    ) -> Result<(Word, u64), StoreError> {
        let scratch = &mut *storing.scratch;
        if storing.group.pool_bytes() >= storing.group.pool_max() {
            return Err(StoreError::GroupFull);
        }
        let (codec, bytes) = match scratch.pack(self.config.codec, page) {
            Some((codec, len)) => (codec, &scratch.data.0[..len]),
            None => {
                self.env.counters.reject_compress_poor.add(1);
                (Codec::Raw, &page[..])
            }
        };
        match self.pool.insert(storing.cpu, codec, bytes, owner) {
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

    /// Writes the words of consecutive reserved entries, where there is something to name.
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
        if word.is_free() {
            return;
        }
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
