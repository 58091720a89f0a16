//! When the user is told that memory that cannot be paged is more than the budget. Reclaim cannot keep such a tree to its
//! budget. The user is told once for each budget, and only after a moment: a program may be about to end.
//!
//! Not here: which memory that is (`stats`), and what becomes of processes that find no room (the pager's `oom`).

use super::Supervisor;
use ebb_engine::PAGE_SIZE;
use ebb_sys::proc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// How long it is so before the user is told.
const PERSISTS: Duration = Duration::from_secs(2);

/// The record of what was seen and told.
#[derive(Default)]
pub(super) struct BeyondBudget {
    /// The time from which on it has been so, if it is.
    since: Option<Instant>,
    /// The budget, in pages, of which the user knows.
    told: Option<u64>,
}

impl BeyondBudget {
    /// Notes how many pages cannot be paged. Whether the user is to be told now.
    fn saw(&mut self, unmanaged: u64, budget: u64, now: Instant) -> bool {
        if unmanaged <= budget {
            self.since = None;
            return false;
        }
        let since = *self.since.get_or_insert(now);
        let persists = now.saturating_duration_since(since) >= PERSISTS;
        persists && self.told.replace(budget) != Some(budget)
    }
}

impl Supervisor {
    /// Tells the user once if the tree has more memory that cannot be paged than its budget.
    pub(super) fn warn_beyond_budget(&mut self) {
        let unmanaged = self.unmanaged_pages();
        let budget = self.table.budget.load(Relaxed).max(0).cast_unsigned();
        if !self.beyond_budget.saw(unmanaged, budget, Instant::now()) {
            return;
        }
        let mib = |pages: u64| pages.saturating_mul(PAGE_SIZE as u64) >> 20;
        let most = self
            .most_unmanaged()
            .map_or_else(String::new, |(pid, pages)| {
                format!(" ({} [{pid}] has {}M of it)", proc::name(pid), mib(pages))
            });
        self.notice(&format!(
            "{}M of memory cannot be paged{most}: more than the budget of {}M, which is exceeded; raise --memory, \
             or run `ebb limit {} {}M`",
            mib(unmanaged),
            mib(budget),
            std::process::id(),
            // Room to page beside it.
            mib(unmanaged.saturating_mul(2)),
        ));
    }

    /// The process with most of it, and its pages.
    fn most_unmanaged(&self) -> Option<(u32, u64)> {
        let members = self.table.taken().filter_map(|(n, _)| {
            let member = self.members[n.index()].as_ref()?;
            let pages = self.table.slot(n).unmanaged.load(Relaxed);
            Some((member.process.pid(), pages))
        });
        members
            .chain(self.measurements.pages_of_unmanaged())
            .max_by_key(|&(_, pages)| pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_is_told_once_for_each_budget_once_it_lasts() {
        let mut seen = BeyondBudget::default();
        let start = Instant::now();
        let mut told = Vec::new();
        for tenth in 0..100 {
            let (unmanaged, budget) = match tenth {
                // A moment, then for good, and in a smaller budget.
                0..10 => (11, 10),
                10..20 => (10, 10),
                20..60 => (11, 10),
                _ => (11, 9),
            };
            if seen.saw(
                unmanaged,
                budget,
                start + Duration::from_millis(100) * tenth,
            ) {
                told.push(tenth);
            }
        }
        assert_eq!(told, [40, 60]);
    }
}
