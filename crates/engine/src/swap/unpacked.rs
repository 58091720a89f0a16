//! The block that a coder decompressed last.

use crate::entries::EntryWord;
use crate::{BLOCK_PAGES, PAGE_SIZE, PageBytes};

/// The pages of a block that was decompressed last: those that are loaded next are often its others.
pub struct Unpacked {
    pub pages: [PageBytes; BLOCK_PAGES],
    pub mask: u8,
    /// The word that named it.
    pub word: EntryWord,
}

impl Unpacked {
    pub fn new() -> Box<Self> {
        Box::new(Self {
            pages: [[0; PAGE_SIZE]; BLOCK_PAGES],
            mask: 0,
            word: EntryWord::FREE,
        })
    }

    pub fn clear(&mut self) {
        self.word = EntryWord::FREE;
    }
}
