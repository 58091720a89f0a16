//! Whether forked relatives live, and what of the engine's memory went while they keep it.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering::Relaxed, Ordering::SeqCst};

/// Whether pages are shared with relatives, as far as is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// No relative lives.
    Alone,
    /// Shared pages are protected.
    Protected,
}

/// Knowledge of shared pages without the lock.
pub struct SharedPages {
    /// Relatives live: for those who free memory of the engine.
    relatives: AtomicBool,
    /// Pages that the engine gave back and relatives kept, not yet accounted for.
    given_back: AtomicI64,
    /// [`Member::rollups`](ebb_tree::Member::rollups) before the first of them went.
    given_since: AtomicU32,
}

impl SharedPages {
    /// No relative lives.
    pub const fn new() -> Self {
        Self {
            relatives: AtomicBool::new(false),
            given_back: AtomicI64::new(0),
            given_since: AtomicU32::new(0),
        }
    }

    /// Relatives live, or are about to: memory that is registered from now on is protected.
    pub fn begin(&self, sharing: &mut Sharing) {
        self.relatives.store(true, Relaxed);
        *sharing = Sharing::Protected;
    }

    /// No relative lives any more.
    pub fn end(&self) {
        self.relatives.store(false, Relaxed);
    }

    /// Whether relatives live.
    pub fn has_relatives(&self) -> bool {
        self.relatives.load(Relaxed)
    }

    /// The engine gave pages back that relatives keep.
    pub fn give_back(&self, pages: i64, rollups: u32) {
        if pages > 0 && self.given_back.fetch_add(pages, SeqCst) == 0 {
            self.given_since.store(rollups, SeqCst);
        }
    }

    /// Pages given back by the engine while relatives keep them: still charged here and credited.
    pub fn given_back(&self) -> i64 {
        self.given_back.load(Relaxed)
    }

    /// Takes them out, and since when.
    pub fn take_given_back(&self) -> (i64, u32) {
        let since = self.given_since.load(SeqCst);
        (self.given_back.swap(0, SeqCst), since)
    }
}
