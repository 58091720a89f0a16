//! The limits of the member's pool and of writeback, as its keeper reads them.

use super::Member;
use crate::table::{PoolLimit, SlotState};
use std::sync::atomic::Ordering::*;

impl Member {
    /// The bounds of this process's pool: `most` bytes, and the user's limits.
    pub fn pool_limit(&self, most: u64) -> PoolLimit {
        let budget = self.table.budget_bytes();
        let of_tree = self.table.limits.get();
        let own = self.table.slot(self.slot()).limits.get().pool_max;
        let own = own.map_or(most, |max| max.of(budget).min(most));
        let accept = of_tree.accept_percent;
        let Some(limit) = of_tree.pool_max.map(|max| max.of(budget)) else {
            return PoolLimit {
                max: own,
                accept_percent: accept,
                patient: false,
            };
        };
        let pools = self
            .table
            .pools(self.slot(), ebb_sys::clock::monotonic_ns());
        // An idle process looks seldom.
        if let Some(first) = pools.first
            && pools.sum > (limit / 100).saturating_mul(u64::from(accept) + 1)
        {
            self.table.wake(first);
        }
        pools.limit(limit, accept, own)
    }

    /// Whether this process's pages may go to devices.
    pub fn writeback(&self) -> bool {
        let own = self.table.slot(self.slot()).limits.get();
        own.writeback && self.table.limits.get().writeback
    }

    /// Says how many bytes this process's pool holds, and when (CLOCK_MONOTONIC nanoseconds) the oldest of
    /// them came; 0: none may go to devices for others' sake. With it, how many pages are in the pool, and their
    /// compressed bytes.
    pub fn report_pool(&self, bytes: u64, oldest_ns: u64, (pages, data): (u64, u64)) {
        let slot = self.table.slot(self.slot());
        slot.report_pool(bytes, oldest_ns);
        slot.pool_pages.store(pages, Relaxed);
        slot.pool_data.store(data, Relaxed);
        self.table.pool_peak.0.fetch_max(self.pools(), Relaxed);
    }

    /// Says how many pages this process has in its staging area, and how many it cannot page: stacks, code, what the
    /// kernel keeps for it.
    pub fn report_unpaged(&self, staging: u64, unmanaged: u64) {
        let slot = self.table.slot(self.slot());
        slot.staging.store(staging, Relaxed);
        slot.unmanaged.store(unmanaged, Relaxed);
    }

    /// Bytes that the pools of all processes hold, as they said last.
    pub fn pools(&self) -> u64 {
        let paging = self.table.taken();
        let paging = paging.filter(|(_, word)| word.state == SlotState::Paging);
        let all = paging.map(|(n, _)| self.table.slot(n).pool.load(Relaxed));
        all.fold(0, u64::saturating_add)
    }

    /// Whether this process has a device that it may write to.
    pub fn has_devices(&self) -> bool {
        let slot = self.table.slot(self.slot());
        let may_write = self.table.limits.get().writeback && slot.limits.get().writeback;
        may_write && slot.attached.load(Relaxed) != 0
    }
}
