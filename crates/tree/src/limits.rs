//! Limits that can be changed while the tree runs: of the pool, and of writeback. The budget is
//! the table's own word.
//!
//! There is one set for the tree and one for each process; the tighter of the two holds. They lie
//! in the shared table, the supervisor writes them, and every keeper looks at them each turn
//! ([`Member::pool_max`], [`Member::accept_percent`], [`Member::writeback`]).
//!
//! The tree's limit of the pool bounds the sum over all processes, each of which has a pool of its
//! own. So that they need no lock, each says what its pool holds, and takes an equal part of what
//! is left; where the sum is above the limit, each takes its share of the limit. With Σ what is
//! held, n the processes that page, and p what one of them holds:
//! ```text
//! max(p) = p + (limit - Σ) / n    if Σ <= limit
//! max(p) = p * limit / Σ          else
//! ```
//! Either way Σ max(p) <= limit. What a process holds is known a turn late, so the sum may pass the
//! limit by what changes hands in a turn.

use crate::member::Member;
use crate::table::{SlotState, Table};
use ebb_engine::PAGE_SIZE;
use ebb_stores::Size;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Down to which part of its limit, in percent, the pool is emptied, if nobody says otherwise.
const ACCEPT_PERCENT: u8 = 90;

/// Limits of a tree, or of one process of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The most that the pool may hold, in bytes or as a share of the budget. None: as much as
    /// proves best, up to the whole budget.
    pub pool_max: Option<Size>,
    /// The pool's coldest pages go to devices when it holds a percent more than this percentage of
    /// its limit, until it holds this. For the whole tree only.
    pub accept_percent: u8,
    /// Whether pages may go to devices.
    pub writeback: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            pool_max: None,
            accept_percent: ACCEPT_PERCENT,
            writeback: true,
        }
    }
}

/// [`Limits`] in the table. All zeros: the default.
#[repr(C)]
pub(crate) struct LimitWords {
    /// 0: none. Else twice the bytes, or twice the hundredths of a percent and one.
    pool_max: AtomicU64,
    /// Low byte: the distance of the threshold from its default, modulo 256. Bit 8: no writeback.
    rest: AtomicU32,
}

impl LimitWords {
    pub fn get(&self) -> Limits {
        let pool_max = match self.pool_max.load(SeqCst) {
            0 => None,
            word if word & 1 == 0 => Some(Size::Bytes(word >> 1)),
            word => Some(Size::Share((word >> 1) as u16)),
        };
        let rest = self.rest.load(SeqCst);
        Limits {
            pool_max,
            accept_percent: ACCEPT_PERCENT.wrapping_add(rest as u8),
            writeback: rest >> 8 & 1 == 0,
        }
    }

    pub fn set(&self, limits: Limits) {
        let word = match limits.pool_max {
            None => 0,
            Some(Size::Bytes(bytes)) => bytes << 1,
            Some(Size::Share(hundredths)) => u64::from(hundredths) << 1 | 1,
        };
        self.pool_max.store(word, SeqCst);
        let accept = limits.accept_percent.wrapping_sub(ACCEPT_PERCENT);
        let rest = u32::from(accept) | u32::from(!limits.writeback) << 8;
        self.rest.store(rest, SeqCst);
    }
}

/// What one of `processes` that hold `sum` may hold, if it holds `own` of that.
fn part(limit: u64, sum: u64, own: u64, processes: u64) -> u64 {
    if sum <= limit {
        own + (limit - sum) / processes.max(1)
    } else {
        (u128::from(own) * u128::from(limit) / u128::from(sum)) as u64
    }
}

impl Table {
    /// The budget in bytes.
    pub fn budget_bytes(&self) -> u64 {
        self.budget.load(SeqCst).max(0) as u64 * PAGE_SIZE as u64
    }
}

impl Member {
    /// The most bytes that this process's pool may hold, if there is such a limit.
    pub fn pool_max(&self) -> Option<u64> {
        let budget = self.table.budget_bytes();
        let me = self.table.slot(self.slot());
        let own = me.limits.get().pool_max.map(|max| max.of(budget));
        let of_tree = self.table.limits.get().pool_max.map(|max| {
            let paging = self.table.taken();
            let paging = paging.filter(|(_, word)| word.state == SlotState::Paging);
            let (sum, count) = paging.fold((0, 0), |(sum, count), (n, _)| {
                (sum + self.table.slot(n).pool.load(Relaxed), count + 1)
            });
            part(max.of(budget), sum, me.pool.load(Relaxed), count)
        });
        match (own, of_tree) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Down to which percentage of its limit the pool is emptied.
    pub fn accept_percent(&self) -> u8 {
        self.table.limits.get().accept_percent
    }

    /// Whether this process's pages may go to devices.
    pub fn writeback(&self) -> bool {
        let own = self.table.slot(self.slot()).limits.get();
        own.writeback && self.table.limits.get().writeback
    }

    /// Says how many bytes this process's pool holds.
    pub fn tell_pool(&self, bytes: u64) {
        self.table.slot(self.slot()).pool.store(bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_carry_everything_and_zeros_are_the_default() {
        let words = LimitWords {
            pool_max: AtomicU64::new(0),
            rest: AtomicU32::new(0),
        };
        assert_eq!(words.get(), Limits::default());
        for pool_max in [
            None,
            Some(Size::Bytes(1)),
            Some(Size::Bytes(ebb_stores::MAX_SIZE)),
            Some(Size::Share(1)),
            Some(Size::Share(10_000)),
        ] {
            for (accept_percent, writeback) in [(1, true), (99, false), (90, true)] {
                let limits = Limits {
                    pool_max,
                    accept_percent,
                    writeback,
                };
                words.set(limits);
                assert_eq!(words.get(), limits);
            }
        }
    }

    proptest! {
        /// However the pools lie, their limits add up to no more than the tree's, and what is not
        /// held can be taken.
        #[test]
        fn parts_add_up_to_the_limit(
            limit in 1u64..1 << 40,
            held in proptest::collection::vec(0u64..1 << 36, 1..40),
        ) {
            let sum: u64 = held.iter().sum();
            let parts = held.iter().map(|&own| part(limit, sum, own, held.len() as u64));
            let total: u64 = parts.sum();
            prop_assert!(total <= limit);
            prop_assert!(total + held.len() as u64 >= limit);
        }
    }
}
