//! The way out: reserve entries, make their places, name them.

use super::coders::Scratch;
use super::{CodecKind, Swap, fill, hash};
use crate::codec::Codec;
use crate::pool::MAX_COMPRESSED;
use crate::vswap::{Group, Location, Word};
use crate::{Cpu, EntryId, GroupId, PageBytes};

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
const BATCH: usize = 64;

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
            for (k, page) in batch.iter().enumerate() {
                match self.make_place(&mut scratch, &group_ref, page, start.plus(k as u32)) {
                    Ok(word) => words[k] = word,
                    Err(error) => {
                        self.name(start, &words[..k]);
                        self.free(cpu, first, pages.len() as u32);
                        return Err(error);
                    }
                }
            }
            self.name(start, &words[..batch.len()]);
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
            let mut failed = None;
            let mut n = 0;
            for (page, &entry) in batch.iter().zip(entries.iter()) {
                match self.make_place(&mut scratch, &group_ref, page, entry) {
                    Ok(word) => words[n] = word,
                    Err(error) => {
                        failed = Some(error);
                        break;
                    }
                }
                n += 1;
            }
            self.name_each(&entries[..n], &words[..n]);
            done += n;
            if let Some(error) = failed {
                for &unused in &entries[n..] {
                    self.free(cpu, unused, 1);
                }
                return if done > 0 { Ok(done) } else { Err(error) };
            }
        }
        Ok(done)
    }

    /// Makes the place of one page and the word that will name it.
    fn make_place(
        &self,
        scratch: &mut Scratch,
        group: &Group,
        page: &PageBytes,
        owner: EntryId,
    ) -> Result<Word, StoreError> {
        if let Some(pattern) = fill::same_filled(page) {
            self.env.counters.swpout_zero.add(1);
            return Ok(Word::same(pattern));
        }
        let hash = hash(page);
        let codec = match self.config.codec {
            CodecKind::Lz4 | CodecKind::Lz4ThenZstd { .. } => Codec::Lz4,
            CodecKind::Zstd { .. } => Codec::Zstd,
            CodecKind::None => Codec::Raw,
        };
        let Scratch { coder, data, .. } = scratch;
        let compressed = match codec {
            Codec::Raw => None,
            codec => coder.compress(codec, page, &mut data[..MAX_COMPRESSED]),
        };
        let (codec, bytes) = match compressed {
            Some(len) => (codec, &data[..len]),
            None => {
                self.env.counters.reject_compress_poor.add(1);
                (Codec::Raw, &page[..])
            }
        };
        match self.pool.insert(codec, bytes, owner) {
            Ok((handle, class)) => {
                group.charge(self.pool.size(class) as u64);
                self.env.counters.zswpout.add(1);
                Ok(Word::pool(handle, hash))
            }
            Err(crate::pool::Full) => {
                self.env.counters.pool_limit_hit.add(1);
                self.env.counters.reject_full.add(1);
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
        let young = locked.reopened() && matches!(word.location(), Location::Pool(_));
        locked.set(word.with_referenced(young));
    }
}
