//! The cursors that allocate entries. Each processor has clusters of its own open for a group, one for
//! single pages and one for runs: runs stay whole, and processors keep out of each other's way.
//!
//! Not here: what is done with an entry once it is reserved (`locked`), and the order in which pages leave
//! the pool (`clock`).

use super::{NoEntries, SlotGuard, Space, entry};
use crate::entries::cluster::{CLUSTER_ENTRIES, Cluster, EntryClusterState};
use crate::entries::entry_word::EntryWord;
use crate::entries::group::{Group, Hold};
use crate::locks::lock;
use crate::{Cpu, EntryId, GroupId};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A closed cluster with at most this many used entries is worth opening again.
const REOPEN_BELOW: usize = CLUSTER_ENTRIES - CLUSTER_ENTRIES / 4;
/// Emptied clusters kept for the next one that is wanted, so that a steady flow of pages through fresh
/// clusters does not go through the allocator.
pub(crate) const SPARE: usize = 8;
/// Partial clusters tried for a run before a fresh cluster is opened.
const RUN_TRIES: usize = 4;
/// Groups a processor has clusters open for; the oldest are closed to make room.
const CURSOR_GROUPS: usize = 8;

/// The clusters that a processor has open for a group.
pub(super) struct Cursor {
    pub(super) group: Hold,
    singles: Option<u32>,
    runs: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Want {
    Singles,
    Run(usize),
}

impl Cursor {
    fn current(&mut self, want: Want) -> &mut Option<u32> {
        match want {
            Want::Singles => &mut self.singles,
            Want::Run(_) => &mut self.runs,
        }
    }
}

impl Space {
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

    /// Counts more entries in use, of a cluster that this processor made.
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
            if found.state != EntryClusterState::Partial(stamp) || !Arc::ptr_eq(&found.group, group)
            {
                continue;
            }
            let fits = match want {
                Want::Singles => true,
                Want::Run(pages) => match found.reserve_run(pages) {
                    Some(start) => {
                        found.words[start..start + pages].fill(EntryWord::FREE);
                        found.used -= pages as u16;
                        found.unhint(start);
                        true
                    }
                    None => false,
                },
            };
            if fits {
                found.state = EntryClusterState::Open;
                // Pages that come now are younger than those that filled it.
                found.second_stamp = found.clock.map(|_| self.next_stamp());
                return Some((cluster, guard));
            }
            found.state = EntryClusterState::Partial(lock(&group.lists).partial.push(cluster));
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

    pub(super) fn close(&self, cursor: Cursor) {
        self.close_cluster(cursor.singles);
        self.close_cluster(cursor.runs);
    }

    fn close_cluster(&self, cluster: Option<u32>) {
        let Some(cluster) = cluster else { return };
        let mut guard = lock(self.slot(cluster));
        if let Some(open) = guard.as_mut() {
            debug_assert_eq!(open.state, EntryClusterState::Open);
            open.state = EntryClusterState::Closed;
            self.settle(&mut guard, cluster);
        }
    }

    /// After entries were freed or a cursor left: the cluster goes where its fill says.
    pub(super) fn settle(&self, guard: &mut SlotGuard<'_>, number: u32) {
        let Some(cluster) = guard.as_mut() else {
            return;
        };
        if cluster.state == EntryClusterState::Open {
            return;
        }
        if cluster.used == 0 {
            let mut lists = lock(&cluster.group.lists);
            if let EntryClusterState::Partial(stamp) = cluster.state {
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
        } else if cluster.state == EntryClusterState::Closed
            && cluster.used as usize <= REOPEN_BELOW
        {
            let stamp = lock(&cluster.group.lists).partial.push(number);
            cluster.state = EntryClusterState::Partial(stamp);
        }
    }
}
