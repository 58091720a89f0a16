//! Whether clean copies have been worth it lately.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The score of a page with a copy that is always evicted, never written.
const MOST: u64 = 1024;

/// How worth it clean copies proved.
///
/// ```text
/// score  <=  MOST
/// ```
pub struct CopyScore {
    /// The share of the pages with copies, of those that were evicted or written lately, that was
    /// evicted: in 1/1024.
    score: AtomicU64,
    /// Loads that might keep copies, to try it now and then whatever the score says.
    loads: AtomicU64,
}

impl CopyScore {
    /// Before anything is known.
    pub const fn new() -> Self {
        Self {
            score: AtomicU64::new(MOST),
            loads: AtomicU64::new(0),
        }
    }

    pub fn worth_it(&self) -> bool {
        const TRY_ANYWAY: u64 = 32;
        self.score.load(Relaxed) > MOST / 2
            || self.loads.fetch_add(1, Relaxed).is_multiple_of(TRY_ANYWAY)
    }

    /// The equation of the head comment.
    pub fn check(&self) {
        assert!(self.score.load(Relaxed) <= MOST);
    }

    /// A page with a copy was evicted, or written. Concurrent updates may lose one.
    pub fn learn(&self, evicted: bool) {
        let old = self.score.load(Relaxed);
        let new = match evicted {
            true => old + (MOST - old) / 32,
            false => old - old / 32,
        };
        self.score.store(new, Relaxed);
    }
}
