//! The way out: reserve entries, make their places, name them.

use super::coders::{PackedObject, Scratch};
use super::error::StoreError;
use super::write_batch::BATCH;
use super::{CodecKind, Swap, same_filled};
use crate::entries::{EntryWord, Hold, Location};
use crate::{BLOCK_PAGES, Cpu, EntryId, GroupId, PAGE_SIZE, PageBytes};

/// The aim of a batch that finds too little room.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Aim {
    /// All of it or nothing.
    All,
    /// As many pages as there is room for.
    Each,
}

/// A store in progress: processor, group, tools, and refusals.
struct Storing<'a> {
    cpu: Cpu,
    /// The group of the entries: charged for what they will name.
    group: Hold,
    scratch: &'a mut Scratch,
    aim: Aim,
    refused: Refused,
}

/// Counts of a store's refusals. A folio that is refused leaves nothing behind, and its pages come again
/// one by one: only then do they count.
#[derive(Default)]
struct Refused {
    /// Times that a page found the pool at its limit.
    limit_hit: u64,
    /// Pages that the pool did not take, and those that had no place at all.
    by_pool: u64,
    in_full: u64,
}

/// Bytes of a page to fetch ahead: then the processor does so by itself.
const BEGINNING: usize = 512;
/// How often a batch makes room in a full pool. The pages that went may have left holes of no use to the
/// page at hand: if that page went to a device then, older ones would stay.
const ROOM_TRIES: u32 = 4;

/// Pages of a batch that the pool does not take, by their numbers.
struct PageList {
    pages: [u8; BATCH],
    len: usize,
}

impl PageList {
    const fn new() -> Self {
        Self {
            pages: [0; BATCH],
            len: 0,
        }
    }
    fn extend(&mut self, pages: impl Iterator<Item = usize>) {
        for page in pages {
            self.pages[self.len] = page as u8;
            self.len += 1;
        }
    }
    const fn is_empty(&self) -> bool {
        self.len == 0
    }
    fn as_slice(&self) -> &[u8] {
        &self.pages[..self.len]
    }
}

/// The positions of the bits of a mask.
fn in_mask(mask: u8) -> impl Iterator<Item = usize> {
    (0..BLOCK_PAGES).filter(move |i| mask & 1 << i != 0)
}

/// Names the pages that are one value repeated; a mask of the others.
fn name_same_filled(pages: &[&PageBytes], words: &mut [EntryWord]) -> u8 {
    let mut mask = 0u8;
    for (i, (page, word)) in pages.iter().zip(words).enumerate() {
        match same_filled::pattern_of(page) {
            Some(pattern) => *word = EntryWord::same(pattern),
            None => mask |= 1 << i,
        }
    }
    mask
}

impl Swap {
    /// Stores the pages of one folio or run, 1 to 64, into consecutive entries and returns the first. All or nothing.
    pub fn store(
        &self,
        cpu: Cpu,
        group: GroupId,
        pages: &[&PageBytes],
    ) -> Result<EntryId, StoreError> {
        assert!(
            pages.len() <= BATCH,
            "{} pages of {BATCH} at most",
            pages.len()
        );
        let (first, group) = match pages.len() {
            1 => {
                let mut one = [EntryId(0)];
                let group = self.space.reserve_each(cpu, group, &mut one)?;
                (one[0], group)
            }
            n => self.space.reserve_run(cpu, group, n)?,
        };
        let mut storing = Storing {
            cpu,
            group,
            scratch: &mut self.coders.take(cpu),
            aim: Aim::All,
            refused: Refused::default(),
        };
        let mut words = [EntryWord::FREE; BATCH];
        let words = &mut words[..pages.len()];
        let entry = |k: usize| first.plus(k as u32);
        let outcome = self.make_places(&mut storing, pages, entry, words);
        self.name(first, words);
        if outcome.is_err() {
            self.free(cpu, first, pages.len() as u32);
        }
        if outcome.is_ok() || pages.len() == 1 {
            self.count_refused(&storing.refused);
        }
        outcome.map(|()| first)
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
        let mut scratch = self.coders.take(cpu);
        let mut words = [EntryWord::FREE; BATCH];
        let mut entries = [EntryId(0); BATCH];
        let (mut stored, mut outcome) = (0, Ok(()));
        out.fill(None);
        for (batch, out) in pages.chunks(BATCH).zip(out.chunks_mut(BATCH)) {
            let entries = &mut entries[..batch.len()];
            // Each batch for itself: the group may end meanwhile.
            let group = match self.space.reserve_each(cpu, group, entries) {
                Ok(group) => group,
                Err(error) => {
                    outcome = Err(error.into());
                    break;
                }
            };
            let mut storing = Storing {
                cpu,
                group,
                scratch: &mut scratch,
                aim: Aim::Each,
                refused: Refused::default(),
            };
            let words = &mut words[..batch.len()];
            let places = self.make_places(&mut storing, batch, |k| entries[k], words);
            outcome = outcome.and(places);
            self.count_refused(&storing.refused);
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
    /// error says why. Pages go into the pool by runs, each compressed before the pool is locked.
    /// When the pool is full, its coldest pages make room, [`ROOM_TRIES`] times a batch. If a page is
    /// refused all the same, the rest of the batch goes to devices with it.
    fn make_places(
        &self,
        storing: &mut Storing<'_>,
        pages: &[&PageBytes],
        entries: impl Fn(usize) -> EntryId,
        words: &mut [EntryWord],
    ) -> Result<(), StoreError> {
        words.fill(EntryWord::FREE);
        let uses_pool = self.uses_pool();
        let (mut refused, mut room_tries) = (!uses_pool, ROOM_TRIES);
        let (mut same, mut poor) = (0, 0);
        let mut left = PageList::new();
        storing.scratch.run.clear();
        let step = self.pages_together(storing.aim, pages.len());
        for (first, pages_of_step) in (0..).step_by(step).zip(pages.chunks(step)) {
            if let Some(next) = pages.get(first + step) {
                self.env.memory.prefetch(&next[..BEGINNING]);
            }
            let mask = name_same_filled(pages_of_step, &mut words[first..]);
            same += pages_of_step.len() as u64 - u64::from(mask.count_ones());
            if refused {
                left.extend(in_mask(mask).map(|i| first + i));
            } else {
                poor += self.compress(storing.scratch, first, mask, pages_of_step);
            }
            let last = first + step >= pages.len();
            if storing.scratch.run.is_empty()
                || storing.scratch.has_room_for(step) && !last && !self.is_tight()
            {
                continue;
            }
            refused = self.put_run(storing, pages, &entries, words, &mut room_tries);
            if refused {
                let packed = storing.scratch.run.pages().iter();
                let outside = packed.filter(|packed| packed.handle.is_none());
                left.extend(outside.flat_map(PackedObject::pages));
            }
            storing.scratch.run.clear();
        }
        let counters = &self.env.counters;
        counters.swpout_zero.add(same);
        counters.reject_compress_poor.add(poor);
        if !refused || left.is_empty() {
            return Ok(());
        }
        if uses_pool {
            storing.refused.by_pool += left.as_slice().len() as u64;
        }
        let without = self.leave_to_devices(storing, pages, entries, left.as_slice(), words);
        storing.refused.in_full += without;
        if without > 0 {
            // The next try has the pool's room.
            self.set_direct(false);
            Err(StoreError::Full)
        } else {
            Ok(())
        }
    }

    /// Compresses the pages of a step that are in the mask aside, together if there are several; returns
    /// how many are kept as they are.
    fn compress(
        &self,
        scratch: &mut Scratch,
        first: usize,
        mask: u8,
        pages_of_step: &[&PageBytes],
    ) -> u64 {
        if mask.count_ones() >= 2 && scratch.pack_block_aside(first, mask, pages_of_step) {
            return 0;
        }
        let codec = self.config.codec;
        let mut pack = |i: usize| scratch.pack_aside(codec, first + i, pages_of_step[i]);
        in_mask(mask).map(|i| u64::from(pack(i))).sum()
    }

    /// How many neighbours of so many pages are compressed together.
    fn pages_together(&self, aim: Aim, pages: usize) -> usize {
        let denser = matches!(self.config.codec, CodecKind::Zstd { .. });
        // A folio: its entries lie as blocks do.
        if denser && aim == Aim::All && pages >= BLOCK_PAGES && self.blocks.is_wanted() {
            BLOCK_PAGES
        } else {
            1
        }
    }

    /// Near its limit the pool is asked for each page: a refused page was compressed in vain, and the
    /// pages that make room should be colder than those compressed.
    fn is_tight(&self) -> bool {
        const NEAR: u64 = (BATCH * PAGE_SIZE) as u64;
        self.pool.bytes() + NEAR > self.pool.max()
    }

    /// Puts what was compressed aside into the pool, and makes the words that will name it; whether some
    /// found no room.
    fn put_run(
        &self,
        storing: &mut Storing<'_>,
        pages: &[&PageBytes],
        entries: &impl Fn(usize) -> EntryId,
        words: &mut [EntryWord],
        room_tries: &mut u32,
    ) -> bool {
        let run = storing.scratch.run.pages();
        // Before the words are named: who frees them uncharges.
        let charge: u64 = run.iter().map(|packed| u64::from(packed.len)).sum();
        storing.group.charge(charge);
        let refused = loop {
            let objects = storing.scratch.objects(pages, entries);
            let refusals = self.pool.insert_each(storing.cpu, objects);
            storing.refused.limit_hit += refusals as u64;
            if refusals == 0 || *room_tries == 0 {
                break refusals > 0;
            }
            *room_tries -= 1;
            if !self.make_room(storing.cpu) {
                break true;
            }
        };
        let (mut pooled, mut objects, mut unused) = (0, 0, 0);
        for packed in storing.scratch.run.pages() {
            let Some(handle) = packed.handle else {
                unused += u64::from(packed.len);
                continue;
            };
            for page in packed.pages() {
                words[page] = EntryWord::pool(handle, packed.checksum);
                pooled += 1;
            }
            objects += 1;
        }
        if pooled > objects {
            self.pool.count_extra_refs((pooled - objects) as i64);
        }
        if unused > 0 {
            storing.group.uncharge(unused);
        }
        self.env.counters.zswpout.add(pooled);
        self.env.counters.zswpout_bytes.add(charge - unused);
        refused
    }

    /// Writes pages that the pool does not take to devices, where the group may; how many found no
    /// room there either.
    #[cold]
    fn leave_to_devices(
        &self,
        storing: &mut Storing<'_>,
        pages: &[&PageBytes],
        entries: impl Fn(usize) -> EntryId,
        left: &[u8],
        words: &mut [EntryWord],
    ) -> u64 {
        let mut out = [&[0; PAGE_SIZE]; BATCH];
        let mut owners = [EntryId(0); BATCH];
        for ((out, owner), &k) in out.iter_mut().zip(&mut owners).zip(left) {
            (*out, *owner) = (pages[k as usize], entries(k as usize));
        }
        let mut slots = [EntryWord::FREE; BATCH];
        let (out, slots) = (&out[..left.len()], &mut slots[..left.len()]);
        if storing.group.writeback() && self.has_devices() {
            let (cpu, aim, owners) = (storing.cpu, storing.aim, &owners[..left.len()]);
            self.store_on_devices(cpu, storing.scratch, out, owners, slots, aim);
        }
        for (&k, &word) in left.iter().zip(&*slots) {
            words[k as usize] = word;
        }
        slots.iter().filter(|word| word.is_free()).count() as u64
    }

    fn count_refused(&self, refused: &Refused) {
        let counters = &self.env.counters;
        counters.pool_limit_hit.add(refused.limit_hit);
        counters.reject_pool.add(refused.by_pool);
        counters.reject_full.add(refused.in_full);
    }

    /// Writes the words of consecutive reserved entries, where there is something to name.
    fn name(&self, first: EntryId, words: &[EntryWord]) {
        let mut at = 0;
        while at < words.len() {
            let mut locked = self.space.lock(first.plus(at as u32));
            while at < words.len() && locked.seek(first.plus(at as u32)) {
                self.name_one(&mut locked, words[at]);
                at += 1;
            }
        }
    }

    fn name_each(&self, entries: &[EntryId], words: &[EntryWord]) {
        let mut at = 0;
        while at < words.len() {
            let mut locked = self.space.lock(entries[at]);
            while at < words.len() && locked.seek(entries[at]) {
                self.name_one(&mut locked, words[at]);
                at += 1;
            }
        }
    }

    fn name_one(&self, locked: &mut super::Locked<'_>, word: EntryWord) {
        if word.is_free() {
            return;
        }
        debug_assert_eq!(locked.word(), EntryWord::RESERVED);
        match word.location() {
            Location::Pool(_) => locked.set_pooled(word),
            _ => locked.set(word),
        }
    }
}
