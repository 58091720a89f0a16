//! The virtual swap space as a whole: the directory of clusters, the groups, and how an entry's cluster
//! is found and locked. Operations on a locked cluster are in `locked`, allocation in `cursors`, the
//! order in which pages leave the pool in `clock`.

mod clock;
mod cursors;
mod locked;
#[cfg(all(test, not(loom)))]
mod tests;

pub use clock::Visit;
#[cfg(all(test, not(loom)))]
pub(crate) use cursors::SPARE;
pub use locked::Locked;

use super::cluster::{CLUSTER_ENTRIES, Cluster, Dense, EntryClusterState, Vacated};
use super::entry_word::EntryWord;
use super::group::Group;
use super::numbers::{self, Numbers};
use crate::locks::{Guard, LockRank, Ordered, lock};
use crate::{EntryId, GroupId};
use clock::{LATE_AFTER, LATE_AFTER_MOST};
use cursors::Cursor;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, RwLock};

/// The directory's three levels; loom, whose stacks are small, gets small ones.
const LEAF: usize = if cfg!(loom) { 4 } else { 256 };
const MIDDLE: usize = if cfg!(loom) { 2 } else { 128 };
const TOP: usize = if cfg!(loom) { 2 } else { 32 };
/// All clusters an `EntryId` can name, but the last, whose number marks tombstones.
const MAX_CLUSTERS: u32 = (TOP * MIDDLE * LEAF) as u32 - 1;
const _: () = assert!(
    cfg!(loom)
        || (MAX_CLUSTERS as u64 + 1) * crate::CLUSTER_SLOTS as u64 == crate::MAX_ENTRIES as u64 + 1
);

type Slot = Ordered<Option<Box<Cluster>>, { LockRank::EntryCluster as usize }>;
/// One of the directory, locked.
type SlotGuard<'a> = Guard<'a, Option<Box<Cluster>>, { LockRank::EntryCluster as usize }>;
type Middle = Box<[OnceLock<Box<Leaf>>; MIDDLE]>;

/// From the beginning of a cache line on: who shares one is by number (`numbers`).
#[repr(align(64))]
struct Leaf([Slot; LEAF]);

const _: () = assert!(cfg!(loom) || size_of::<Slot>() * numbers::LINE as usize == 64);

/// No entry is left: 2^29 of them are in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("all 2^29 entries of the virtual swap space are in use")]
pub struct NoEntries;

/// A processor's part, on lines of its own.
#[derive(Default)]
#[repr(align(64))]
struct PerCpu {
    cursors: Ordered<Vec<Cursor>, { LockRank::EntryCursor as usize }>,
    /// Entries in use, of clusters that it made.
    used: AtomicUsize,
}

/// The virtual swap space.
pub struct Space {
    top: [OnceLock<Middle>; TOP],
    cpus: Box<[PerCpu]>,
    numbers: Numbers,
    spare: Ordered<Vec<Box<Cluster>>, { LockRank::Leaf as usize }>,
    groups: RwLock<Vec<Arc<Group>>>,
    /// Groups made so far; grows under the lock of `groups`.
    groups_made: AtomicU64,
    /// Stamps given in the clocks of all groups: one sequence, so that these can be compared.
    stamps: AtomicU64,
    /// The number of later ones that makes what comes to a cluster late.
    late_after: u64,
    // Statistics; kept so that asking costs no walk.
    clusters: AtomicUsize,
    leaves: AtomicUsize,
    middles: AtomicUsize,
    /// Σ `left - unpackable` of the clusters.
    left: AtomicUsize,
}

const fn split(entry: EntryId) -> (u32, usize) {
    (
        entry.0 / CLUSTER_ENTRIES as u32,
        entry.0 as usize % CLUSTER_ENTRIES,
    )
}

const fn entry(cluster: u32, at: usize) -> EntryId {
    EntryId(cluster * CLUSTER_ENTRIES as u32 + at as u32)
}

impl Space {
    /// An empty space for `cpus` processors.
    pub fn new(cpus: usize) -> Self {
        let cpus = cpus.max(1);
        Self {
            top: [const { OnceLock::new() }; TOP],
            cpus: (0..cpus).map(|_| PerCpu::default()).collect(),
            numbers: Numbers::new(cpus, MAX_CLUSTERS),
            spare: Ordered::new(Vec::with_capacity(cursors::SPARE)),
            groups: RwLock::default(),
            groups_made: AtomicU64::new(0),
            stamps: AtomicU64::new(0),
            late_after: (LATE_AFTER * cpus as u64).min(LATE_AFTER_MOST),
            clusters: AtomicUsize::new(0),
            leaves: AtomicUsize::new(0),
            middles: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
        }
    }

    /// The group of this number, made if it is new.
    pub fn group(&self, id: GroupId) -> Arc<Group> {
        let find =
            |groups: &[Arc<Group>]| groups.iter().find(|g| g.id == id && !g.ended()).cloned();
        if let Some(group) = find(&read(&self.groups)) {
            return group;
        }
        let mut groups = self
            .groups
            .write()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        find(&groups).unwrap_or_else(|| {
            let number = self.groups_made.fetch_add(1, Relaxed) + 1;
            groups.push(Arc::new(Group::new(id, number)));
            groups[groups.len() - 1].clone()
        })
    }

    /// All groups, in order of their first use.
    pub fn groups(&self) -> Vec<Arc<Group>> {
        read(&self.groups).clone()
    }

    /// Ends a group. Its pages stay where they are until freed, and the shrinker goes on
    /// visiting those in the pool; a group of the same number is a new one. A store that is under way
    /// puts into the one or into the other, as its entries were reserved before its processor was
    /// told or after.
    pub fn remove_group(&self, id: GroupId) {
        for group in read(&self.groups).iter().filter(|g| g.id == id) {
            group.end();
        }
        for cpu in &self.cpus {
            let mut cursors = lock(&cpu.cursors);
            if let Some(at) = cursors.iter().position(|c| c.group.id == id) {
                let cursor = cursors.swap_remove(at);
                self.close(cursor);
            }
        }
        self.forget_groups();
    }

    /// Forgets ended groups that no cluster has: nobody can come by one any more but here.
    fn forget_groups(&self) {
        let mut groups = self
            .groups
            .write()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        groups.retain(|group| !group.ended() || Arc::strong_count(group) > 1);
    }

    fn slot(&self, cluster: u32) -> &Slot {
        let (top, rest) = (
            cluster as usize / (LEAF * MIDDLE),
            cluster as usize % (LEAF * MIDDLE),
        );
        let middle = self.top[top].get_or_init(|| {
            self.middles.fetch_add(1, Relaxed);
            Box::new([const { OnceLock::new() }; MIDDLE])
        });
        let leaf = middle[rest / LEAF].get_or_init(|| {
            self.leaves.fetch_add(1, Relaxed);
            Box::new(Leaf(std::array::from_fn(|_| Ordered::new(None))))
        });
        &leaf.0[rest % LEAF]
    }

    /// Locks the cluster of an entry that the caller holds a reference to.
    pub fn lock(&self, at: EntryId) -> Locked<'_> {
        let (cluster, at) = split(at);
        let guard = lock(self.slot(cluster));
        assert!(
            guard.is_some(),
            "entry {at} of cluster {cluster} is used after it was freed"
        );
        self.locked(guard, cluster, at)
    }

    /// A cluster that is there, locked at one of its entries.
    fn locked<'a>(&'a self, guard: SlotGuard<'a>, cluster: u32, at: usize) -> Locked<'a> {
        Locked {
            space: self,
            guard,
            cluster,
            at,
            freed: 0,
            came: None,
        }
    }

    /// Locks the cluster of an entry that may have been freed.
    pub fn lock_if_used(&self, entry: EntryId) -> Option<Locked<'_>> {
        let (cluster, at) = split(entry);
        if cluster >= MAX_CLUSTERS {
            return None;
        }
        let middle = self.top[cluster as usize / (LEAF * MIDDLE)].get()?;
        let leaf = middle[cluster as usize / LEAF % MIDDLE].get()?;
        let guard = lock(&leaf.0[cluster as usize % LEAF]);
        guard.is_some().then(|| self.locked(guard, cluster, at))
    }

    /// The second step of a thread that marked an entry busy and worked without the lock. The entry gets
    /// another word if its own is still the busy one; returned are the lock, and the fate of the entry's
    /// old place. If not, what was made for it is the caller's to give up.
    pub fn repoint(
        &self,
        entry: EntryId,
        busy: EntryWord,
        to: EntryWord,
    ) -> Option<(Locked<'_>, Vacated)> {
        let mut locked = self.lock_if_used(entry)?;
        let vacated = locked.repoint(busy, to)?;
        Some((locked, vacated))
    }

    /// The second step of a thread that copied the pages of entries side by side without the lock and
    /// without a mark. Returns their cluster, locked, at the first entry, if none of them has changed.
    /// If not, the copies are the caller's to give up.
    pub fn lock_still(&self, first: EntryId, before: &[EntryWord]) -> Option<Locked<'_>> {
        let mut locked = self.lock_if_used(first)?;
        let mut words = before.iter().zip(0..);
        let still = words.all(|(&word, i)| locked.seek(first.plus(i)) && locked.is_still(word));
        locked.seek(first);
        still.then_some(locked)
    }

    /// The words of entries, some of which may be free: one step for those side by side in one
    /// cluster.
    pub fn words(&self, entries: &[EntryId], words: &mut [EntryWord]) {
        words.fill(EntryWord::FREE);
        let mut at = 0;
        while at < entries.len() {
            let Some(mut locked) = self.lock_if_used(entries[at]) else {
                at += 1;
                continue;
            };
            while at < entries.len() && locked.seek(entries[at]) {
                words[at] = locked.word();
                at += 1;
            }
        }
    }

    /// Entries in use.
    pub fn used(&self) -> usize {
        let used = |cpu: &PerCpu| cpu.used.load(Relaxed);
        self.cpus.iter().map(used).sum()
    }

    /// Bytes held: words, headers, directory, lists. Within a few pages, without a walk.
    pub fn bytes(&self) -> usize {
        let lists: usize = read(&self.groups)
            .iter()
            .map(|group| {
                let lists = lock(&group.lists);
                size_of::<Group>() + lists.clock.bytes() + lists.partial.bytes()
            })
            .sum();
        let spare = lock(&self.spare).len();
        (self.clusters.load(Relaxed) + spare) * size_of::<Cluster>()
            + self.leaves.load(Relaxed) * size_of::<Leaf>()
            + self.middles.load(Relaxed) * size_of::<[OnceLock<Box<Leaf>>; MIDDLE]>()
            + self.numbers.bytes()
            + size_of_val(&*self.cpus)
            + lists
    }

    /// Calls `f` with every entry in use, its word, cluster by cluster.
    pub fn each_word(&self, mut f: impl FnMut(EntryId, EntryWord)) {
        self.each_cluster(|number, cluster| {
            for (at, &word) in cluster
                .words
                .iter()
                .enumerate()
                .filter(|(_, w)| !w.is_free())
            {
                f(entry(number, at), word);
            }
        });
    }

    fn each_cluster(&self, mut f: impl FnMut(u32, &Cluster)) {
        for number in 0..self.numbers.end() {
            if let Some(cluster) = lock(self.slot(number)).as_ref() {
                f(number, cluster);
            }
        }
    }

    /// All invariants of this part; for a space at rest.
    pub fn check(&self) {
        let (mut clusters, mut used, mut left) = (0, 0, 0);
        let mut clock: Vec<(*const Group, u32)> = Vec::new();
        let mut partial: Vec<(*const Group, u32)> = Vec::new();
        self.each_cluster(|number, cluster| {
            cluster.check();
            clusters += 1;
            used += cluster.used as usize;
            left += usize::from(cluster.left - cluster.unpackable);
            if cluster.clock.is_some() {
                clock.push((Arc::as_ptr(cluster.group()), number));
            }
            if let EntryClusterState::Partial(_) = cluster.state {
                partial.push((Arc::as_ptr(cluster.group()), number));
            }
        });
        assert_eq!(clusters, self.clusters.load(Relaxed));
        assert_eq!(used, self.used());
        assert_eq!(left, self.left());
        for group in &self.groups() {
            let lists = lock(&group.lists);
            let of = |all: &[(*const Group, u32)]| -> Vec<u32> {
                all.iter()
                    .filter(|(of, _)| *of == Arc::as_ptr(group))
                    .map(|&(_, n)| n)
                    .collect()
            };
            let sorted = |fifo: &super::fifo::Fifo| {
                let mut all: Vec<u32> = fifo.iter().collect();
                all.sort_unstable();
                all
            };
            assert_eq!(
                sorted(&lists.clock),
                of(&clock),
                "clock of group {}",
                group.id
            );
            assert_eq!(
                sorted(&lists.partial),
                of(&partial),
                "partial of group {}",
                group.id
            );
        }
    }

    /// The first of `looks` clusters from `from` on that is not among the youngest of its
    /// group's, has pages in the pool, and was not recompressed.
    pub fn find_cold(&self, from: u32, looks: u32) -> Option<u32> {
        (from..self.numbers.end())
            .take(looks as usize)
            .find(|&number| {
                let guard = lock(self.slot(number));
                guard.as_ref().is_some_and(|cluster| {
                    let old = |stamp| lock(&cluster.group.lists).clock.is_old(stamp);
                    let is_new = cluster.dense == Dense::No;
                    cluster.pooled > 0 && is_new && cluster.clock.is_some_and(old)
                })
            })
    }

    /// Objects that a fork had frozen are no other's any more: their clusters are to be recompressed.
    pub fn thawed(&self) {
        for number in 0..self.numbers.end() {
            if let Some(cluster) = lock(self.slot(number)).as_mut()
                && cluster.dense == Dense::ButFrozen
            {
                cluster.dense = Dense::No;
            }
        }
    }

    /// Pages that left blocks which others keep, but for those that packing again did not get rid of.
    pub fn left(&self) -> usize {
        self.left.load(Relaxed)
    }

    /// The first of `looks` clusters from `from` on in which a page left a block for each `share` that
    /// are there, or more, of those that [`Space::left`] counts.
    pub fn find_left(&self, from: u32, looks: u32, share: u32) -> Option<u32> {
        (from..self.numbers.end())
            .take(looks as usize)
            .find(|&number| {
                let guard = lock(self.slot(number));
                guard.as_ref().is_some_and(|cluster| {
                    let left = u32::from(cluster.left - cluster.unpackable);
                    left > 0 && left.saturating_mul(share) >= cluster.used.into()
                })
            })
    }

    /// A cluster number to look on from: the first if there is none after.
    pub fn wrap(&self, from: u32) -> u32 {
        if from < self.numbers.end() { from } else { 0 }
    }
}

fn read<T>(shared: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    shared
        .read()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}
