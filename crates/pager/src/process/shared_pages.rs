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

/// Knowledge of shared pages, under the lock.
///
/// ```text
/// not is_alone  <=  SharedPages::has_relatives
/// copy_units    >   0 only while a fault waits for room that nobody has
/// ```
pub struct Protection {
    sharing: Sharing,
    /// The number of times that protection was lifted from memory at large (`clean`).
    lifts: u32,
    /// Units that may be evicted although relatives share pages of them; see `sharing`.
    copy_units: u32,
}

impl Protection {
    /// Nothing is protected.
    pub const fn new() -> Self {
        Self {
            sharing: Sharing::Alone,
            lifts: 0,
            copy_units: 0,
        }
    }

    /// Whether pages are shared, as far as is known.
    pub fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// Whether no relative lives.
    pub fn is_alone(&self) -> bool {
        self.sharing == Sharing::Alone
    }

    /// The last relative is gone, and everything may be written.
    pub fn end(&mut self) {
        self.sharing = Sharing::Alone;
    }

    /// Protection was lifted from memory at large: loads under way keep no copies.
    pub fn lift(&mut self) {
        self.lifts = self.lifts.wrapping_add(1);
    }

    /// How often it was.
    pub fn lifts(&self) -> u32 {
        self.lifts
    }

    /// So many units may be evicted although relatives share pages of them.
    pub fn allow_copies(&mut self, units: u32) {
        self.copy_units = units;
    }

    /// Whether any may.
    pub fn allows_copies(&self) -> bool {
        self.copy_units > 0
    }

    /// One of them is about to be.
    pub fn take_copy(&mut self) {
        self.copy_units -= 1;
    }

    /// Relatives whose pages are protected are known to those who hold no lock.
    pub fn check(&self, shared: &SharedPages) {
        assert!(self.is_alone() || shared.has_relatives());
    }
}

/// Knowledge of shared pages without the lock.
pub struct SharedPages {
    /// Flag: relatives live, for those who free memory of the engine.
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
    pub fn begin(&self, protection: &mut Protection) {
        self.relatives.store(true, Relaxed);
        protection.sharing = Sharing::Protected;
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
