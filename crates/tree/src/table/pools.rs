//! How one limit bounds the pools of all processes of a tree.
//!
//! The tree's limit of the pool bounds the sum over all processes, each of which has a pool of its
//! own. So that they need no lock, each says what its pool holds and since when, and what follows from
//! what all say. With Σ what is held, p what a process holds, and w its weight, 1, or [`GROWING_WEIGHT`] while its
//! pool grows:
//! ```text
//! max(p) = p + (limit - Σ) * w / Σw    if Σ <= limit
//! max(p) = p - gives(p, limit)         else
//! ```
//! Either way Σ max(p) <= limit. The figure of a process is known a turn late. So the sum may pass the
//! limit for a turn by the growth meanwhile, at most by the room that was free.
//!
//! The processes with the oldest pages have to write to devices, so that the sum goes down to a level, as
//! if there were one order for the whole tree. A process *may give* what it has, but nothing where it may
//! not write. With older(p) what those may give whose oldest pages are older than this one's:
//! ```text
//! gives(p, level) = min(what p may give, Σ - level - older(p)), at least 0
//! ```
//! and of what all of them cannot give each its share. A process's own threshold is what it holds once it
//! has given what is above the tree's; that of one which gives nothing is its limit. A process silent for
//! [`REPORT_TIMEOUT_NS`] is stopped: it gives nothing, and delays no other that would have to.

use super::{Slot, SlotNumber, Table};
use ebb_engine::shrinker::urgent;
use std::sync::atomic::Ordering::*;

/// The weight of a process whose pool grows.
const GROWING_WEIGHT: u64 = 16;
/// A pool is known to grow for so long, in ns.
const GROWTH_WINDOW_NS: u64 = 100_000_000;
/// A process that has not reported its pool for so long, in ns, does not run.
const REPORT_TIMEOUT_NS: u64 = 1_000_000_000;
/// Of a pool that is to give nothing: a percent more is its limit.
const MOST_PERCENT: u8 = 99;

/// The pools of a tree, as one of its processes sees them. In bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Pools {
    /// The sum of all.
    pub sum: u64,
    /// The part of it that may be given.
    writable: u64,
    /// The weights of all of them, and its own.
    weights: u64,
    weight: u64,
    /// The charge of its own, and what it may give.
    own: u64,
    may_give: u64,
    /// Bytes that processes with older pages may give.
    older: u64,
    /// The one of these with the oldest pages.
    pub first: Option<SlotNumber>,
}

/// The bounds of one process's pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolLimit {
    /// The most bytes it may hold.
    pub max: u64,
    /// The percentage of its limit at which writeback stops: its coldest pages go to devices when it holds a percent
    /// more than this percentage of its limit, until it holds this.
    pub accept_percent: u8,
    /// Flag: the tree has room enough: what has to go to devices does so in the background, however near its own
    /// limit the pool is.
    pub patient: bool,
}

impl Pools {
    /// Bytes that the process has to give for the tree to hold `level`.
    fn gives(&self, level: u64) -> u64 {
        let excess = self.sum.saturating_sub(level);
        excess.saturating_sub(self.older).min(self.may_give)
    }

    /// Its part of the tree's `limit`.
    fn part(&self, limit: u64) -> u64 {
        let Some(room) = limit.checked_sub(self.sum) else {
            let left = (self.sum - limit).saturating_sub(self.writable);
            let stays = self.own - self.gives(limit);
            // A share of the bytes that stay.
            let all = u128::from(self.sum - self.writable.min(self.sum - limit)).max(1);
            let share = (u128::from(stays) * u128::from(left)).div_ceil(all);
            return stays.saturating_sub(share as u64);
        };
        let share = u128::from(room) * u128::from(self.weight) / u128::from(self.weights.max(1));
        self.own.saturating_add(share as u64)
    }

    /// The bounds of the process's pool under the tree's limit and threshold, and one of its `own`.
    pub fn limit(&self, of_tree: u64, accept: u8, own: u64) -> PoolLimit {
        let part = self.part(of_tree);
        let max = part.min(own);
        let level = (of_tree / 100).saturating_mul(u64::from(accept));
        let gives = self.gives(level);
        let stays = (u128::from(self.own - gives) * 100).div_ceil(u128::from(max.max(1)));
        // Under a limit of its own it keeps to the threshold.
        let most = if own <= part { accept } else { MOST_PERCENT };
        let accept_percent = match gives {
            0 => most,
            _ => stays.clamp(1, most.into()) as u8,
        };
        PoolLimit {
            max,
            accept_percent,
            patient: own > part && self.sum < urgent(of_tree, accept),
        }
    }
}

impl Table {
    /// The pools, as `me` sees them.
    pub fn pools(&self, me: SlotNumber, now_ns: u64) -> Pools {
        // Of two of one age the first.
        let mine = (self.slot(me).pool_oldest.load(Relaxed), me);
        let mut pools = Pools::default();
        let mut first = None;
        for n in self.paging() {
            let slot = self.slot(n);
            let recent = |ns: u64, within| now_ns.saturating_sub(ns) < within;
            let holds = slot.pool.load(Relaxed);
            let age = (slot.pool_oldest.load(Relaxed), n);
            let gives =
                age.0 != 0 && recent(slot.pool_reported_ns.load(Relaxed), REPORT_TIMEOUT_NS);
            let may_give = if gives { holds } else { 0 };
            let weight = match recent(slot.pool_grew_ns.load(Relaxed), GROWTH_WINDOW_NS) {
                true => GROWING_WEIGHT,
                false => 1,
            };
            pools.sum = pools.sum.saturating_add(holds);
            pools.writable = pools.writable.saturating_add(may_give);
            pools.weights += weight;
            if n == me {
                (pools.own, pools.may_give, pools.weight) = (holds, may_give, weight);
            } else if may_give > 0 && age < mine {
                pools.older = pools.older.saturating_add(may_give);
                first = first.min(Some(age)).or(Some(age));
            }
        }
        pools.first = first.map(|(_, n)| n);
        pools
    }
}

impl Slot {
    /// Says how many bytes the pool holds, and when the oldest of them came.
    pub fn report_pool(&self, bytes: u64, oldest_ns: u64) {
        let now = ebb_sys::clock::monotonic_ns();
        self.pool_oldest.store(oldest_ns, Relaxed);
        self.pool_reported_ns.store(now, Relaxed);
        if self.pool.swap(bytes, Relaxed) < bytes {
            self.pool_grew_ns.store(now, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Config, SlotState, StateWord};
    use proptest::prelude::*;

    /// Four idle processes and one that works, in a tree that holds what it may: by what they say.
    #[test]
    fn a_member_with_old_pages_gives_and_one_with_young_ones_does_not() {
        const MIB: u64 = 1 << 20;
        let (table, _fd) = Table::create(1 << 20, Config::default()).unwrap();
        let now = ebb_sys::clock::monotonic_ns();
        let held = [20u64, 30, 10, 15, 20];
        let ages = [50, 40, 40, 30, 0];
        let slots: Vec<SlotNumber> = held
            .iter()
            .zip(ages)
            .map(|(mib, age)| {
                let n = table.take_slot(StateWord::of(SlotState::Paging)).unwrap();
                let since = if age == 0 {
                    0
                } else {
                    now - age * 1_000_000_000
                };
                table.slot(n).report_pool(mib * MIB, since);
                table.slot(n).pool_grew_ns.store(0, Relaxed);
                n
            })
            .collect();
        // One that ended, and one that does not page yet.
        let gone = table.take_slot(StateWord::of(SlotState::Joined)).unwrap();
        table.slot(gone).report_pool(50 * MIB, 1);
        let limit = |n: usize, most| table.pools(slots[n], now).limit(100 * MIB, 90, most);
        let stays = |l: PoolLimit| l.max * u64::from(l.accept_percent) / 100 / MIB;

        let first = limit(0, 1 << 40);
        assert_eq!(
            (first.max, stays(first)),
            (21 * MIB, 15),
            "it gives 5 of its 20"
        );
        assert!(first.patient, "there is room yet");
        for (n, mib) in held.iter().enumerate().skip(1) {
            let limit = limit(n, 1 << 40);
            assert_eq!((limit.max, limit.accept_percent), ((mib + 1) * MIB, 99));
        }
        // A limit of its own, with the threshold of that.
        let own = limit(2, 9 * MIB);
        assert_eq!(
            (own.max, own.accept_percent, own.patient),
            (9 * MIB, 90, false)
        );

        // It is stopped: the next one gives.
        table
            .slot(slots[0])
            .pool_reported_ns
            .store(now - REPORT_TIMEOUT_NS, Relaxed);
        assert_eq!(limit(0, 1 << 40).accept_percent, 99);
        assert_eq!(stays(limit(1, 1 << 40)), 25);
        // The one that grows has most of what is left.
        table.slot(slots[4]).pool_grew_ns.store(now, Relaxed);
        assert_eq!(limit(4, 1 << 40).max, 24 * MIB);
        assert!(limit(3, 1 << 40).max < 15 * MIB + MIB / 2);
        // Above the limit, the oldest that can hold less.
        let above = |n: usize| table.pools(slots[n], now).limit(60 * MIB, 90, 1 << 40);
        assert_eq!(
            [0, 1, 2, 3, 4].map(|n| above(n).max / MIB),
            [20, 0, 5, 15, 20]
        );
        assert!(!above(1).patient);
    }

    proptest! {
        /// However the pools lie, their limits add up to no more than the tree's, and what is not held can
        /// be taken. The oldest gives all that is above the threshold, and nobody else gives.
        #[test]
        fn parts_add_up_to_the_limit(
            limit in 1u64..1 << 40,
            held in proptest::collection::vec((0u64..1 << 36, any::<bool>(), any::<bool>()), 1..40),
            accept in 1u8..=99,
        ) {
            let sum: u64 = held.iter().map(|(own, ..)| own).sum();
            let writable = held.iter().filter(|(_, gives, _)| *gives).map(|(own, ..)| own).sum();
            let weight = |grows| if grows { GROWING_WEIGHT } else { 1 };
            let weights = held.iter().map(|(.., grows)| weight(*grows)).sum();
            let mut older = 0;
            // Oldest first.
            let pools: Vec<Pools> = held
                .iter()
                .map(|&(own, gives, grows)| {
                    let pools = Pools {
                        sum,
                        writable,
                        weights,
                        weight: weight(grows),
                        own,
                        may_give: if gives { own } else { 0 },
                        older,
                        first: None,
                    };
                    older += pools.may_give;
                    pools
                })
                .collect();
            let total: u64 = pools.iter().map(|p| p.part(limit)).sum();
            prop_assert!(total <= limit);
            prop_assert!(total + held.len() as u64 >= limit.min(sum));
            prop_assert!(sum > limit || total + held.len() as u64 >= limit);

            let level = limit / 100 * u64::from(accept);
            let gives: Vec<u64> = pools.iter().map(|p| p.gives(level)).collect();
            prop_assert_eq!(gives.iter().sum::<u64>(), sum.saturating_sub(level).min(writable));
            let mut each = pools.iter().zip(&gives);
            // The first that does not give all it may is the last that gives.
            let _ = each.by_ref().find(|(p, gives)| **gives < p.may_give);
            prop_assert!(each.all(|(_, gives)| *gives == 0));
        }
    }
}
