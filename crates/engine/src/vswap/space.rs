//! The directory of clusters and the cursors that allocate in them.

#[cfg(all(test, not(loom)))]
mod tests;

use super::cluster::{CLUSTER_ENTRIES, Cluster, Released, State, Vacated};
use super::fifo::Stamp;
use super::group::{Group, Hold};
use super::numbers::{self, Numbers};
use super::word::{Location, Word};
use crate::locks::{Guard, Ordered, Place, lock};
use crate::{Cpu, EntryId, GroupId};
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

/// A closed cluster with at most this many used entries is worth opening again.
const REOPEN_BELOW: usize = CLUSTER_ENTRIES - CLUSTER_ENTRIES / 4;
/// Emptied clusters kept for the next one that is wanted, so that a steady flow of pages through fresh
/// clusters does not go through the allocator.
pub(crate) const SPARE: usize = 8;
/// Partial clusters tried for a run before a fresh cluster is opened.
const RUN_TRIES: usize = 4;
/// Clusters that may come into the clocks after one, for each processor and at most, before what
/// comes to that one is younger than its place says. Where all processors fill clusters side by side,
/// singles and runs, so many come while one is filled, and all are of one age.
const LATE_AFTER: u64 = 2;
const LATE_AFTER_MOST: u64 = 16;

type Slot = Ordered<Option<Box<Cluster>>, { Place::EntryCluster as usize }>;
/// One of the directory, locked.
type SlotGuard<'a> = Guard<'a, Option<Box<Cluster>>, { Place::EntryCluster as usize }>;
type Middle = Box<[OnceLock<Box<Leaf>>; MIDDLE]>;

/// From the beginning of a cache line on: who shares one is by number (`numbers`).
#[repr(align(64))]
struct Leaf([Slot; LEAF]);

const _: () = assert!(cfg!(loom) || size_of::<Slot>() * numbers::LINE as usize == 64);

/// No entry is left: 2^29 of them are in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("all 2^29 entries of the virtual swap space are in use")]
pub struct NoEntries;

/// What a processor has of its own, on lines of its own.
#[derive(Default)]
#[repr(align(64))]
struct PerCpu {
    cursors: Ordered<Vec<Cursor>, { Place::EntryCursor as usize }>,
    /// Entries in use, of clusters that it made.
    used: AtomicUsize,
}

/// The clusters that a processor has open for a group.
struct Cursor {
    group: Hold,
    singles: Option<u32>,
    runs: Option<u32>,
}

/// Groups a processor has clusters open for; the oldest are closed to make room.
const CURSOR_GROUPS: usize = 8;

/// The virtual swap space.
pub struct Space {
    top: [OnceLock<Middle>; TOP],
    cpus: Box<[PerCpu]>,
    numbers: Numbers,
    spare: Ordered<Vec<Box<Cluster>>, { Place::Leaf as usize }>,
    groups: RwLock<Vec<Arc<Group>>>,
    /// Groups made so far; grows under the lock of `groups`.
    groups_made: AtomicU64,
    /// Stamps given in the clocks of all groups: one sequence, so that these can be compared.
    stamps: AtomicU64,
    /// How many later ones make what comes to a cluster late.
    late_after: u64,
    // Statistics; kept so that asking costs no walk.
    clusters: AtomicUsize,
    leaves: AtomicUsize,
    middles: AtomicUsize,
    /// Σ `left - vain` of the clusters.
    left: AtomicUsize,
    /// Bytes of references beyond the first.
    extra: AtomicUsize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Want {
    Singles,
    Run(usize),
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
            spare: Ordered::new(Vec::with_capacity(SPARE)),
            groups: RwLock::default(),
            groups_made: AtomicU64::new(0),
            stamps: AtomicU64::new(0),
            late_after: (LATE_AFTER * cpus as u64).min(LATE_AFTER_MOST),
            clusters: AtomicUsize::new(0),
            leaves: AtomicUsize::new(0),
            middles: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
            extra: AtomicUsize::new(0),
        }
    }

    /// The group of this number, made without limits if it is new.
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

    fn next_stamp(&self) -> Stamp {
        Stamp::after(self.stamps.fetch_add(1, Relaxed))
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
        guard.is_some().then_some(Locked {
            space: self,
            guard,
            cluster,
            at,
            freed: 0,
            came: None,
        })
    }

    /// The second step of whoever marked an entry busy and worked without the lock: it gets another
    /// word, if its own is still the busy one; then, what became of the place it was at, and the lock.
    /// If not, what was made for it is the caller's to give up.
    pub fn repoint(&self, entry: EntryId, busy: Word, to: Word) -> Option<(Locked<'_>, Vacated)> {
        let mut locked = self.lock_if_used(entry)?;
        let vacated = locked.repoint(busy, to)?;
        Some((locked, vacated))
    }

    /// The second step of whoever copied the pages of entries side by side without the lock, and marked
    /// nothing: their cluster, locked, at the first, if all of them are what they were. If not, the copies
    /// are the caller's to give up.
    pub fn lock_still(&self, first: EntryId, before: &[Word]) -> Option<Locked<'_>> {
        let mut locked = self.lock_if_used(first)?;
        let mut words = before.iter().zip(0..);
        let still = words.all(|(&word, i)| locked.seek(first.plus(i)) && locked.is_still(word));
        locked.seek(first);
        still.then_some(locked)
    }

    /// The words of entries, some of which may be free: one step for those side by side in one
    /// cluster.
    pub fn words(&self, entries: &[EntryId], words: &mut [Word]) {
        words.fill(Word::FREE);
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

    /// Which processor's part serves this one.
    fn part(&self, cpu: Cpu) -> usize {
        cpu.index() % self.cpus.len()
    }

    /// Reserves entries for single pages into `out`, all of them or none; the group that is to be
    /// charged for what is put there.
    pub fn reserve_each(
        &self,
        cpu: Cpu,
        group: GroupId,
        out: &mut [EntryId],
    ) -> Result<Hold, NoEntries> {
        let mut found = [0u16; 64];
        let mut done = 0;
        let cpu = self.part(cpu);
        let mut cursors = lock(&self.cpus[cpu].cursors);
        let cursor = self.cursor(&mut cursors, group);
        while done < out.len() {
            let Some((cluster, mut guard)) = self.open(cpu, cursor, Want::Singles) else {
                drop(cursors);
                for &mut given in &mut out[..done] {
                    self.lock(given).release();
                }
                return Err(NoEntries);
            };
            let target = guard.as_mut().unwrap_or_else(|| unreachable!());
            let room = found.len().min(out.len() - done);
            let n = target.reserve_each(&mut found[..room]);
            self.count_used(target.maker, n);
            drop(guard);
            for &at in &found[..n] {
                out[done] = entry(cluster, at as usize);
                done += 1;
            }
            if n < room {
                self.close_cluster(cursor.current(Want::Singles).take());
            }
        }
        Ok(cursor.group.clone())
    }

    /// Reserves `pages` consecutive entries, aligned to the next power of two; the first, and the
    /// group that is to be charged.
    pub fn reserve_run(
        &self,
        cpu: Cpu,
        group: GroupId,
        pages: usize,
    ) -> Result<(EntryId, Hold), NoEntries> {
        assert!(
            (1..=CLUSTER_ENTRIES).contains(&pages),
            "a run of {pages} pages"
        );
        let cpu = self.part(cpu);
        let mut cursors = lock(&self.cpus[cpu].cursors);
        let cursor = self.cursor(&mut cursors, group);
        loop {
            let want = Want::Run(pages);
            let (cluster, mut guard) = self.open(cpu, cursor, want).ok_or(NoEntries)?;
            let target = guard.as_mut().unwrap_or_else(|| unreachable!());
            if let Some(start) = target.reserve_run(pages) {
                self.count_used(target.maker, pages);
                return Ok((entry(cluster, start), cursor.group.clone()));
            }
            drop(guard);
            self.close_cluster(cursor.current(want).take());
        }
    }

    /// So many more entries are in use, of a cluster that this processor made.
    fn count_used(&self, maker: u16, entries: usize) {
        self.cpus[maker as usize].used.fetch_add(entries, Relaxed);
    }

    /// A processor's cursor for a group. The group of this number that it has is not looked for
    /// elsewhere: who ends that tells every processor.
    fn cursor<'c>(&self, cursors: &'c mut Vec<Cursor>, id: GroupId) -> &'c mut Cursor {
        let known = cursors.iter().position(|c| c.group.id == id);
        let at = known.unwrap_or_else(|| {
            if cursors.len() == CURSOR_GROUPS {
                let oldest = cursors.remove(0);
                self.close(oldest);
            }
            cursors.push(Cursor {
                group: Hold::new(self.group(id)),
                singles: None,
                runs: None,
            });
            cursors.len() - 1
        });
        &mut cursors[at]
    }

    /// The open cluster of a cursor, locked; opens one if there is none.
    fn open(&self, cpu: usize, cursor: &mut Cursor, want: Want) -> Option<(u32, SlotGuard<'_>)> {
        if let Some(cluster) = *cursor.current(want) {
            return Some((cluster, lock(self.slot(cluster))));
        }
        let opened = self
            .reopen(&cursor.group, want)
            .or_else(|| self.fresh(cpu, &cursor.group))?;
        *cursor.current(want) = Some(opened.0);
        Some(opened)
    }

    /// Opens a partial cluster that has room for what is wanted.
    fn reopen(&self, group: &Arc<Group>, want: Want) -> Option<(u32, SlotGuard<'_>)> {
        for _ in 0..RUN_TRIES {
            let (cluster, stamp) = lock(&group.lists).partial.pop()?;
            let mut guard = lock(self.slot(cluster));
            // Between the two locks it may have been emptied and even made anew.
            let Some(found) = guard.as_mut() else {
                continue;
            };
            if found.state != State::Partial(stamp) || !Arc::ptr_eq(&found.group, group) {
                continue;
            }
            let fits = match want {
                Want::Singles => true,
                Want::Run(pages) => match found.reserve_run(pages) {
                    Some(start) => {
                        found.words[start..start + pages].fill(Word::FREE);
                        found.used -= pages as u16;
                        found.unhint(start);
                        true
                    }
                    None => false,
                },
            };
            if fits {
                found.state = State::Open;
                // What comes now is younger than what filled it.
                found.late = found.clock.map(|_| self.next_stamp());
                return Some((cluster, guard));
            }
            found.state = State::Partial(lock(&group.lists).partial.push(cluster));
        }
        None
    }

    fn fresh(&self, cpu: usize, group: &Hold) -> Option<(u32, SlotGuard<'_>)> {
        let number = self.numbers.take(cpu)?;
        let maker = cpu as u16;
        let spare = lock(&self.spare).pop();
        let cluster = match spare {
            Some(mut cluster) => {
                cluster.recycle(group.clone(), maker);
                cluster
            }
            None => Box::new(Cluster::new(group.clone(), maker)),
        };
        let mut guard = lock(self.slot(number));
        debug_assert!(guard.is_none());
        *guard = Some(cluster);
        self.clusters.fetch_add(1, Relaxed);
        Some((number, guard))
    }

    fn close(&self, cursor: Cursor) {
        self.close_cluster(cursor.singles);
        self.close_cluster(cursor.runs);
    }

    fn close_cluster(&self, cluster: Option<u32>) {
        let Some(cluster) = cluster else { return };
        let mut guard = lock(self.slot(cluster));
        if let Some(open) = guard.as_mut() {
            debug_assert_eq!(open.state, State::Open);
            open.state = State::Closed;
            self.settle(&mut guard, cluster);
        }
    }

    /// After entries were freed or a cursor left: the cluster goes where its fill says.
    fn settle(&self, guard: &mut SlotGuard<'_>, number: u32) {
        let Some(cluster) = guard.as_mut() else {
            return;
        };
        if cluster.state == State::Open {
            return;
        }
        if cluster.used == 0 {
            let mut lists = lock(&cluster.group.lists);
            if let State::Partial(stamp) = cluster.state {
                lists.partial.remove(stamp);
            }
            if let Some(stamp) = cluster.clock {
                lists.clock.remove(stamp);
            }
            drop(lists);
            let maker = cluster.maker;
            debug_assert_eq!(cluster.left, 0);
            if let Some(emptied) = guard.take() {
                let mut spare = lock(&self.spare);
                if spare.len() < SPARE {
                    spare.push(emptied);
                }
            }
            self.clusters.fetch_sub(1, Relaxed);
            self.numbers.put(maker as usize, number);
        } else if cluster.state == State::Closed && cluster.used as usize <= REOPEN_BELOW {
            let stamp = lock(&cluster.group.lists).partial.push(number);
            cluster.state = State::Partial(stamp);
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
            + self.extra.load(Relaxed)
            + lists
    }

    /// Calls `f` with every entry in use, its word and its references, cluster by cluster.
    pub fn each_word(&self, mut f: impl FnMut(EntryId, Word, u32)) {
        self.each_cluster(|number, cluster| {
            for (at, &word) in cluster
                .words
                .iter()
                .enumerate()
                .filter(|(_, w)| !w.is_free())
            {
                f(entry(number, at), word, cluster.references(at));
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
        let (mut clusters, mut used, mut left, mut extra) = (0, 0, 0, 0);
        let mut clock: Vec<(*const Group, u32)> = Vec::new();
        let mut partial: Vec<(*const Group, u32)> = Vec::new();
        self.each_cluster(|number, cluster| {
            cluster.check();
            clusters += 1;
            used += cluster.used as usize;
            left += usize::from(cluster.left - cluster.vain);
            extra += cluster.extra_bytes();
            if cluster.clock.is_some() {
                clock.push((Arc::as_ptr(cluster.group()), number));
            }
            if let State::Partial(_) = cluster.state {
                partial.push((Arc::as_ptr(cluster.group()), number));
            }
        });
        assert_eq!(clusters, self.clusters.load(Relaxed));
        assert_eq!(used, self.used());
        assert_eq!(left, self.left());
        assert_eq!(extra, self.extra.load(Relaxed));
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
                    cluster.pooled > 0 && !cluster.dense && cluster.clock.is_some_and(old)
                })
            })
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
                    let left = u32::from(cluster.left - cluster.vain);
                    left > 0 && left.saturating_mul(share) >= cluster.used.into()
                })
            })
    }

    /// A cluster number to look on from: the first if there is none after.
    pub fn wrap(&self, from: u32) -> u32 {
        if from < self.numbers.end() { from } else { 0 }
    }

    /// The next cluster of a group in the shrinker's order, locked, at the first entry that it has
    /// not seen in this visit; those that have no pages in the pool any more leave the order on the way.
    /// The cluster leaves the order, too; [`Locked::keep_in_clock`] puts it back
    /// as the youngest, [`Locked::resume_in_clock`] where it was.
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
                // What comes next is not as old as what has gone.
                found.late = None;
                continue;
            }
            let at = found.visited as usize;
            return Some(Locked {
                space: self,
                guard,
                cluster,
                at,
                freed: 0,
                came: Some(stamp),
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

    /// What was visited is to be visited again: its cluster goes back to where it was, to go on at this
    /// entry, unless it has left its place since.
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
            // What was passed over belongs there.
            cluster.late = cluster.late.or(visit.went);
        }
        cluster.visited = at as u16;
    }
}

impl Cursor {
    fn current(&mut self, want: Want) -> &mut Option<u32> {
        match want {
            Want::Singles => &mut self.singles,
            Want::Run(_) => &mut self.runs,
        }
    }
}

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

fn read<T>(shared: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    shared
        .read()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A locked cluster, and one entry of it that the caller asked for.
pub struct Locked<'a> {
    space: &'a Space,
    guard: SlotGuard<'a>,
    cluster: u32,
    at: usize,
    /// Entries freed and not yet taken from the space's count.
    freed: usize,
    /// Where it was in its group's clock, if it was taken from there.
    came: Option<Stamp>,
}

impl Locked<'_> {
    fn cluster_mut(&mut self) -> &mut Cluster {
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
    pub fn word(&self) -> Word {
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
    fn is_still(&self, before: Word) -> bool {
        let plain = |word: Word| word.with_cached(false).with_referenced(false);
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
    /// Replaces the entry's word by another used one. Whoever puts a page into the pool
    /// calls [`Locked::set_pooled`], or [`Locked::keep_in_clock`] before unlocking.
    pub fn set(&mut self, word: Word) {
        let at = self.at;
        self.cluster_mut().set(at, word);
    }
    /// Lets the entry name another place, or the same; what became of the one it named.
    pub fn replace(&mut self, word: Word) -> Vacated {
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
        (self.cluster().left, self.cluster().vain)
    }
    /// So many more pages left blocks of this cluster which others keep; or fewer, as what they had left
    /// has gone.
    pub fn count_left(&mut self, more: i32) {
        if more != 0 {
            let (left, vain) = self.left();
            self.set_left(i32::from(left).saturating_add(more).max(0) as u16, vain);
        }
    }
    /// Says how many of them packing again does not get rid of.
    pub fn set_vain(&mut self, vain: u16) {
        self.set_left(self.left().0, vain);
    }
    fn set_left(&mut self, left: u16, vain: u16) {
        let vain = vain.min(left);
        let cluster = self.cluster_mut();
        let before = cluster.left - cluster.vain;
        (cluster.left, cluster.vain) = (left, vain);
        // Modulo 2^64: one addition, whichever way.
        let more = usize::from(left - vain).wrapping_sub(before.into());
        if more != 0 {
            self.space.left.fetch_add(more, Relaxed);
        }
    }
    /// Runs `f`, which may change the references of entries, and counts the bytes that these take.
    fn with_references<R>(&mut self, f: impl FnOnce(&mut Cluster) -> R) -> R {
        let cluster = self.cluster_mut();
        let before = cluster.extra_bytes();
        let result = f(cluster);
        let after = cluster.extra_bytes();
        if after != before {
            self.space
                .extra
                .fetch_add(after.wrapping_sub(before), Relaxed);
        }
        result
    }
    /// See [`Space::repoint`].
    pub fn repoint(&mut self, busy: Word, to: Word) -> Option<Vacated> {
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
    /// Names an object of the pool, of a page that has just come. Its place in the order is its
    /// cluster's, or, if that came long before, where the youngest of those are that came late.
    pub fn set_pooled(&mut self, word: Word) {
        let late = self.comes_late();
        self.set(word.with_referenced(late));
        self.keep_in_clock();
        self.set_dense(false);
    }
    /// The page asked for, which is in the pool, has just been used: as [`Locked::set_pooled`], but it
    /// has its second chance in any case.
    pub fn set_used(&mut self, word: Word) {
        self.comes_late();
        self.set(word.with_referenced(true));
    }
    /// Whether what comes now is younger than its cluster's place in the clock says, as its cursor fills
    /// it slowly or had closed it. Each time that so many others have come by it gets a new stamp.
    fn comes_late(&mut self) -> bool {
        let space = self.space;
        let cluster = self.cluster_mut();
        let Some(last) = cluster.late.or(cluster.clock) else {
            return false;
        };
        let since = space.stamps.load(Relaxed).saturating_sub(last.number());
        if since > space.late_after {
            cluster.late = Some(space.next_stamp());
        }
        cluster.late.is_some()
    }
    /// References of the entry.
    pub fn references(&self) -> u32 {
        self.cluster().references(self.at)
    }
    /// Adds a reference; false if it has `u32::MAX` already.
    pub fn dup(&mut self) -> bool {
        let at = self.at;
        self.with_references(|cluster| cluster.dup(at))
    }
    /// Sets the number of references, for tests of what many do.
    #[cfg(test)]
    pub fn set_references(&mut self, references: u32) {
        let at = self.at;
        self.with_references(|cluster| cluster.set_references(at, references));
    }
    /// Notes whether recompression has been through this cluster.
    pub fn set_dense(&mut self, yes: bool) {
        self.cluster_mut().dense = yes;
    }
    /// Makes sure that the shrinker will visit this cluster: where it has its place, or, if it has none,
    /// where those are that came late, or as the youngest.
    pub fn keep_in_clock(&mut self) {
        let (space, number) = (self.space, self.cluster);
        let cluster = self.cluster_mut();
        if cluster.clock.is_some() || cluster.pooled == 0 {
            return;
        }
        let mut lists = lock(&cluster.group.lists);
        let stamp = match cluster.late.take() {
            Some(late) => {
                lists.clock.put_back(number, late);
                late
            }
            // Under the lock: each clock's own are in order.
            None => lists.clock.push_stamped(number, space.next_stamp()),
        };
        drop(lists);
        cluster.clock = Some(stamp);
        cluster.visited = 0;
    }
    /// Makes this cluster, which [`Space::next_in_clock`] gave, the next one again, from the entry
    /// asked for on: what got its second chance before it is not asked twice in one visit.
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
    /// Takes a reference of the entry away. Call [`Locked::settle`] before unlocking.
    pub fn release_unsettled(&mut self) -> Released {
        let at = self.at;
        let released = self.with_references(|cluster| cluster.release(at));
        self.freed += usize::from(matches!(released, Released::Freed(_)));
        released
    }
    /// Puts the cluster where its fill says, after releases.
    pub fn settle(mut self) {
        if self.freed > 0 {
            let maker = self.cluster().maker as usize;
            self.space.cpus[maker].used.fetch_sub(self.freed, Relaxed);
        }
        self.space.settle(&mut self.guard, self.cluster);
    }
    /// Takes a reference of the entry away.
    pub fn release(mut self) -> Released {
        let released = self.release_unsettled();
        self.settle();
        released
    }
}
