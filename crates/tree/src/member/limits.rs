//! The limits of the member's pool and of writeback, as its keeper reads them.

use super::Member;
use crate::table::PoolLimit;
use ebb_engine::PAGE_SIZE;
use std::sync::atomic::Ordering::*;

/// Pages of a process by where they are; the rest of its charge is resident or its pool.
#[derive(Clone, Copy, Debug)]
pub struct PagesOfMember {
    /// Pages in its staging area.
    pub staging: u64,
    /// Pages that it cannot page: stacks, code, what the kernel keeps for it.
    pub unmanaged: u64,
    /// Pages in the swap space alone.
    pub swapped: u64,
}

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

    /// Once the supervisor is gone, the budget stays as it is, even in the midst of being lowered: what members give back
    /// is theirs. On the thread that finds it [gone](Self::supervised); a supervisor that only it cannot reach goes on.
    pub fn end_reduction(&self) {
        if self.table.is_mixed() || !self.table.is_supervised() {
            self.table.reduction.store(0, SeqCst);
        }
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

    /// Says where this process has pages.
    pub fn report_pages(&self, pages: PagesOfMember) {
        let slot = self.table.slot(self.slot());
        slot.staging.store(pages.staging, Relaxed);
        slot.unmanaged.store(pages.unmanaged, Relaxed);
        slot.swapped.store(pages.swapped, Relaxed);
        let swapped = self.table.sum_of_slots(|slot| slot.swapped.load(Relaxed));
        let in_use = (self.table.in_use().max(0) as u64).saturating_mul(PAGE_SIZE as u64);
        let had = in_use.saturating_sub(self.pools()) / PAGE_SIZE as u64 + swapped;
        self.table.had_peak.0.fetch_max(had, Relaxed);
    }

    /// Bytes that the pools of all processes hold, as they said last.
    pub fn pools(&self) -> u64 {
        let paging = self.table.paging();
        let all = paging.map(|n| self.table.slot(n).pool.load(Relaxed));
        all.fold(0, u64::saturating_add)
    }

    /// Whether this process has a device, which [`writeback`](Self::writeback) may forbid.
    pub fn has_devices(&self) -> bool {
        let slot = self.table.slot(self.slot());
        slot.attached.load(Relaxed) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Config, SlotState, StateWord, Table};

    /// The supervisor was killed while it lowered the budget.
    #[test]
    fn a_budget_that_nobody_lowers_any_more_stays() {
        let (table, _fd) = Table::create(100, Config::default()).unwrap();
        let me = table.take_slot(StateWord::of(SlotState::Paging)).unwrap();
        let member = Member::for_test(table, me);
        table.supervised_by(std::process::id());
        table.reduction.store(40, SeqCst);
        assert!(member.try_charge(100));
        let budget_after = || {
            member.end_reduction();
            member.uncharge(10);
            member.budget()
        };
        assert_eq!(budget_after(), 95, "it is there, if out of reach");
        table.supervisor_leaves();
        assert_eq!(budget_after(), 95);
        assert_eq!(member.limit(), 95);
    }
}
