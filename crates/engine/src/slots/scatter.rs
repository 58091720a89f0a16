//! When no cluster of the order has a window: windows in clusters of other orders, runs of
//! slots wherever they are (virtual contiguity), and the last free slot, whoever holds its
//! cluster.

use super::alloc::Want;
use super::cluster::{Cluster, Owner, State, frag, nonfull};
use super::device::{After, Device};
use super::{Devices, Extent, ExtentList, extent};
use crate::locks::{lock, try_lock};
use crate::sync::atomic::Ordering::Relaxed;
use crate::words::{CLUSTER_SLOTS, ClusterIndex, Cpu, ORDERS};

/// Clusters compared when a folio has to be scattered.
const SURVEY: usize = 32;

/// What a look at some clusters found.
#[derive(Default)]
struct Survey {
    /// One with an aligned window.
    window: Option<ClusterIndex>,
    /// The one with the longest run, where none has a window.
    run: Option<ClusterIndex>,
    /// One that another thread holds at the moment.
    held: Option<ClusterIndex>,
}

impl Devices {
    /// Virtual contiguity: runs of slots wherever they are, the longest found first.
    ///
    /// # Errors
    /// There are not enough. Says how often room arrived with what it gave back.
    pub(super) fn scatter(&self, cpu: Cpu, want: Want, out: &mut ExtentList) -> Result<(), u32> {
        if want.pages == 1 || !self.may_hold(want.pages) {
            return Err(0);
        }
        let on_its_way = self.transit.begin();
        let before = out.0.len();
        let mut left = want;
        let mut with_cursors = false;
        for id in self.order(cpu).as_slice() {
            let Some(device) = self.device_at(cpu, *id) else {
                continue;
            };
            while left.pages > 0 && device.accepting() {
                let survey = device.survey(left);
                let Some(c) = survey.window.or(survey.run) else {
                    if with_cursors {
                        break;
                    }
                    self.let_cursors_go(|_| true);
                    with_cursors = true;
                    continue;
                };
                let Some(cell) = device.cell(c) else { break };
                let mut cluster = lock(&cell.cluster);
                if !device.isolate_this(c, &mut cluster, Owner::Scan) {
                    continue;
                }
                if let Some((start, len)) = cluster.table().used.longest_run(left.pages) {
                    let pages = len.min(left.pages);
                    cluster.take(start, pages, left.owner);
                    device.count(pages as i64);
                    out.push(extent(device.id, c, start, pages), before);
                    left.pages -= pages;
                    left.owner = left.owner.plus(pages as u32);
                }
                device.settle(c, &mut cluster, After::Free);
            }
        }
        // Whatever is still missing may be in clusters that became empty, or are cached.
        while left.pages > 0 {
            let single = Want {
                pages: 1,
                order: 0,
                owner: left.owner,
            };
            let Some(found) = self
                .take_at_cursor(cpu, single)
                .or_else(|| self.search_devices(cpu, single))
            else {
                break;
            };
            out.push(found, before);
            left.pages -= 1;
            left.owner = left.owner.plus(1);
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
        on_its_way.arrived();
        Err(1)
    }

    /// Whether so many pages could have room on all devices together, copies given up for them.
    /// What would not fit takes nothing, so that nobody misses it meanwhile.
    pub(super) fn may_hold(&self, pages: usize) -> bool {
        let devices = self.devices();
        let accepting = || devices.iter().filter(|device| device.accepting());
        let mut room = 0;
        for device in accepting() {
            room += self.free_slots(device) as usize;
            if room >= pages {
                return true;
            }
        }
        // Nearly full, or the sums tell too little: they count what frozen and inherited clusters
        // hold as used, but not those clusters, and processors' counts are read one by one.
        room = 0;
        for device in accepting() {
            let untouched = u64::from(device.lists().fresh) * CLUSTER_SLOTS as u64;
            room += (untouched + device.borrowable()) as usize;
            for (c, _) in device.cells() {
                if room >= pages {
                    return true;
                }
                room += self.with_cluster(device, c, room_of).unwrap_or(0);
            }
        }
        room >= pages
    }

    /// The last resort of a single slot: goes through the clusters one by one, whoever holds
    /// them. On lists, a cluster that another thread only looks at would be missed.
    pub(super) fn sweep(&self, device: &Device, want: Want) -> Option<Extent> {
        if device.lender.is_none() && self.used(device) == device.slots {
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
    let more = table.map_or(0, |table| usize::from(table.gone) + table.cached.count());
    CLUSTER_SLOTS - usize::from(cluster.count) + more
}

impl Device {
    /// A window in a cluster that is ours, whoever holds it, unless it is being discarded.
    fn take_any(&self, c: ClusterIndex, cluster: &mut Cluster, want: Want) -> Option<usize> {
        if !self.accepting() {
            return None;
        }
        match cluster.state {
            State::Absent | State::Discard | State::Frozen | State::Inherited => return None,
            State::OffList(Owner::Discarding) => return None,
            State::Free | State::Full | State::NonFull(_) | State::Frag(_) => {}
            State::OffList(Owner::Cpu(_) | Owner::Device | Owner::Scan) => {}
        }
        if cluster.state == State::Free {
            cluster.order = want.order;
        }
        let released = cluster.release_gone();
        self.make_table(cluster);
        let found = cluster.take_window(0, want.order, want.pages, want.owner);
        self.count(want.pages as i64 * i64::from(found.is_some()));
        if cluster.state.list().is_some() && (found.is_some() || released > 0) {
            self.settle(c, cluster, After::Free);
        }
        found
    }

    /// A window in a cluster of any order: the aligned place of last resort.
    pub(super) fn take_other_order(&self, want: Want) -> Option<Extent> {
        let mut survey = self.survey(want);
        if survey.window.is_none()
            && let Some(held) = survey.held
        {
            // Whoever looks into a cluster for a moment splits no folio.
            drop(lock(&self.cell(held)?.cluster));
            survey = self.survey(want);
        }
        let c = survey.window?;
        let mut cluster = lock(&self.cell(c)?.cluster);
        if !self.isolate_this(c, &mut cluster, Owner::Scan) {
            return None;
        }
        let start = cluster.take_window(0, want.order, want.pages, want.owner);
        self.count(want.pages as i64 * i64::from(start.is_some()));
        self.settle(c, &mut cluster, After::Free);
        Some(extent(self.id, c, start?, want.pages))
    }

    /// Looks at some clusters with free slots, of any order.
    fn survey(&self, want: Want) -> Survey {
        let mut lists = self.lists();
        let mut survey = Survey::default();
        let mut longest = 0;
        let mut seen = 0;
        for order in 0..ORDERS as u8 {
            for list in [nonfull(order), frag(order)] {
                let mut share = SURVEY / 4;
                let mut at = lists.heads[list].first;
                while let Some(cell) = self.cell(ClusterIndex(at))
                    && share > 0
                    && (seen < SURVEY || survey.run.is_none())
                {
                    share -= 1;
                    seen += 1;
                    let c = ClusterIndex(at);
                    at = cell.next.load(Relaxed);
                    let Some(cluster) = try_lock(&cell.cluster) else {
                        survey.held = Some(c);
                        continue;
                    };
                    let Some(table) = &cluster.table else {
                        continue;
                    };
                    if table.used.window(0, want.order, want.pages).is_some() {
                        survey.window = Some(c);
                        return survey;
                    }
                    if let Some((_, len)) = table.used.longest_run(want.pages)
                        && len > longest
                    {
                        (survey.run, longest) = (Some(c), len);
                    }
                }
                self.rotate(&mut lists, list);
            }
        }
        survey
    }
}
