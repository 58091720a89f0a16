//! The case that no cluster of the order has a window. Tried are windows in clusters of other orders,
//! runs of slots wherever they are (virtual contiguity), and the last free slot, whoever holds its
//! cluster.
//!
//! A few clusters of each list are looked at, others each time, so what a scattered folio costs does
//! not depend on the size of the device. Only where these do not give enough is everything gone
//! through.

use super::Devices;
use super::cluster::{Cluster, ClusterState, FULL, Owner, frag, nonfull};
use super::device::{Device, Requeue};
use super::extent::{Extent, ExtentList, extent};
use super::request::Request;
use crate::locks::lock;
use crate::types::{CLUSTER_SLOTS, ClusterIndex, Cpu, ORDERS};

/// Clusters looked at for a place, or compared when a folio has to be scattered.
const LOOKS: u32 = 32;
/// Of them on one list, at most.
const LOOKS_PER_LIST: u32 = LOOKS / 4;

/// Some clusters with free slots, those with the longest run first.
struct Survey {
    found: [(usize, ClusterIndex); LOOKS as usize],
    len: usize,
}

impl Devices {
    /// Virtual contiguity: runs of slots wherever they are, the longest found first.
    ///
    /// # Errors
    /// There are not enough. Says how often room arrived with what it gave back.
    pub(super) fn scatter(&self, cpu: Cpu, want: Request, out: &mut ExtentList) -> Result<(), u32> {
        if want.pages == 1 || !self.may_hold(want.pages) {
            return Err(0);
        }
        let withdrawn = self.in_flight.begin();
        let before = out.0.len();
        let mut left = want;
        let mut with_cursors = false;
        while left.pages > 0 {
            let found = self.on_each_device(cpu, |device| {
                let taken = device.take_runs(&mut left, out, before);
                (taken || !with_cursors).then_some(taken)
            });
            if !with_cursors && found == Some(false) {
                self.let_cursors_go(|_| true);
                with_cursors = true;
            }
            if found.is_some() {
                continue;
            }
            // The missing slots may be in clusters that became empty, or be cached.
            let single = Request {
                pages: 1,
                order: 0,
                ..left
            };
            let found = self.take_at_cursor(cpu, single);
            let Some(found) = found.or_else(|| self.search_devices(cpu, single)) else {
                break;
            };
            out.push(found, before);
            left.advance(1);
        }
        if left.pages == 0 {
            return Ok(());
        }
        if out.0.len() == before {
            return Err(0);
        }
        let mut owner = want.owner;
        for extent in out.0.drain(before..) {
            let freed = self.free_now(cpu, owner, extent);
            debug_assert!(freed.is_ok(), "{freed:?}");
            owner = owner.plus(u32::from(extent.len));
        }
        withdrawn.arrived();
        Err(1)
    }

    /// Whether so many pages could have room on all devices together, copies given up for them. A folio
    /// that would not fit takes nothing, so that nobody misses it meanwhile.
    pub(super) fn may_hold(&self, pages: usize) -> bool {
        let devices = self.devices();
        let accepting = || devices.iter().filter(|device| device.accepting());
        let free = accepting().map(|device| self.free_slots(device) as usize);
        if free.sum::<usize>() >= pages {
            return true;
        }
        // Nearly full: copies are in no sum.
        let mut room = 0;
        for device in accepting() {
            let untouched = u64::from(device.lists().fresh) * CLUSTER_SLOTS as u64;
            room += (untouched + device.borrowable()) as usize;
            if self.has_nothing(device) {
                continue;
            }
            for (c, _) in device.cells() {
                if room >= pages {
                    return true;
                }
                room += self.with_cluster(device, c, room_of).unwrap_or(0);
            }
        }
        room >= pages
    }

    /// Whether every slot of the clusters that are ours is taken and none is a copy, whatever the lender
    /// has. A full cluster in somebody's hands, of whose copies nobody tells, is no reason to say so.
    fn has_nothing(&self, device: &Device) -> bool {
        // Before the lists: a cluster that becomes ours in between has more slots than are counted. One
        // that ceases to be, with slots that were counted, is room in flight.
        let used = u64::from(self.used_of_ours(device));
        let (slots, full, fresh) = {
            let lists = device.lists();
            (lists.held, lists.heads[FULL].len, lists.fresh)
        };
        used == slots
            && slots == u64::from(full) * CLUSTER_SLOTS as u64
            && fresh == 0
            && device.copies().said().is_none()
    }

    /// The last resort of a single slot: goes through the clusters one by one, whoever holds
    /// them. On lists, a cluster that another thread only looks at would be missed. Not on a device short of
    /// blocks: each search would go through all its clusters in vain.
    pub(super) fn sweep(&self, device: &Device, want: Request) -> Option<Extent> {
        if self.has_nothing(device) || device.backing().is_short() {
            return None;
        }
        device.cells().find_map(|(c, _)| {
            let start = self.with_cluster(device, c, |cluster| device.take_any(c, cluster, want));
            Some(extent(device.id, c, start??, want.pages))
        })
    }
}

/// Slots of a cluster that can be allocated, copies given up for them.
fn room_of(cluster: &mut Cluster) -> usize {
    if !cluster.state.is_ours() {
        return 0;
    }
    let table = cluster.table.as_ref();
    let more = table.map_or(0, |table| usize::from(table.gone() + table.cached()));
    CLUSTER_SLOTS - usize::from(cluster.count) + more
}

impl Device {
    /// A window in a cluster that is ours, whoever holds it, unless it is being discarded.
    fn take_any(&self, c: ClusterIndex, cluster: &mut Cluster, want: Request) -> Option<usize> {
        if !self.accepting() {
            return None;
        }
        match cluster.state {
            ClusterState::Absent
            | ClusterState::Discard
            | ClusterState::Frozen
            | ClusterState::Inherited => return None,
            ClusterState::OffList(Owner::Discarding) => return None,
            ClusterState::Free
            | ClusterState::Full
            | ClusterState::NonFull(_)
            | ClusterState::Frag(_) => {}
            ClusterState::OffList(Owner::Cpu(_) | Owner::Device | Owner::Scan) => {}
        }
        if cluster.state == ClusterState::Free {
            cluster.order = want.order;
        }
        let released = cluster.release_gone();
        let found = self.take_window(cluster, want);
        self.count(want.pages as i64 * i64::from(found.is_some()));
        if cluster.state.list().is_some() && (found.is_some() || released > 0) {
            self.settle(c, cluster, Requeue::AfterFree);
        }
        found
    }

    /// A window in a cluster of any order: the aligned place of last resort.
    pub(super) fn take_other_order(&self, want: Request) -> Option<Extent> {
        let mut held = None;
        let mut found = self.find_window(want, &mut held);
        if found.is_none()
            && let Some(held) = held
        {
            // A thread that looks into a cluster for a moment splits no folio.
            drop(lock(&self.cell(held)?.cluster));
            found = self.find_window(want, &mut None);
        }
        let c = found?;
        let mut cluster = lock(&self.cell(c)?.cluster);
        if !self.isolate_this(c, &mut cluster, Owner::Scan) {
            return None;
        }
        let start = self.take_window(&mut cluster, want);
        self.count(want.pages as i64 * i64::from(start.is_some()));
        self.settle(c, &mut cluster, Requeue::AfterFree);
        Some(extent(self.id, c, start?, want.pages))
    }

    /// A cluster of any order that has a window; `held` is one that another thread has.
    fn find_window(&self, want: Request, held: &mut Option<ClusterIndex>) -> Option<ClusterIndex> {
        let window = |cluster: &Cluster| {
            let table = cluster.table.as_ref();
            table.is_some_and(|table| table.used().window(0, want.order, want.pages).is_some())
        };
        self.look_around(|c, cluster| {
            *held = cluster.is_none().then_some(c).or(*held);
            self.backing().has(c) && cluster.is_some_and(window)
        })
    }

    /// Looks at some clusters with free slots, of any order, until one is wanted.
    fn look_around(
        &self,
        mut wanted: impl FnMut(ClusterIndex, Option<&Cluster>) -> bool,
    ) -> Option<ClusterIndex> {
        let mut lists = self.lists();
        let mut looks = LOOKS;
        (0..ORDERS as u8)
            .flat_map(|order| [nonfull(order), frag(order)])
            .find_map(|list| {
                let mut share = looks.min(LOOKS_PER_LIST);
                looks -= share;
                let found = self.look(&mut lists, list, &mut share, &mut wanted);
                looks += share;
                found
            })
    }

    /// The longest runs of some clusters, until one has one of `enough` slots.
    fn survey(&self, enough: usize) -> Survey {
        let mut survey = Survey {
            found: [(0, ClusterIndex(0)); LOOKS as usize],
            len: 0,
        };
        self.look_around(|c, cluster| {
            let cluster = cluster.filter(|_| self.backing().has(c));
            let table = cluster.and_then(|cluster| cluster.table.as_ref());
            let run = table.and_then(|table| table.used().longest_run(enough));
            if let Some((_, len)) = run {
                survey.found[survey.len] = (len, c);
                survey.len += 1;
            }
            run.is_some_and(|(_, len)| len == enough)
        });
        survey.found[..survey.len].sort_by_key(|(len, _)| std::cmp::Reverse(*len));
        survey
    }

    /// Takes runs of slots, the longest of some clusters first. False if there are none.
    fn take_runs(&self, left: &mut Request, out: &mut ExtentList, before: usize) -> bool {
        let survey = self.survey(left.pages);
        let found = &survey.found[..survey.len];
        let wanted = left.pages;
        for (i, &(len, c)) in found.iter().enumerate() {
            let Some(cell) = self.cell(c) else { break };
            let mut cluster = lock(&cell.cluster);
            // With the lock held throughout no place for its order comes about.
            let requeue = match cluster.state {
                ClusterState::Frag(_) => Requeue::AfterScan,
                _ => Requeue::AfterFree,
            };
            if !self.isolate_this(c, &mut cluster, Owner::Scan) {
                continue;
            }
            // Shorter ones when those of the next are not longer.
            let least = found.get(i + 1).map_or(len, |next| next.0);
            self.open(&mut cluster);
            while left.pages > 0
                && let Some((start, len)) = cluster.table().used().longest_run(left.pages)
                && len >= least.min(left.pages)
            {
                cluster.take(start, len, left.owner);
                self.count(len as i64);
                out.push(extent(self.id, c, start, len), before);
                left.advance(len);
            }
            self.settle(c, &mut cluster, requeue);
            if left.pages == 0 {
                break;
            }
        }
        left.pages < wanted
    }
}
