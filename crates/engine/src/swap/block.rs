//! Blocks: the pages of up to four consecutive entries in one object.
//!
//! They are up to a fifth denser than the pages alone, and take half the time to compress. But one page
//! out of four takes as long to load as all of them, and a page that leaves goes on taking its room
//! until the others leave, too. The denser codec puts the pages of a folio together as long as loads
//! show that it pays ([`Usefulness`]): at once ([`super::store`]), or when they have been in the pool
//! for long ([`super::recompress`], which also packs again the rest of blocks).
//!
//! The object is a byte that says whose pages these are, bit k for the k-th entry of the block, and one
//! frame of all of them.

use super::coders::Scratch;
use super::unpacked::Unpacked;
use crate::BLOCK_PAGES;
use crate::codec::{Codec, Coder};
use crate::entries::EntryWord;
use crate::pool::{MAX_BLOCK, MAX_COMPRESSED};
use crate::{EntryId, PAGE_SIZE, PageBytes};
use std::ops::Range;

/// Where gathered pages begin in a scratch's room: before them is room for what they are gathered from,
/// and for what is made of them.
pub const GATHERED: usize = BLOCK_PAGES * PAGE_SIZE;

impl Scratch {
    /// For another caller the block that was decompressed last may be gone.
    pub fn forget(&mut self) {
        if let Some(unpacked) = &mut self.unpacked {
            unpacked.clear();
        }
    }

    /// Decompresses the block in this part of the room, which `word` names.
    pub fn unpack(&mut self, at: Range<usize>, word: EntryWord) -> Option<()> {
        let unpacked = self.unpacked.get_or_insert_with(Unpacked::new);
        unpacked.clear();
        let (&mask, frame) = self.data.0[at].split_first()?;
        let pages = unpacked.pages.get_mut(..mask.count_ones() as usize)?;
        self.coder.decompress_block(frame, pages).ok()?;
        unpacked.mask = mask;
        unpacked.word = word.plain();
        Some(())
    }

    /// The page of an entry with this word, if it is in the block that was decompressed last.
    pub fn page(&self, entry: EntryId, word: EntryWord) -> Option<&PageBytes> {
        let unpacked = self.unpacked.as_ref()?;
        let bit = 1 << (entry.0 as usize % BLOCK_PAGES);
        let is_there = unpacked.word == word.plain() && unpacked.mask & bit != 0;
        let before = (unpacked.mask & (bit - 1)).count_ones();
        is_there.then(|| &unpacked.pages[before as usize])
    }

    /// Compresses the gathered pages in the mask, at least two, to the beginning of the room; how
    /// many bytes, if they are few enough for an object.
    pub fn pack_gathered(&mut self, mask: u8) -> Option<usize> {
        let (room, gathered) = self.data.0.split_at_mut(GATHERED);
        let (pages, _) = gathered.as_chunks();
        let len = pack(&mut *self.coder, mask, pages, room)?;
        Some(self.pad(Codec::Block, 0, len))
    }

    /// Compresses the `n`-th of the gathered pages alone, to `at` in the room before them; how many bytes,
    /// if they are few enough for an object.
    pub fn pack_gathered_alone(&mut self, n: usize, at: usize) -> Option<usize> {
        let (room, gathered) = self.data.0.split_at_mut(GATHERED);
        let (pages, _) = gathered.as_chunks();
        let room = &mut room[at..];
        let len = self.coder.compress(Codec::Zstd, &pages[n], room)?;
        (len <= MAX_COMPRESSED).then(|| self.pad(Codec::Zstd, at, len))
    }

    /// Compresses the pages of a block that are in the mask, at least two, to `at` in the room; how many
    /// bytes, if they are few enough for an object.
    pub fn pack_pages(&mut self, mask: u8, block: &[&PageBytes], at: usize) -> Option<usize> {
        let unpacked = self.unpacked.get_or_insert_with(Unpacked::new);
        unpacked.clear();
        let is_in_mask = |(k, _): &(usize, &&PageBytes)| mask & 1 << k != 0;
        let of_mask = block.iter().enumerate().filter(is_in_mask);
        for (room, (_, page)) in unpacked.pages.iter_mut().zip(of_mask) {
            *room = **page;
        }
        let room = &mut self.data.0[at..];
        let len = pack(&mut *self.coder, mask, &unpacked.pages, room)?;
        Some(self.pad(Codec::Block, at, len))
    }

    /// Room for the page of the `n`-th member of a block that is being gathered.
    pub fn gathered(&mut self, n: usize) -> &mut PageBytes {
        let (pages, _) = self.data.0[GATHERED..].as_chunks_mut::<PAGE_SIZE>();
        &mut pages[n]
    }
}

fn pack(coder: &mut dyn Coder, mask: u8, pages: &[PageBytes], room: &mut [u8]) -> Option<usize> {
    let pages = pages.get(..mask.count_ones() as usize)?;
    // A larger block saves too little: of four pages, [`MAX_BLOCK`].
    let room = room.get_mut(..pages.len() * MAX_BLOCK / BLOCK_PAGES)?;
    room[0] = mask;
    Some(1 + coder.compress_block(pages, &mut room[1..])?)
}
