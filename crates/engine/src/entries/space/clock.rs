//! The order in which the shrinker visits clusters. Each has a place in its group's clock, by a stamp of
//! the whole space's sequence, so that ages of different groups can be compared.
//!
//! A page that comes to a cluster long after the cluster got its place is *late*. It has its second
//! chance, and another stamp, which becomes the cluster's place once the earlier pages have gone.

use super::{Locked, Space, entry, split};
use crate::EntryId;
use crate::entries::cluster::Dense;
use crate::entries::entry_word::EntryWord;
use crate::entries::fifo::Stamp;
use crate::entries::group::Group;
use crate::locks::lock;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Clusters that may come into the clocks after one, for each processor and at most, before what
/// comes to that one is younger than its place says. Where all processors fill clusters side by side,
/// singles and runs, so many come while one is filled, and all are of one age.
pub(super) const LATE_AFTER: u64 = 2;
pub(super) const LATE_AFTER_MOST: u64 = 16;

/// Where a cluster was in its group's clock when it was visited, and where it went.
#[derive(Clone, Copy, Debug)]
pub struct Visit {
    cluster: u32,
    came: Stamp,
    went: Option<Stamp>,
}

impl Visit {
    /// Whether an entry is of the cluster that was visited.
    pub fn saw(&self, entry: EntryId) -> bool {
        split(entry).0 == self.cluster
    }
}

impl Space {
    /// How old a group's oldest pages in the pool are: how many clusters of all groups came into
    /// their clocks since.
    pub fn age(&self, group: &Group) -> u64 {
        let oldest = group.oldest();
        // Read last: no stamp that is in a clock is younger.
        oldest.map_or(0, |oldest| 1 + self.came() - oldest.number())
    }

    /// Clusters that came into the clocks of groups so far.
    pub fn came(&self) -> u64 {
        self.stamps.load(Relaxed)
    }

    pub(super) fn next_stamp(&self) -> Stamp {
        Stamp::after(self.stamps.fetch_add(1, Relaxed))
    }

    /// The next cluster of a group in the shrinker's order, locked, at the first entry not seen in this
    /// visit. Clusters without pages in the pool leave the order on the way. The cluster leaves the
    /// order, too; [`Locked::keep_in_clock`] puts it back as the youngest, [`Locked::resume_in_clock`]
    /// where it was.
    pub fn next_in_clock(&self, group: &Arc<Group>) -> Option<Locked<'_>> {
        loop {
            let (cluster, stamp) = lock(&group.lists).clock.pop()?;
            let mut guard = lock(self.slot(cluster));
            let Some(found) = guard.as_mut() else {
                continue;
            };
            if found.clock != Some(stamp) || !Arc::ptr_eq(&found.group, group) {
                continue;
            }
            found.clock = None;
            if found.pooled == 0 {
                // Later pages are younger than those that have gone.
                found.second_stamp = None;
                continue;
            }
            let at = found.visited as usize;
            return Some(Locked {
                came: Some(stamp),
                ..self.locked(guard, cluster, at)
            });
        }
    }

    /// The next cluster of a group in the shrinker's order from where this stopped last, locked at its
    /// first entry. It stays in its place. None at the end of the order, once: then it begins
    /// again.
    pub fn look_along_clock(&self, group: &Arc<Group>) -> Option<Locked<'_>> {
        loop {
            let hand = group.hand.load(Relaxed);
            let next = lock(&group.lists).clock.next_from(hand);
            let Some((cluster, stamp)) = next else {
                group.hand.store(0, Relaxed);
                return None;
            };
            group.hand.store(stamp.number() + 1, Relaxed);
            let first = self.lock_if_used(entry(cluster, 0));
            let is_there = |locked: &Locked<'_>| {
                let cluster = locked.cluster();
                cluster.clock == Some(stamp) && cluster.pooled > 0
            };
            if let Some(locked) = first.filter(is_there) {
                return Some(locked);
            }
        }
    }

    /// The visit was for nothing: its cluster goes back to where it was, to go on at this entry, unless it
    /// has left its place since.
    pub fn return_to_clock(&self, visit: Visit, entry: EntryId) {
        let Some(mut locked) = self.lock_if_used(entry) else {
            return;
        };
        let (number, at) = (locked.cluster, locked.at);
        let cluster = locked.cluster_mut();
        let Some(went) = visit.went.filter(|_| cluster.clock == visit.went) else {
            return;
        };
        if went != visit.came {
            let mut lists = lock(&cluster.group.lists);
            lists.clock.remove(went);
            lists.clock.put_back(number, visit.came);
            cluster.clock = Some(visit.came);
            // Entries that were passed over belong there.
            cluster.second_stamp = cluster.second_stamp.or(visit.went);
        }
        cluster.visited = at as u16;
    }
}

impl Locked<'_> {
    /// Names an object of the pool, of a page that has just come. Its place in the order is its
    /// cluster's, or, if that came long before, where the youngest of those are that came late.
    pub fn set_pooled(&mut self, word: EntryWord) {
        let again = self.gets_second_chance();
        self.set(word.with_referenced(again));
        self.keep_in_clock();
        self.set_dense(Dense::No);
    }

    /// The page asked for, which is in the pool, has just been used: as [`Locked::set_pooled`], but it
    /// has its second chance in any case.
    pub fn set_used(&mut self, word: EntryWord) {
        self.gets_second_chance();
        self.set(word.with_referenced(true));
    }

    /// Whether what comes now is younger than its cluster's place in the clock says, as its cursor fills
    /// it slowly or had closed it. Each time that so many others have come by it gets a new stamp.
    fn gets_second_chance(&mut self) -> bool {
        let space = self.space;
        let cluster = self.cluster_mut();
        let Some(last) = cluster.second_stamp.or(cluster.clock) else {
            return false;
        };
        let since = space.stamps.load(Relaxed).saturating_sub(last.number());
        if since > space.late_after {
            cluster.second_stamp = Some(space.next_stamp());
        }
        cluster.second_stamp.is_some()
    }

    /// Makes sure that the shrinker will visit this cluster: at its place, or, if it has none, at the
    /// place of its late pages, or as the youngest.
    pub fn keep_in_clock(&mut self) {
        let (space, number) = (self.space, self.cluster);
        let cluster = self.cluster_mut();
        if cluster.clock.is_some() || cluster.pooled == 0 {
            return;
        }
        let mut lists = lock(&cluster.group.lists);
        let stamp = match cluster.second_stamp.take() {
            Some(second) => {
                lists.clock.put_back(number, second);
                second
            }
            // Under the lock: each clock's own are in order.
            None => lists.clock.push_stamped(number, space.next_stamp()),
        };
        drop(lists);
        cluster.clock = Some(stamp);
        cluster.visited = 0;
    }

    /// Makes this cluster, given by [`Space::next_in_clock`], the next one again, from the entry asked
    /// for on. So an entry that got its second chance is not asked twice in one visit.
    pub fn resume_in_clock(&mut self) {
        let (number, at, came) = (self.cluster, self.at, self.came);
        let cluster = self.cluster_mut();
        if let Some(stamp) = came
            && cluster.clock.is_none()
            && cluster.pooled > 0
        {
            lock(&cluster.group.lists).clock.put_back(number, stamp);
            cluster.clock = Some(stamp);
            cluster.visited = at as u16;
        }
    }

    /// The visit that ends with this, of a cluster that [`Space::next_in_clock`] gave.
    pub fn visit(&self) -> Option<Visit> {
        let (cluster, went) = (self.cluster, self.cluster().clock);
        self.came.map(|came| Visit {
            cluster,
            came,
            went,
        })
    }
}
