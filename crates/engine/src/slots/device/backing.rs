//! Blocks behind slots. A sparse swap file takes blocks of its file system when slots are first written,
//! and the file system may have none left.
//!
//! A write that fails for that makes its device *short*. A cluster is *backed* if it was full once: all its
//! slots were written, and keep their blocks until a discard. A short device gives slots of backed clusters
//! alone. For all others the next device is asked, or the page stays in memory.
//!
//! Nobody tells when the file system has room again. So a device is short for a number of searches, and is then used
//! like any other, until a write fails again. That number is [`PASSES`] at first, and twice as many each time. It falls
//! again while no write fails. A thread that waits for room searches all the time, so looks of the keeper, which
//! are rare, pass over a sixteenth of them. A discard of a backed cluster ends the shortage at once.
//!
//! A device is *full* from a write that failed so until a cluster's worth of pages was written while it was not short,
//! or until the file system has room again by its own word. Where that says nothing, as of a quota, it is full until it
//! was not short for a while and no write failed. Users are told of that.
//!
//! Both are hints: a wrong one costs a write that fails, after which it is right. So a cluster that comes
//! from the lender is not backed, nor is one that was never full.

use crate::types::{CLUSTER_SLOTS, ClusterIndex};
// Hints, on which no model depends: each of them would make every model longer.
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering::Relaxed};

/// Searches for which a device stays short at first. A processor of which another device takes the pages searches
/// once for each cluster; where there is no other device, once for each batch of pages.
pub(in crate::slots) const PASSES: u16 = 16;
/// The most of them.
const MOST_PASSES: u16 = 1 << 14;
/// Looks of the keeper that pass over all.
const LOOKS: u16 = 16;
/// A word of the file system that says nothing counts for so many pages written: 32 of them end that it is full.
const PAGES_A_WORD: u32 = CLUSTER_SLOTS as u32 / 32;

/// Which clusters of a device have blocks behind all their slots, and whether others may get some.
pub(in crate::slots) struct Backing {
    /// Searches that are still to pass over clusters that are not backed.
    short: AtomicU16,
    /// Searches for which it is short when a write fails next.
    next: AtomicU16,
    /// Pages still to be written until it is full no more.
    full: AtomicU16,
    /// Flag: the file system said that it has no room.
    confirmed: AtomicBool,
    /// A bit for each cluster.
    backed: Box<[AtomicU64]>,
}

impl Backing {
    pub fn new(clusters: u32) -> Self {
        let words = clusters.div_ceil(u64::BITS);
        Self {
            short: AtomicU16::new(0),
            next: AtomicU16::new(PASSES),
            full: AtomicU16::new(0),
            confirmed: AtomicBool::new(false),
            backed: (0..words).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Whether clusters that are not backed are passed over.
    pub fn is_short(&self) -> bool {
        self.short.load(Relaxed) > 0
    }

    /// Whether a write found no block, and nothing says yet that there are some again.
    pub fn is_full(&self) -> bool {
        self.full.load(Relaxed) > 0
    }

    /// Pages were written. While it is short they went to blocks that it had.
    pub fn wrote(&self, pages: u32) {
        if self.is_full() && !self.is_short() {
            let pages = pages.min(u16::MAX.into()) as u16;
            let less = |left: u16| Some(left.saturating_sub(pages));
            let _ = self.full.fetch_update(Relaxed, Relaxed, less);
        }
    }

    /// The file system says, now and then, whether it has room for a cluster; none: it cannot tell. That there is some
    /// means nothing where it said so all the time: a quota may be what is used up. Then nobody tells, where nothing is
    /// to be written.
    pub fn told(&self, has_room: Option<bool>) {
        match has_room {
            _ if !self.is_full() => {}
            Some(false) => self.confirmed.store(true, Relaxed),
            Some(true) if self.confirmed.swap(false, Relaxed) => self.has_room_again(),
            _ => self.wrote(PAGES_A_WORD),
        }
    }

    /// Nothing is known of that here, in a forked child.
    pub fn forget_full(&self) {
        self.full.store(0, Relaxed);
        self.confirmed.store(false, Relaxed);
    }

    fn has_room_again(&self) {
        self.short.store(0, Relaxed);
        self.next.store(PASSES, Relaxed);
        self.full.store(0, Relaxed);
    }

    /// A search of the device begins.
    pub fn pass(&self) {
        self.pass_over(1);
    }

    /// Somebody who does not search looks whether there is room. While there is, shortages of the past are forgotten.
    pub fn look(&self) {
        let next = self.next.load(Relaxed);
        self.pass_over((next / 2 / LOOKS).max(1));
        if !self.is_short() {
            self.next.store((next / 2).max(PASSES), Relaxed);
        }
    }

    fn pass_over(&self, searches: u16) {
        if self.is_short() {
            let less = |left: u16| (left > 0).then(|| left.saturating_sub(searches));
            let _ = self.short.fetch_update(Relaxed, Relaxed, less);
        }
    }

    /// Whether slots of a cluster can be written, as far as is known.
    pub fn has(&self, c: ClusterIndex) -> bool {
        !self.is_short() || {
            let (word, bit) = self.bit(c);
            word.load(Relaxed) & bit != 0
        }
    }

    /// Every slot of a cluster is in use.
    pub fn filled(&self, c: ClusterIndex) {
        let (word, bit) = self.bit(c);
        if word.load(Relaxed) & bit == 0 {
            word.fetch_or(bit, Relaxed);
        }
    }

    /// A slot of a cluster found no block; whether the device was not short.
    pub fn failed(&self, c: ClusterIndex) -> bool {
        self.lost(c);
        if self.full.swap(CLUSTER_SLOTS as u16, Relaxed) == 0 {
            self.confirmed.store(false, Relaxed);
        }
        // Each page of a batch that failed says so.
        if self.is_short() {
            return false;
        }
        let passes = self.next.load(Relaxed);
        self.next.store((2 * passes).min(MOST_PASSES), Relaxed);
        self.short.swap(passes, Relaxed) == 0
    }

    /// A cluster is not ours any more, or its blocks are not. Whether it was backed.
    pub fn lost(&self, c: ClusterIndex) -> bool {
        let (word, bit) = self.bit(c);
        word.load(Relaxed) & bit != 0 && word.fetch_and(!bit, Relaxed) & bit != 0
    }

    /// The device has discarded a cluster: there is room for as much as that had.
    pub fn discarded(&self, c: ClusterIndex) {
        if self.lost(c) {
            self.has_room_again();
        }
    }

    /// Bytes on the heap.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.backed)
    }

    fn bit(&self, c: ClusterIndex) -> (&AtomicU64, u64) {
        let bits = u64::BITS as usize;
        (&self.backed[c.index() / bits], 1 << (c.index() % bits))
    }
}
