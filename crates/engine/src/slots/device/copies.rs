//! Whether full clusters of a device may hold slots that are only copies.

use crate::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Whether a full cluster may hold copies: unless `none` = `said`.
///
/// A thread says so, with the cluster's lock held, when it makes a copy in a full cluster or fills one
/// that holds some. A thread that finds such a cluster says so with the lists' lock held: another thread
/// may be looking too, and passes that cluster by. So who has looked at every full cluster after it read
/// `said`, and found no copy, knows that there was none then.
pub(in crate::slots) struct Copies {
    said: AtomicU32,
    none: AtomicU32,
}

impl Copies {
    pub fn new() -> Self {
        Self {
            said: AtomicU32::new(0),
            none: AtomicU32::new(0),
        }
    }

    pub fn say(&self) {
        self.said.fetch_add(1, Relaxed);
    }

    /// The last notice, if there may be some.
    pub fn said(&self) -> Option<u32> {
        let said = self.said.load(Relaxed);
        (said != self.none.load(Relaxed)).then_some(said)
    }

    /// There was none when that was said.
    pub fn none(&self, said: u32) {
        self.none.store(said, Relaxed);
    }
}
