//! What a move of pages costs, and whether a copy would cost less.
//!
//! A move takes pages out of one mapping, so every processor that runs a thread of the process
//! has to forget its translation before the pages mean something else: an interrupt to each, and
//! a wait for all. Alone that is nothing; beside one other thread it was measured at 11 µs, for
//! one page or for many in a row. A copy into a new page needs no flush, but the kernel must find a
//! page and later take a frame back: 1.7 µs more a page than a move without a flush.
//!
//! Evictions always move, so what that takes is known at any time without a trial.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A move of one page, alone, in ns.
const MOVE: u64 = 1_500;
/// Each further page of it.
const MORE: u64 = 100;
/// What a copy takes beyond a move without a flush, a page.
const COPY: u64 = 1_700;
/// Longer than this somebody else had the processor.
const ABSURD: u64 = 50_000;

/// A moving mean of what the flush of a move takes, in ns.
#[derive(Default)]
pub struct Flushes(AtomicU64);

impl Flushes {
    /// `calls` moves of `pages` pages in all took `time`. Concurrent updates may lose one.
    pub fn moved(&self, time: Duration, calls: u32, pages: u32) {
        if calls == 0 {
            return;
        }
        let (calls, pages) = (u64::from(calls), u64::from(pages));
        let each = (time.as_nanos() as u64).saturating_sub(pages * MORE) / calls;
        let flush = each.saturating_sub(MOVE).min(ABSURD);
        let old = self.0.load(Relaxed);
        self.0.store(old - old / 32 + flush / 32, Relaxed);
    }

    /// What a move of one page takes now, in the mean.
    pub fn move_takes(&self) -> Duration {
        Duration::from_nanos(MOVE + self.0.load(Relaxed))
    }

    /// Whether a copy of `pages` pages costs less than a move of them in one piece.
    pub fn dear(&self, pages: usize) -> bool {
        self.0.load(Relaxed) > pages as u64 * COPY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_where_flushes_are_dear() {
        let flushes = Flushes::default();
        let each = |ns: u64| {
            for _ in 0..200 {
                flushes.moved(Duration::from_nanos(2 * ns + 400), 2, 4);
            }
        };
        each(1_600);
        assert!(!flushes.dear(1));
        each(12_000);
        assert!(flushes.dear(1) && flushes.dear(6) && !flushes.dear(16));
        each(1_600);
        assert!(!flushes.dear(1));
    }
}
