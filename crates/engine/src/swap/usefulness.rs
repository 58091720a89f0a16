//! Whether pages are worth putting together in blocks, by what is loaded from them.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::Relaxed};

/// Whether blocks are worth it, by their loads: a block that is decompressed for one page alone counts
/// against, each other page that is taken from it then counts for them. So they are as long as two pages
/// or more come back together, in the mean. On a line of its own, as loads write it.
#[derive(Default)]
#[repr(align(64))]
pub struct Usefulness {
    score: AtomicI32,
    /// Folios and blocks that were not.
    refused: AtomicU32,
}

impl Usefulness {
    /// How much of the past counts.
    const MEMORY: i32 = 1024;
    /// One folio or block in so many is made so all the same, to see whether it would be worth it by now.
    const SAMPLE: u32 = 16;

    /// A page was loaded out of a block, which had been decompressed for another before, or had not.
    pub fn loaded(&self, with_another: bool) {
        let more = if with_another { 1 } else { -1 };
        let before = self.score.load(Relaxed);
        let score = (before + more).clamp(-Self::MEMORY, Self::MEMORY);
        // Not exact where processors meet, nor need it be.
        if score != before {
            self.score.store(score, Relaxed);
        }
    }

    /// Whether blocks are worth it, as far as is known.
    pub fn are_useful(&self) -> bool {
        self.score.load(Relaxed) >= 0
    }

    /// Whether to make blocks of the next pages.
    pub fn is_wanted(&self) -> bool {
        self.are_useful()
            || self
                .refused
                .fetch_add(1, Relaxed)
                .is_multiple_of(Self::SAMPLE)
    }
}
