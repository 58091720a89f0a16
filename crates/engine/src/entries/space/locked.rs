//! A cluster under its lock, and what may be done with an entry of it.

use super::{SlotGuard, Space, entry, split};
use crate::EntryId;
use crate::entries::cluster::{Cluster, Dense, Vacated};
use crate::entries::entry_word::{EntryWord, Location};
use crate::entries::fifo::Stamp;
use std::sync::atomic::Ordering::Relaxed;

/// A locked cluster, and one entry of it that the caller asked for.
pub struct Locked<'a> {
    pub(super) space: &'a Space,
    pub(super) guard: SlotGuard<'a>,
    pub(super) cluster: u32,
    pub(super) at: usize,
    /// Entries freed and not yet taken from the space's count.
    pub(super) freed: usize,
    /// The place where it was in its group's clock, if it was taken from there.
    pub(super) came: Option<Stamp>,
}

impl Locked<'_> {
    pub(super) fn cluster_mut(&mut self) -> &mut Cluster {
        self.guard
            .as_mut()
            .unwrap_or_else(|| unreachable!("locked clusters exist"))
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        self.guard
            .as_ref()
            .unwrap_or_else(|| unreachable!("locked clusters exist"))
    }

    /// Whether `entry` is in this cluster; then it becomes the one asked for.
    pub fn seek(&mut self, entry: EntryId) -> bool {
        let (cluster, at) = split(entry);
        self.at = at;
        cluster == self.cluster
    }

    /// The entry asked for.
    pub fn entry(&self) -> EntryId {
        entry(self.cluster, self.at)
    }

    /// The entry's word.
    pub fn word(&self) -> EntryWord {
        self.cluster().word(self.at)
    }

    /// Whether the entry's page is there and nobody is about to move it: for whoever moves it under the
    /// lock, or has only read it.
    pub fn is_at(&self, location: Location) -> bool {
        let word = self.word();
        word.location() == location && !word.busy()
    }

    /// Whether it is the page that it was, and nobody is about to move it. Another may have come to the
    /// same place under the same entry, which its checksum tells.
    pub(super) fn is_still(&self, before: EntryWord) -> bool {
        let plain = |word: EntryWord| word.with_cached(false).with_referenced(false);
        let word = self.word();
        plain(word) == plain(before) && !word.busy()
    }

    /// The position in the cluster of the entry asked for.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Makes the entry at this position of the cluster the one asked for.
    pub fn seek_at(&mut self, at: usize) {
        self.at = at;
    }

    /// Replaces the entry's word by another used one. After putting a page into the pool, call
    /// [`Locked::set_pooled`], or [`Locked::keep_in_clock`] before unlocking.
    pub fn set(&mut self, word: EntryWord) {
        let at = self.at;
        self.cluster_mut().set(at, word);
    }

    /// Lets the entry name another place, or the same; what became of the one it named.
    pub fn replace(&mut self, word: EntryWord) -> Vacated {
        if word.same_place(self.word()) {
            self.set(word);
            return Vacated::Place(Location::Free);
        }
        let vacated = self.cluster().vacate(self.at);
        self.set(word);
        vacated
    }

    /// How many pages left blocks of this cluster which others keep, and how many of those packing again
    /// does not get rid of.
    pub fn left(&self) -> (u16, u16) {
        (self.cluster().left, self.cluster().unpackable)
    }

    /// Counts more pages that left blocks of this cluster which others keep, or fewer, as the rest of
    /// those blocks has gone.
    pub fn count_left(&mut self, more: i32) {
        if more != 0 {
            let (left, unpackable) = self.left();
            self.set_left(
                i32::from(left).saturating_add(more).max(0) as u16,
                unpackable,
            );
        }
    }

    /// Says how many of them packing again does not get rid of.
    pub fn set_unpackable(&mut self, unpackable: u16) {
        self.set_left(self.left().0, unpackable);
    }

    fn set_left(&mut self, left: u16, unpackable: u16) {
        let unpackable = unpackable.min(left);
        let cluster = self.cluster_mut();
        let before = cluster.left - cluster.unpackable;
        (cluster.left, cluster.unpackable) = (left, unpackable);
        // Modulo 2^64: one addition, whichever way.
        let more = usize::from(left - unpackable).wrapping_sub(before.into());
        if more != 0 {
            self.space.left.fetch_add(more, Relaxed);
        }
    }

    /// See [`Space::repoint`].
    pub fn repoint(&mut self, busy: EntryWord, to: EntryWord) -> Option<Vacated> {
        debug_assert!(busy.busy() && !to.busy());
        let word = self.word();
        if word == busy {
            return Some(self.replace(to));
        }
        // One thread marks at a time: it is the caller's mark, on a page that was loaded and kept.
        if word.busy() {
            self.set(word.with_busy(false));
        }
        None
    }

    /// Notes how far recompression has been through this cluster.
    pub fn set_dense(&mut self, dense: Dense) {
        self.cluster_mut().dense = dense;
    }

    /// Frees the entry. Call [`Locked::settle`] before unlocking.
    pub fn release_unsettled(&mut self) -> Vacated {
        let at = self.at;
        self.freed += 1;
        self.cluster_mut().release(at)
    }

    /// Puts the cluster where its fill says, after releases.
    pub fn settle(mut self) {
        if self.freed > 0 {
            let maker = self.cluster().maker as usize;
            self.space.cpus[maker].used.fetch_sub(self.freed, Relaxed);
        }
        self.space.settle(&mut self.guard, self.cluster);
    }

    /// Frees the entry.
    pub fn release(mut self) -> Vacated {
        let vacated = self.release_unsettled();
        self.settle();
        vacated
    }
}
