//! The directory of clusters and the cursors that allocate in them.

use super::cluster::{CLUSTER_ENTRIES, Cluster, Released, State};
use super::fifo::Stamp;
use super::group::Group;
use super::word::{Location, Word};
use crate::locks::{Guard, Ordered, Place, lock};
use crate::{Cpu, EntryId, GroupId};
use std::ops::Range;
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

/// Cluster numbers a processor takes at a time: a few cache lines of the directory.
const RANGE: u32 = 16;
/// A closed cluster with at most this many used entries is worth opening again.
const REOPEN_BELOW: usize = CLUSTER_ENTRIES - CLUSTER_ENTRIES / 4;
/// Emptied clusters kept for the next one that is wanted, so that a steady flow of pages through fresh
/// clusters does not go through the allocator.
pub(crate) const SPARE: usize = 8;
/// Partial clusters tried for a run before a fresh cluster is opened.
const RUN_TRIES: usize = 4;

type Slot = Ordered<Option<Box<Cluster>>, { Place::EntryCluster as usize }>;
/// One of the directory, locked.
type SlotGuard<'a> = Guard<'a, Option<Box<Cluster>>, { Place::EntryCluster as usize }>;
type Leaf = Box<[Slot; LEAF]>;
type Middle = Box<[OnceLock<Leaf>; MIDDLE]>;

/// No entry is left: 2^29 of them are in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("all 2^29 entries of the virtual swap space are in use")]
pub struct NoEntries;

/// A processor's open clusters, for each group it stored for lately. On lines of its own.
#[derive(Default)]
#[repr(align(64))]
struct Cursors {
    range: Range<u32>,
    groups: Vec<Cursor>,
}

struct Cursor {
    group: Arc<Group>,
    singles: Option<u32>,
    runs: Option<u32>,
}

/// Groups a cursor remembers; the oldest closes its clusters to make room.
const CURSOR_GROUPS: usize = 8;

/// Cluster numbers that are in no processor's range.
#[derive(Default)]
struct Numbers {
    unused_from: u32,
    free: Vec<u32>,
}

/// The virtual swap space.
pub struct Space {
    top: [OnceLock<Middle>; TOP],
    cursors: Vec<Ordered<Cursors, { Place::EntryCursor as usize }>>,
    numbers: Ordered<Numbers, { Place::Leaf as usize }>,
    #[expect(
        clippy::vec_box,
        reason = "the directory holds boxes: these go there as they are"
    )]
    spare: Ordered<Vec<Box<Cluster>>, { Place::Leaf as usize }>,
    groups: RwLock<Vec<Arc<Group>>>,
    /// Groups made so far; grows under the lock of `groups`.
    groups_made: AtomicU64,
    /// Stamps given in the clocks of all groups; grows under the lock of a group's lists.
    stamps: AtomicU64,
    // Statistics; kept so that asking costs no walk.
    clusters: AtomicUsize,
    leaves: AtomicUsize,
    middles: AtomicUsize,
    used: AtomicUsize,
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
        Self {
            top: [const { OnceLock::new() }; TOP],
            cursors: (0..cpus.max(1)).map(|_| Ordered::default()).collect(),
            numbers: Ordered::default(),
            spare: Ordered::new(Vec::with_capacity(SPARE)),
            groups: RwLock::default(),
            groups_made: AtomicU64::new(0),
            stamps: AtomicU64::new(0),
            clusters: AtomicUsize::new(0),
            leaves: AtomicUsize::new(0),
            middles: AtomicUsize::new(0),
            used: AtomicUsize::new(0),
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
        let oldest = group.oldest().map(|stamp| stamp.0);
        // Read last: no stamp that is in a clock is younger.
        oldest.map_or(0, |oldest| self.stamps.load(Relaxed) - oldest)
    }

    /// Ends a group. Its pages stay where they are until freed, and the shrinker goes on
    /// visiting those in the pool; a group of the same number is a new one.
    pub fn remove_group(&self, id: GroupId) {
        for group in read(&self.groups).iter().filter(|g| g.id == id) {
            group.end();
        }
        for cursors in &self.cursors {
            let mut cursors = lock(cursors);
            if let Some(at) = cursors.groups.iter().position(|c| c.group.id == id) {
                let cursor = cursors.groups.swap_remove(at);
                self.close(cursor);
            }
        }
        self.prune_groups();
    }

    /// Pages of an ended group came back into the pool: the shrinker visits it again.
    pub fn recall_group(&self, group: &Arc<Group>) {
        let mut groups = self
            .groups
            .write()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if !groups.iter().any(|known| Arc::ptr_eq(known, group)) {
            groups.push(group.clone());
        }
    }

    /// Forgets ended groups that have nothing in the pool.
    fn prune_groups(&self) {
        let mut groups = self
            .groups
            .write()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        groups.retain(|g| !g.ended() || g.pool_bytes() > 0);
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
            Box::new(std::array::from_fn(|_| Ordered::new(None)))
        });
        &leaf[rest % LEAF]
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
        let guard = lock(&leaf[cluster as usize % LEAF]);
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
    /// word, if its own is still the busy one; then, its group. If not, what was made for it is the
    /// caller's to give up.
    pub fn repoint(&self, entry: EntryId, busy: Word, to: Word) -> Option<Arc<Group>> {
        debug_assert!(busy.busy() && !to.busy());
        let mut locked = self.lock_if_used(entry)?;
        let word = locked.word();
        if word != busy {
            // One thread marks at a time: it is the caller's mark, on a page that was loaded and kept.
            if word.busy() {
                locked.set(word.with_busy(false));
            }
            return None;
        }
        locked.set(to);
        Some(locked.cluster().group().clone())
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

    /// Reserves entries for single pages into `out`, all of them or none.
    pub fn reserve_each(
        &self,
        cpu: Cpu,
        group: GroupId,
        out: &mut [EntryId],
    ) -> Result<(), NoEntries> {
        let mut found = [0u16; 64];
        let mut done = 0;
        let mut cursors = lock(&self.cursors[cpu.index() % self.cursors.len()]);
        while done < out.len() {
            let Some((cluster, mut guard)) = self.open(&mut cursors, group, Want::Singles) else {
                drop(cursors);
                for &mut given in &mut out[..done] {
                    self.lock(given).release();
                }
                return Err(NoEntries);
            };
            let target = guard.as_mut().unwrap_or_else(|| unreachable!());
            let room = found.len().min(out.len() - done);
            let n = target.reserve_each(&mut found[..room]);
            drop(guard);
            self.used.fetch_add(n, Relaxed);
            for &at in &found[..n] {
                out[done] = entry(cluster, at as usize);
                done += 1;
            }
            if n < room {
                self.close_one(&mut cursors, group, Want::Singles);
            }
        }
        Ok(())
    }

    /// Reserves `pages` consecutive entries, aligned to the next power of two.
    pub fn reserve_run(
        &self,
        cpu: Cpu,
        group: GroupId,
        pages: usize,
    ) -> Result<EntryId, NoEntries> {
        assert!(
            (1..=CLUSTER_ENTRIES).contains(&pages),
            "a run of {pages} pages"
        );
        let mut cursors = lock(&self.cursors[cpu.index() % self.cursors.len()]);
        loop {
            let want = Want::Run(pages);
            let (cluster, mut guard) = self.open(&mut cursors, group, want).ok_or(NoEntries)?;
            let target = guard.as_mut().unwrap_or_else(|| unreachable!());
            if let Some(start) = target.reserve_run(pages) {
                self.used.fetch_add(pages, Relaxed);
                return Ok(entry(cluster, start));
            }
            drop(guard);
            self.close_one(&mut cursors, group, want);
        }
    }

    /// The open cluster of a cursor, locked; opens one if there is none.
    fn open(&self, cursors: &mut Cursors, id: GroupId, want: Want) -> Option<(u32, SlotGuard<'_>)> {
        let Cursors { range, groups } = cursors;
        let at = groups
            .iter()
            .position(|c| c.group.id == id)
            .unwrap_or_else(|| {
                if groups.len() == CURSOR_GROUPS {
                    let oldest = groups.remove(0);
                    self.close(oldest);
                }
                groups.push(Cursor {
                    group: self.group(id),
                    singles: None,
                    runs: None,
                });
                groups.len() - 1
            });
        let cursor = &mut groups[at];
        let current = match want {
            Want::Singles => &mut cursor.singles,
            Want::Run(_) => &mut cursor.runs,
        };
        if let Some(cluster) = *current {
            return Some((cluster, lock(self.slot(cluster))));
        }
        let opened = self
            .reopen(&cursor.group, want)
            .or_else(|| self.fresh(range, &cursor.group))?;
        *current = Some(opened.0);
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
                found.reopened = true;
                return Some((cluster, guard));
            }
            found.state = State::Partial(lock(&group.lists).partial.push(cluster));
        }
        None
    }

    fn fresh(&self, range: &mut Range<u32>, group: &Arc<Group>) -> Option<(u32, SlotGuard<'_>)> {
        let number = {
            let mut numbers = lock(&self.numbers);
            if range.start == range.end && numbers.free.is_empty() {
                let end = (numbers.unused_from + RANGE).min(MAX_CLUSTERS);
                *range = numbers.unused_from..end;
                numbers.unused_from = end;
            }
            range.next().or_else(|| numbers.free.pop())?
        };
        let spare = lock(&self.spare).pop();
        let cluster = match spare {
            Some(mut cluster) => {
                cluster.recycle(group.clone());
                cluster
            }
            None => Box::new(Cluster::new(group.clone())),
        };
        let mut guard = lock(self.slot(number));
        debug_assert!(guard.is_none());
        *guard = Some(cluster);
        self.clusters.fetch_add(1, Relaxed);
        Some((number, guard))
    }

    fn close_one(&self, cursors: &mut Cursors, id: GroupId, want: Want) {
        let cursor = cursors.groups.iter_mut().find(|c| c.group.id == id);
        let cluster = cursor.and_then(|cursor| match want {
            Want::Singles => cursor.singles.take(),
            Want::Run(_) => cursor.runs.take(),
        });
        if let Some(cluster) = cluster {
            self.close_cluster(cluster);
        }
    }

    fn close(&self, cursor: Cursor) {
        for cluster in [cursor.singles, cursor.runs].into_iter().flatten() {
            self.close_cluster(cluster);
        }
    }

    fn close_cluster(&self, cluster: u32) {
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
            if let Some(emptied) = guard.take() {
                let mut spare = lock(&self.spare);
                if spare.len() < SPARE {
                    spare.push(emptied);
                }
            }
            self.clusters.fetch_sub(1, Relaxed);
            lock(&self.numbers).free.push(number);
        } else if cluster.state == State::Closed && cluster.used as usize <= REOPEN_BELOW {
            let stamp = lock(&cluster.group.lists).partial.push(number);
            cluster.state = State::Partial(stamp);
        }
    }

    /// Entries in use.
    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
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
        let cluster = size_of::<Cluster>() + size_of::<[Word; CLUSTER_ENTRIES]>();
        let spare = lock(&self.spare).len();
        (self.clusters.load(Relaxed) + spare) * cluster
            + self.leaves.load(Relaxed) * size_of::<[Slot; LEAF]>()
            + self.middles.load(Relaxed) * size_of::<[OnceLock<Leaf>; MIDDLE]>()
            + lock(&self.numbers).free.capacity() * 4
            + size_of_val(&*self.cursors)
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
        let end = lock(&self.numbers).unused_from;
        for number in 0..end {
            if let Some(cluster) = lock(self.slot(number)).as_ref() {
                f(number, cluster);
            }
        }
    }

    /// All invariants of this part; for a space at rest.
    pub fn check(&self) {
        let (mut clusters, mut used) = (0, 0);
        let mut clock: Vec<(*const Group, u32)> = Vec::new();
        let mut partial: Vec<(*const Group, u32)> = Vec::new();
        self.each_cluster(|number, cluster| {
            cluster.check();
            clusters += 1;
            used += cluster.used as usize;
            if cluster.clock.is_some() {
                clock.push((Arc::as_ptr(&cluster.group), number));
            }
            if let State::Partial(_) = cluster.state {
                partial.push((Arc::as_ptr(&cluster.group), number));
            }
        });
        assert_eq!(clusters, self.clusters.load(Relaxed));
        assert_eq!(used, self.used.load(Relaxed));
        for group in self.groups().iter().filter(|g| !g.ended()) {
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

    /// The first of `looks` clusters from `from` on that is among the older half of its
    /// group's, has pages in the pool, and was not recompressed.
    pub fn find_cold(&self, from: u32, looks: u32) -> Option<u32> {
        let end = lock(&self.numbers).unused_from;
        (from..end).take(looks as usize).find(|&number| {
            let guard = lock(self.slot(number));
            guard.as_ref().is_some_and(|cluster| {
                let old = |stamp| lock(&cluster.group.lists).clock.is_old(stamp);
                cluster.pooled > 0 && !cluster.dense && cluster.clock.is_some_and(old)
            })
        })
    }

    /// A cluster number to look on from: the first if there is none after.
    pub fn wrap(&self, from: u32) -> u32 {
        if from < lock(&self.numbers).unused_from {
            from
        } else {
            0
        }
    }

    /// The next cluster of a group in the shrinker's order, locked, at the first entry that it has
    /// not seen in this visit. The cluster leaves the order; [`Locked::keep_in_clock`] puts it back
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
    /// The same for whoever copied the page without the lock and marked nothing: another page may have
    /// come to the same place under the same entry, which its checksum tells.
    pub fn is_still(&self, before: Word) -> bool {
        let plain = |word: Word| word.with_cached(false).with_referenced(false);
        let word = self.word();
        plain(word) == plain(before) && !word.busy()
    }
    /// Whether its cluster had older entries when it was opened.
    pub fn reopened(&self) -> bool {
        self.cluster().reopened
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
    /// calls [`Locked::keep_in_clock`] before unlocking.
    pub fn set(&mut self, word: Word) {
        let at = self.at;
        self.cluster_mut().set(at, word);
    }
    /// References of the entry.
    pub fn references(&self) -> u32 {
        self.cluster().references(self.at)
    }
    /// Adds a reference; false if it has `u32::MAX` already.
    pub fn dup(&mut self) -> bool {
        let at = self.at;
        self.cluster_mut().dup(at)
    }
    /// Sets the number of references, for tests of what many do.
    #[cfg(test)]
    pub fn set_references(&mut self, references: u32) {
        let at = self.at;
        self.cluster_mut().set_references(at, references);
    }
    /// Notes whether recompression has been through this cluster.
    pub fn set_dense(&mut self, yes: bool) {
        self.cluster_mut().dense = yes;
    }
    /// Makes sure that the shrinker will visit this cluster.
    pub fn keep_in_clock(&mut self) {
        let number = self.cluster;
        let cluster = self.cluster_mut();
        if cluster.clock.is_none() && cluster.pooled > 0 {
            let stamps = &self.space.stamps;
            let cluster = self.guard.as_mut().unwrap_or_else(|| unreachable!());
            let mut lists = lock(&cluster.group.lists);
            // Under the lock: each clock's own are in order.
            let stamp = Stamp(stamps.fetch_add(1, Relaxed));
            cluster.clock = Some(lists.clock.push_stamped(number, stamp));
            cluster.visited = 0;
        }
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
    /// Takes a reference of the entry away. Call [`Locked::settle`] before unlocking.
    pub fn release_unsettled(&mut self) -> Released {
        let at = self.at;
        let released = self.cluster_mut().release(at);
        self.freed += usize::from(matches!(released, Released::Freed(_)));
        released
    }
    /// Puts the cluster where its fill says, after releases.
    pub fn settle(mut self) {
        if self.freed > 0 {
            self.space.used.fetch_sub(self.freed, Relaxed);
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
