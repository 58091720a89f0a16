//! Room on its way: out of everybody's reach for the moment, and soon to be found again.
//!
//! A cluster that is discarded, or on its way from or to the lender, is on no list, and no other
//! thread can take from it. Nor are the slots to be had that a compaction copies to while those
//! it copies from are not free yet, nor the runs of a folio that will turn out not to fit. An
//! allocation that looked everywhere meanwhile must not say that the devices are full.
//!
//! The protocol: whoever is about to take room out of reach says so first ([`Transit::begin`]),
//! and says so when some can be found again ([`OnItsWay::arrived`]). An allocation notes how
//! often that was said before it looks ([`Transit::seen`]). If it finds too little it asks
//! [`Transit::more_since`]: room that arrived since may have come behind its back, and what is
//! under way is waited for; with neither, the devices are full.
//!
//! It holds no lock and no room of its own while it waits, and whoever has room under way waits
//! for no allocation; so the wait ends with that one's transfer. It is bounded in number too
//! ([`LOOKS`]): who has seen that often how others took what arrived may say "full", for at each of
//! those moments it was.
//!
//! What this does not do: slots that others free one by one, and take elsewhere, while an
//! allocation goes from cluster to cluster, may pass it by.

use crate::locks::{Ordered, Place, lock, none_held, wait};
use crate::sync::Condvar;
use crate::sync::atomic::{AtomicU32, Ordering};

/// How often one allocation looks everywhere, at most.
pub(super) const LOOKS: u32 = 8;

/// `arrived` and `under_way` count since the beginning and now; so does `waiting`.
#[derive(Default)]
struct Counts {
    under_way: u32,
    arrived: u32,
    waiting: u32,
}

/// What is under way on all devices of one [`Devices`](super::Devices).
pub(super) struct Transit {
    counts: Ordered<Counts, { Place::Transit as usize }>,
    /// `arrived` of the counts, to be read without their lock. An older value than theirs makes
    /// an allocation look once more than it need.
    arrived: AtomicU32,
    changed: Condvar,
}

/// Room that is out of reach as long as this lives.
pub(super) struct OnItsWay<'a> {
    transit: &'a Transit,
    arrived: bool,
}

impl Transit {
    pub fn new() -> Self {
        Self {
            counts: Ordered::default(),
            arrived: AtomicU32::new(0),
            changed: Condvar::new(),
        }
    }

    /// To be called before the room is out of reach, and before any lock is let go under which
    /// it could still be found.
    pub fn begin(&self) -> OnItsWay<'_> {
        lock(&self.counts).under_way += 1;
        OnItsWay {
            transit: self,
            arrived: false,
        }
    }

    /// How often room has arrived so far: for [`Transit::more_since`].
    pub fn seen(&self) -> u32 {
        self.arrived.load(Ordering::Acquire)
    }

    /// Whether to look again: room has arrived since `seen`, or does while this waits. With no
    /// lock held, and no room under way.
    pub fn more_since(&self, seen: u32) -> bool {
        none_held();
        let mut counts = lock(&self.counts);
        while counts.arrived == seen && counts.under_way > 0 {
            counts.waiting += 1;
            counts = wait(&self.changed, counts);
            counts.waiting -= 1;
        }
        counts.arrived != seen
    }

    /// Panics unless nothing is under way.
    pub fn check(&self) {
        let counts = lock(&self.counts);
        assert_eq!((counts.under_way, counts.waiting), (0, 0), "room under way");
        assert_eq!(counts.arrived, self.seen(), "arrivals");
    }

    /// Threads that wait for room.
    #[cfg(all(test, not(loom)))]
    pub fn waiting(&self) -> u32 {
        lock(&self.counts).waiting
    }
}

impl OnItsWay<'_> {
    /// Some of it can be found again, as soon as the locks that this thread holds can be had.
    /// Dropping this without saying so means that none came back.
    pub fn arrived(mut self) {
        self.arrived = true;
    }
}

impl Drop for OnItsWay<'_> {
    fn drop(&mut self) {
        let mut counts = lock(&self.transit.counts);
        counts.under_way -= 1;
        if self.arrived {
            counts.arrived = counts.arrived.wrapping_add(1);
            let arrived = &self.transit.arrived;
            arrived.store(counts.arrived, Ordering::Release);
        }
        if counts.waiting > 0 && (self.arrived || counts.under_way == 0) {
            self.transit.changed.notify_all();
        }
    }
}
