//! Limits that can be changed while the tree runs: of the pool, and of writeback. The budget is
//! the table's own word.
//!
//! There is one set for the tree and one for each process; the tighter of the two holds. They lie
//! in the shared table, the supervisor writes them, and every keeper looks at them each turn
//! ([`Member::pool_limit`], [`Member::writeback`]).
//!
//! The tree's limit of the pool bounds the sum over all processes, each of which has a pool of its
//! own. So that they need no lock, each says what its pool holds and since when, and takes a part of what
//! is left; where the sum is above the limit, each takes its share of the limit. With Σ what is held, p
//! what a process holds, and w its weight, 1, or [`GROWING`] while its pool grows:
//! ```text
//! max(p) = p + (limit - Σ) * w / Σw    if Σ <= limit
//! max(p) = p * limit / Σ               else
//! ```
//! Either way Σ max(p) <= limit. What a process holds is known a turn late, so the sum may pass the
//! limit by what changes hands in a turn.
//!
//! Who has to write to devices, so that the sum goes down to the threshold, are those whose pages came
//! first, as if there were one order for the whole tree: with older(p) what those hold whose oldest pages
//! are older than this one's,
//! ```text
//! gives(p) = min(p, Σ - threshold - older(p))    at least 0; 0 if it has nothing that may be written
//! ```
//! A process's own threshold is what it then holds; that of one which gives nothing is its limit.

use crate::member::Member;
use crate::table::{SlotNumber, SlotState, Table};
use ebb_engine::PAGE_SIZE;
use ebb_stores::Size;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Down to which part of its limit, in percent, the pool is emptied, if nobody says otherwise.
const ACCEPT_PERCENT: u8 = 90;
/// The weight of a process whose pool grows.
const GROWING: u64 = 16;
/// A pool is known to grow for so long, in ns.
const GROWS_NS: u64 = 100_000_000;
/// Of a pool that is to give nothing: a percent more is its limit.
const MOST_PERCENT: u8 = 99;

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

/// What the pools of a tree hold, as one of its processes sees it. In bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pools {
    /// All of them.
    sum: u64,
    /// The weights of all of them, and its own.
    weights: u64,
    weight: u64,
    /// Its own.
    own: u64,
    /// Those that hold older pages which may be written; none: its own may not.
    older: Option<u64>,
}

impl Pools {
    /// What the process may hold of the tree's `limit`.
    fn part(&self, limit: u64) -> u64 {
        if self.sum <= limit {
            let room = u128::from(limit - self.sum) * u128::from(self.weight);
            self.own + (room / u128::from(self.weights.max(1))) as u64
        } else {
            (u128::from(self.own) * u128::from(limit) / u128::from(self.sum)) as u64
        }
    }

    /// What it has to give to devices for the tree to hold `accept` percent of its limit.
    fn gives(&self, limit: u64, accept: u8) -> u64 {
        let excess = self.sum.saturating_sub(limit / 100 * u64::from(accept));
        let left = |older| excess.saturating_sub(older).min(self.own);
        self.older.map_or(0, left)
    }

    /// What bounds the process's pool under the tree's limit and threshold, and one of its `own`.
    fn limit(&self, of_tree: u64, accept: u8, own: u64) -> PoolLimit {
        let part = self.part(of_tree);
        let max = part.min(own);
        let gives = self.gives(of_tree, accept);
        let stays = u128::from(self.own - gives) * 100 / u128::from(max.max(1));
        // Under a limit of its own it keeps to the threshold.
        let most = if own <= part { accept } else { MOST_PERCENT };
        let accept_percent = match gives {
            0 => most,
            _ => stays.clamp(1, most.into()) as u8,
        };
        PoolLimit {
            max,
            accept_percent,
        }
    }
}

/// What bounds the pool of one process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolLimit {
    /// The most bytes it may hold.
    pub max: u64,
    /// Its coldest pages go to devices when it holds a percent more than this percentage of its limit,
    /// until it holds this.
    pub accept_percent: u8,
}

impl Table {
    /// The budget in bytes.
    pub fn budget_bytes(&self) -> u64 {
        self.budget.load(SeqCst).max(0) as u64 * PAGE_SIZE as u64
    }
}

impl Member {
    /// What bounds this process's pool: `most` bytes, and what the user asked for.
    pub fn pool_limit(&self, most: u64) -> PoolLimit {
        let budget = self.table.budget_bytes();
        let of_tree = self.table.limits.get();
        let own = self.table.slot(self.slot()).limits.get().pool_max;
        let own = own.map_or(most, |max| max.of(budget).min(most));
        let accept = of_tree.accept_percent;
        match of_tree.pool_max {
            Some(limit) => self.pools().limit(limit.of(budget), accept, own),
            None => PoolLimit {
                max: own,
                accept_percent: accept,
            },
        }
    }

    fn pools(&self) -> Pools {
        let me = self.slot();
        // Of two of one age the first.
        let age = |n: SlotNumber| match self.table.slot(n).pool_oldest.load(Relaxed) {
            0 => None,
            since => Some((since, n)),
        };
        let mine = age(me);
        let mut pools = Pools {
            sum: 0,
            weights: 0,
            weight: 0,
            own: self.table.slot(me).pool.load(Relaxed),
            older: mine.map(|_| 0),
        };
        let now = ebb_sys::proc::monotonic_ns();
        let paging = self.table.taken();
        for (n, _) in paging.filter(|(_, word)| word.state == SlotState::Paging) {
            // Once for each: it changes meanwhile.
            let holds = match n == me {
                true => pools.own,
                false => self.table.slot(n).pool.load(Relaxed),
            };
            pools.sum += holds;
            let grew = self.table.slot(n).pool_grew.load(Relaxed);
            let weight = if now.saturating_sub(grew) < GROWS_NS {
                GROWING
            } else {
                1
            };
            pools.weights += weight;
            if n == me {
                pools.weight = weight;
            }
            if let (Some(older), Some(mine)) = (&mut pools.older, mine)
                && age(n).is_some_and(|age| age < mine)
            {
                *older += holds;
            }
        }
        pools
    }

    /// Whether this process's pages may go to devices.
    pub fn writeback(&self) -> bool {
        let own = self.table.slot(self.slot()).limits.get();
        own.writeback && self.table.limits.get().writeback
    }

    /// Says how many bytes this process's pool holds, and when (CLOCK_MONOTONIC nanoseconds) the oldest
    /// of it came that may go to a device; 0: there is none.
    pub fn tell_pool(&self, bytes: u64, oldest_ns: u64) {
        let slot = self.table.slot(self.slot());
        slot.pool_oldest.store(oldest_ns, Relaxed);
        if slot.pool.swap(bytes, Relaxed) < bytes {
            slot.pool_grew.store(ebb_sys::proc::monotonic_ns(), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Four idle processes and one that works, in a tree that holds what it may.
    #[test]
    fn who_has_old_pages_gives_and_who_has_young_ones_does_not() {
        let held = [20u64, 30, 10, 15, 20].map(|mib| mib << 20);
        let limit = |me: usize, older| {
            let pools = Pools {
                sum: held.iter().sum(),
                weights: 5,
                weight: 1,
                own: held[me],
                older,
            };
            pools.limit(100 << 20, 90, 1 << 30)
        };
        let stays = |l: PoolLimit| (l.max * u64::from(l.accept_percent) / 100) >> 20;
        assert_eq!(limit(0, Some(0)).max, 21 << 20);
        assert_eq!(stays(limit(0, Some(0))), 14, "15 of its 20");
        for (me, older) in [(1, Some(20 << 20)), (2, Some(50 << 20)), (3, None)] {
            let limit = limit(me, older);
            assert_eq!(
                (limit.max, limit.accept_percent),
                (held[me] + (1 << 20), 99)
            );
        }
        // Its own limit, with the threshold of that.
        let pools = Pools {
            sum: 50 << 20,
            weights: 5,
            weight: 1,
            own: 8 << 20,
            older: Some(0),
        };
        let limit = pools.limit(100 << 20, 90, 9 << 20);
        assert_eq!((limit.max, limit.accept_percent), (9 << 20, 90));
    }

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
        /// held can be taken. What is above the threshold is given by the oldest, and by nobody else.
        #[test]
        fn parts_add_up_to_the_limit(
            limit in 1u64..1 << 40,
            held in proptest::collection::vec((0u64..1 << 36, any::<bool>(), any::<bool>()), 1..40),
            accept in 1u8..=99,
        ) {
            let sum: u64 = held.iter().map(|(own, ..)| own).sum();
            let weight = |grows| if grows { GROWING } else { 1 };
            let weights = held.iter().map(|(.., grows)| weight(*grows)).sum();
            let mut older = 0;
            // Oldest first.
            let pools: Vec<Pools> = held
                .iter()
                .map(|&(own, writes, grows)| {
                    let pools = Pools {
                        sum,
                        weights,
                        weight: weight(grows),
                        own,
                        older: writes.then_some(older),
                    };
                    older += if writes { own } else { 0 };
                    pools
                })
                .collect();
            let total: u64 = pools.iter().map(|p| p.part(limit)).sum();
            prop_assert!(total <= limit);
            prop_assert!(total + held.len() as u64 >= limit);

            let gives: Vec<u64> = pools.iter().map(|p| p.gives(limit, accept)).collect();
            let excess = sum.saturating_sub(limit / 100 * u64::from(accept));
            prop_assert_eq!(gives.iter().sum::<u64>(), excess.min(older));
            let mut writers = pools.iter().zip(&gives).filter(|(p, _)| p.older.is_some());
            // Who does not give all it has is the last who gives.
            let _ = writers.by_ref().find(|(p, gives)| **gives < p.own);
            prop_assert!(writers.all(|(_, gives)| *gives == 0));
        }
    }
}
