//! The figures of a running tree, for `ebb stats`, `ebb top` and programs that ask.
//!
//! Each figure is read by itself: together they are no snapshot. Reading them asks nothing of the members.

use super::{DeviceShown, ProcessLimits, Supervisor};
use crate::histogram::{BOUNDS_NS, Summary};
use crate::table::{Refaults, SlotNumber, Way};
use crate::{MAX_MEMBERS, Mode, Totals};
use ebb_engine::PAGE_SIZE;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

/// Faults of one way; durations in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FaultsShown {
    /// Faults served.
    pub count: u64,
    /// Time that threads waited for them, all together.
    pub sum_ns: u64,
    /// Half took no longer.
    pub p50_ns: u64,
    /// 99% took no longer.
    pub p99_ns: u64,
    /// 99.9% took no longer.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// A histogram: how many took no longer than each of [`BOUNDS_NS`] and longer than the one before; last, those
    /// that took longer than all.
    #[serde(default)]
    pub counts: [u64; BOUNDS_NS.len() + 1],
}

impl From<Summary> for FaultsShown {
    fn from(summary: Summary) -> Self {
        Self {
            count: summary.count,
            sum_ns: summary.sum,
            p50_ns: summary.p50,
            p99_ns: summary.p99,
            p999_ns: summary.p999,
            max_ns: summary.max,
            counts: summary.counts,
        }
    }
}

/// The content of a pool, in the words of `zramctl`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PoolShown {
    /// DATA: bytes of the pages in it, as the programs see them.
    pub data_bytes: u64,
    /// COMPR: bytes of them, compressed.
    pub compressed_bytes: u64,
    /// TOTAL: memory that it takes.
    pub total_bytes: u64,
}

/// Clusters of a device that lie together.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CellShown {
    /// The number of slots.
    pub clusters: u32,
    /// Slots leased by processes.
    pub leased: u32,
    /// Slots of them in use.
    pub slots: u64,
    /// Processes that lease some, at most four.
    pub pids: Vec<u32>,
}

/// Waits that more memory would have spared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MoreShown {
    /// The memory that there would be more.
    pub bytes: u64,
    /// Waits for pages that would have been kept.
    pub spared_ns: u64,
}

/// Cells of a device's map.
const CELLS: usize = 64;

/// A managed process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemberShown {
    /// The number.
    pub pid: u32,
    /// The name.
    pub name: String,
    /// Memory in use.
    pub used_bytes: u64,
    /// Bytes of its pool.
    pub pool_bytes: u64,
    /// Faults served so far, by way.
    pub faults: BTreeMap<String, u64>,
    /// Time that its threads waited for them.
    pub waited_ns: u64,
    /// Time in which at least one of its threads waited.
    #[serde(default)]
    pub some_ns: u64,
    /// The part of it in which no thread of it ran.
    #[serde(default)]
    pub full_ns: u64,
}

/// The figures of a tree.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StatsShown {
    /// Version of the `ebb run` that answers.
    pub version: String,
    /// The budget.
    pub budget_bytes: u64,
    /// The largest budget before the last change; none: it never changed.
    #[serde(default)]
    pub past_budget_bytes: Option<u64>,
    /// Memory in use.
    pub used_bytes: u64,
    /// The most that was in use.
    pub peak_bytes: u64,
    /// The most that programs had, in memory or not.
    #[serde(default)]
    pub peak_had_bytes: u64,
    /// Bytes of all pools.
    pub pool_bytes: u64,
    /// The most of them.
    pub peak_pool_bytes: u64,
    /// Captured pages that have no place yet, as their processes said last.
    #[serde(default)]
    pub staging_bytes: u64,
    /// Memory that cannot be paged: unmanaged processes, and stacks, code and the kernel's memory of the others.
    #[serde(default)]
    pub unmanaged_bytes: u64,
    /// The content of all pools, as their processes said last.
    #[serde(default)]
    pub pool: PoolShown,
    /// Flag: the tree has begun to page.
    pub paged: bool,
    /// Processes that joined so far.
    pub processes: u64,
    /// Time since the tree began.
    #[serde(default)]
    pub ran_ns: u64,
    /// Time in which at least one thread of the tree waited for a page.
    #[serde(default)]
    pub some_ns: u64,
    /// The part of it in which no thread of the tree's ran.
    #[serde(default)]
    pub full_ns: u64,
    /// Counters by name, of all processes that ever were in the tree.
    pub counters: BTreeMap<String, u64>,
    /// Faults by way, of the same processes.
    pub fault_latency: BTreeMap<String, FaultsShown>,
    /// Swap devices.
    pub devices: Vec<DeviceShown>,
    /// Waits that more memory would have spared the processes that waited most. It rises.
    #[serde(default)]
    pub more: Vec<MoreShown>,
    /// The map of each device, in the order of `devices`.
    #[serde(default)]
    pub maps: Vec<Vec<CellShown>>,
    /// Processes that are managed now.
    pub members: Vec<MemberShown>,
}

impl StatsShown {
    /// The rest of the memory in use: pages that programs have, and the tables of their pagers.
    pub fn resident_bytes(&self) -> u64 {
        let others = [self.pool_bytes, self.staging_bytes, self.unmanaged_bytes];
        others
            .iter()
            .fold(self.used_bytes, |left, bytes| left.saturating_sub(*bytes))
    }

    /// The faults of one way; none where there were none.
    pub fn faults(&self, way: &str) -> FaultsShown {
        self.fault_latency.get(way).copied().unwrap_or_default()
    }

    /// Nanoseconds that threads waited for pages, all together.
    pub fn waited_ns(&self) -> u64 {
        self.fault_latency
            .values()
            .map(|faults| faults.sum_ns)
            .sum()
    }

    /// A counter by its name; 0 where there is none.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }
}

impl Supervisor {
    /// The figures as they are.
    pub fn stats(&self) -> StatsShown {
        let totals = self.totals();
        let limits = self.limits();
        let bytes = |pages: u64| pages.saturating_mul(PAGE_SIZE as u64);
        let mut counters = BTreeMap::new();
        totals.counters.each(|name, value| {
            counters.insert(name.to_owned(), value);
        });
        StatsShown {
            version: env!("CARGO_PKG_VERSION").into(),
            budget_bytes: bytes(totals.budget_pages),
            past_budget_bytes: self.past_budget.map(|pages| bytes(pages.max(0) as u64)),
            used_bytes: bytes(totals.used_pages),
            peak_bytes: bytes(totals.peak_pages),
            pool_bytes: limits.pool_bytes,
            staging_bytes: bytes(self.table.sum_of_slots(|slot| slot.staging.load(Relaxed))),
            unmanaged_bytes: bytes(self.unmanaged_pages()),
            peak_had_bytes: bytes(totals.peak_had_pages),
            peak_pool_bytes: totals.peak_pool_bytes.max(limits.pool_bytes),
            paged: totals.mode == Mode::Paging,
            processes: totals.processes,
            ran_ns: self.since.elapsed().as_nanos() as u64,
            some_ns: self.pressure.some_ns,
            full_ns: self.pressure.full_ns,
            counters,
            fault_latency: by_way(&totals),
            devices: self.devices(),
            maps: self.maps(),
            more: self.more_shown(),
            pool: self.pools_shown(limits.pool_bytes),
            members: self.members_shown(limits.processes),
        }
    }

    /// Pages that members cannot page, and those that the limit leaves out for processes that are no members
    /// (`write_limit`).
    pub(super) fn unmanaged_pages(&self) -> u64 {
        let outside = self.table.outside();
        let slots = self.table.taken().map(|(n, _)| self.table.slot(n));
        let others = slots.fold(outside, |sum, slot| {
            sum.saturating_add(slot.credit.load(Relaxed))
                .saturating_sub(slot.measured.load(Relaxed))
        });
        let own = self.table.sum_of_slots(|slot| slot.unmanaged.load(Relaxed));
        own.saturating_add(others.max(0) as u64)
    }

    fn more_shown(&self) -> Vec<MoreShown> {
        let used = SlotNumber::all().filter(|slot| self.used[slot.index()]);
        let refaults = used.map(|slot| &self.table.slot(slot).refaults);
        let shown = Refaults::spared(refaults)
            .into_iter()
            .map(|(frames, spared_ns)| MoreShown {
                bytes: frames * PAGE_SIZE as u64,
                spared_ns,
            });
        shown.collect()
    }

    /// The pools of the processes that are managed now.
    fn pools_shown(&self, total_bytes: u64) -> PoolShown {
        let slots = self.table.taken().map(|(slot, _)| self.table.slot(slot));
        let all = slots.fold(
            PoolShown {
                total_bytes,
                ..PoolShown::default()
            },
            |sum, slot| {
                let pages = slot.pool_pages.load(Relaxed);
                let data = pages.saturating_mul(PAGE_SIZE as u64);
                let compressed = slot.pool_data.load(Relaxed);
                PoolShown {
                    data_bytes: sum.data_bytes.saturating_add(data),
                    compressed_bytes: sum.compressed_bytes.saturating_add(compressed),
                    ..sum
                }
            },
        );
        PoolShown {
            compressed_bytes: all.compressed_bytes.min(total_bytes),
            ..all
        }
    }

    /// The maps of all devices. Members say how full their clusters are while somebody looks; so the first map after
    /// a while shows leases alone.
    fn maps(&self) -> Vec<Vec<CellShown>> {
        let now = ebb_sys::clock::monotonic_ns();
        self.table.map_asked.0.store(now, Relaxed);
        let mut pids = [None; MAX_MEMBERS];
        for (pid, slot) in &self.by_pid {
            pids[slot.index()] = Some(*pid);
        }
        let map = |leases: crate::lease::Leases<'_>| {
            let clusters = leases.owner.len();
            let each = clusters.div_ceil(CELLS).max(1);
            let cells = clusters.div_ceil(each);
            let mut map = vec![CellShown::default(); cells];
            for (at, cell) in map.iter_mut().enumerate() {
                cell.clusters = each.min(clusters - at * each) as u32;
            }
            for (c, (owner, slots)) in leases.map().enumerate() {
                let (cell, Some(owner)) = (&mut map[c / each], owner) else {
                    continue;
                };
                cell.leased += 1;
                cell.slots += u64::from(slots);
                let pid = pids.get(owner).copied().flatten();
                cell.pids
                    .extend(pid.filter(|pid| !cell.pids.contains(pid) && cell.pids.len() < 4));
            }
            map
        };
        self.each_leases().map(map).collect()
    }

    fn members_shown(&self, processes: Vec<ProcessLimits>) -> Vec<MemberShown> {
        let slot_of = |pid: u32| self.member_of(pid).map(|slot| self.table.slot(slot));
        let shown = processes.into_iter().map(|process| {
            let slot = slot_of(process.pid);
            let sums = slot.map(|slot| slot.latency.iter().map(|way| way.sum()).sum());
            let mut faults = BTreeMap::new();
            if let Some(slot) = slot {
                let counters = &slot.counters.0;
                for (way, count) in [
                    (Way::Zero, &counters.fault_zero),
                    (Way::Cache, &counters.fault_cache),
                    (Way::Pool, &counters.fault_pool),
                    (Way::Device, &counters.fault_device),
                ] {
                    faults.insert(way.name().to_owned(), count.get());
                }
            }
            MemberShown {
                pid: process.pid,
                name: process.name,
                used_bytes: process.used_bytes,
                pool_bytes: process.pool_bytes,
                faults,
                waited_ns: sums.unwrap_or(0),
                some_ns: slot.map_or(0, |slot| slot.counters.0.psi_some_ns.get()),
                full_ns: slot.map_or(0, |slot| slot.counters.0.psi_full_ns.get()),
            }
        });
        shown.collect()
    }
}

/// Latencies with the names of their ways.
fn by_way(totals: &Totals) -> BTreeMap<String, FaultsShown> {
    let named = |&(way, summary): &(Way, Summary)| (way.name().to_owned(), summary.into());
    totals.latency.iter().map(named).collect()
}
