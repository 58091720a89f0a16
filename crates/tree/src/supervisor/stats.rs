//! The figures of a running tree, for `ebb stats`, `ebb top` and programs that ask.
//!
//! Each figure is read by itself: together they are no snapshot. Reading them asks nothing of the members.

use super::{DeviceShown, ProcessLimits, Supervisor};
use crate::histogram::Summary;
use crate::table::Way;
use crate::{Mode, Totals};
use ebb_engine::PAGE_SIZE;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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
        }
    }
}

/// A managed process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemberShown {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Memory in use.
    pub used_bytes: u64,
    /// Bytes of its pool.
    pub pool_bytes: u64,
    /// Faults served so far, by way.
    pub faults: BTreeMap<String, u64>,
    /// Time that its threads waited for them.
    pub waited_ns: u64,
}

/// The figures of a tree.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StatsShown {
    /// Version of the `ebb run` that answers.
    pub version: String,
    /// The budget.
    pub budget_bytes: u64,
    /// Memory in use.
    pub used_bytes: u64,
    /// The most that was in use.
    pub peak_bytes: u64,
    /// Bytes of all pools.
    pub pool_bytes: u64,
    /// The most of them.
    pub peak_pool_bytes: u64,
    /// Whether the tree has begun to page.
    pub paged: bool,
    /// Processes that joined so far.
    pub processes: u64,
    /// Counters by name, of all processes that ever were in the tree.
    pub counters: BTreeMap<String, u64>,
    /// Faults by way, of the same processes.
    pub fault_latency: BTreeMap<String, FaultsShown>,
    /// Swap devices.
    pub devices: Vec<DeviceShown>,
    /// Processes that are managed now.
    pub members: Vec<MemberShown>,
}

impl StatsShown {
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
            used_bytes: bytes(totals.used_pages),
            peak_bytes: bytes(totals.peak_pages.max(totals.used_pages)),
            pool_bytes: limits.pool_bytes,
            peak_pool_bytes: totals.peak_pool_bytes.max(limits.pool_bytes),
            paged: totals.mode == Mode::Paging,
            processes: totals.processes,
            counters,
            fault_latency: by_way(&totals),
            devices: self.devices(),
            members: self.members_shown(limits.processes),
        }
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
