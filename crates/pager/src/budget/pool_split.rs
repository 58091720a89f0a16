//! How the budget is shared between resident pages and the pool, where there are devices.
//!
//! A page in the pool costs a fault, a page on a device several times that; but the pool's RAM is RAM that the program
//! does not have. The better split depends on the program. A working set that nearly fits wants to be resident; one
//! far larger than memory wants to be in the pool.
//!
//! The ranks of the pages that come back tell (see `reclaim_queue`): how many of the pages that are out left later.
//! With `x` frames moved from the pool to the program, a page of rank below `x` would not have been missed. One of
//! rank below `x` + the pool's pages is found in the pool, a later one on a device:
//!
//! ```text
//! cost(x) = pool_cost * #{x <= rank < x + pool(x)} + device_cost * #{rank >= x + pool(x)}
//! pool(x) = (pool_frames - x) * density
//! ```
//!
//! Both costs have an allowance for what no clock of a fault sees. Each page that left by the pool has paid for its
//! compression too. So the share may go down to nothing: then pages go past the pool, unless devices are full.
//!
//! For negative `x` nothing is known of the pages that would be missed then. As many for each frame
//! are assumed as come back at once now, or as are touched while they wait to be stored, if that is more: with less
//! memory those that wait now would be gone. Where the pool is well below its limit there is no such
//! `x`: a higher limit would not make it larger. The limit moves one step at a time towards the
//! cheapest split, as the ranks are a guess that gets worse with distance.
//!
//! Pages that refuse to leave (`reclaim_queue`) are neither side's: what is shared out is the budget without them.
//!
//! At first the pool may have nearly all. Pages that go to a device before anything is known of them may have to come
//! back, at several times the cost. And moving the line costs something itself: pages are written and perhaps read again,
//! or compressed. Nobody knows whether the program will go on as it did. So a step is taken when its savings until
//! now make up for its cost, as one buys skis when the rent paid has come to their price.
//!
//! This is Mattson's stack distance (1970), with refaults as the only samples; and the rental of
//! skis (Karlin and others, 1988).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Ranks told apart, in steps.
const RANKS: usize = 256;
/// Steps that make as many pages as are resident.
const SET: usize = 16;
/// The smallest and the largest share of the budget for the pool, in parts of `WHOLE`.
const SHARES: std::ops::RangeInclusive<usize> = 0..=13;
/// The first: what the pool can hold needs no device.
const FIRST: usize = *SHARES.end();
const WHOLE: usize = 16;
/// Pages that move to a device for the price of a fault from there: they are written many at a time.
const WRITTEN: u64 = 8;
/// A split must be this much cheaper to be taken, in percent.
const WORTH: u64 = 5;
/// The highest price of a frame: a disk that turns has others, and ages tell no more.
const MOST_PRICE: u64 = 64;
/// The cost of a fault beside its time by the clock, in ns: ways into the kernel, threads that take turns, cold caches.
const AROUND_NS: u64 = 8_000;
/// The cost of the way out through the pool, which compresses, in percent of a fault from there. A share of nothing
/// spares it.
const THROUGH: u64 = 30;
/// Faults from which something can be learned.
const ENOUGH: u32 = 256;

/// The learned share.
pub struct PoolSplit {
    /// Faults by the rank of their page, halved now and then.
    ranks: [u16; RANKS],
    seen: u32,
    /// Touches of pages that waited to be stored, halved as the ranks are.
    staged_touches: u32,
    share: usize,
    /// Pages in a frame of the pool, in sixteenths, when it last held enough to tell.
    density: usize,
    /// Flag: the share is learned, not the first.
    is_learned: bool,
    /// Nanoseconds that another share would have saved until now, and whether that is a larger one.
    regret: u64,
    larger: bool,
}

/// The cost of a fault from the pool, and the surplus of one from a device: moving means, in ns. On a machine that is
/// busy with other things both are dear, the difference is not.
pub struct Costs {
    pool: AtomicU64,
    more: AtomicU64,
    /// Faults from the pool since the split was last looked at.
    from_pool: AtomicU32,
}

/// The cost of a fault from the pool that is assumed before any was measured, in ns.
const USUAL_POOL_NS: u64 = 10_000;

impl Costs {
    /// Before anything was measured.
    pub const fn new() -> Self {
        Self {
            pool: AtomicU64::new(USUAL_POOL_NS),
            more: AtomicU64::new(90_000),
            from_pool: AtomicU32::new(0),
        }
    }

    /// The price of a frame that the pool gives up for a resident page. Its pages, `density` sixteenths of one, come
    /// back from a device then. The price is a multiple of the cost of a page from the pool.
    pub fn price(&self, density: usize) -> u64 {
        let near = self.pool.load(Relaxed).max(1);
        let far = near + self.more.load(Relaxed);
        (density as u64 * far / 16 / near).clamp(1, MOST_PRICE)
    }

    /// A fault took `ns`. Concurrent updates may lose one.
    pub fn took(&self, device: bool, ns: u64) {
        let (mean, ns) = if device {
            (&self.more, ns.saturating_sub(self.pool.load(Relaxed)))
        } else {
            self.from_pool
                .store(self.from_pool.load(Relaxed).saturating_add(1), Relaxed);
            (&self.pool, ns)
        };
        let old = mean.load(Relaxed);
        // A mean of 64 would follow the few that waited for something else. If one in four takes long, it does follow.
        let ns = ns.min(4 * old);
        mean.store(old - old / 64 + ns / 64, Relaxed);
    }

    /// The split is looked at. A cost that hardly any fault tells is believed less each time. The few faults of a pool that
    /// is nearly empty wait while devices are filled. By their cost the pool would stay empty for ever.
    fn looked_at(&self) {
        const FEW: u32 = 16;
        if self.from_pool.swap(0, Relaxed) < FEW {
            let old = self.pool.load(Relaxed);
            self.pool
                .store(old - old / 16 + USUAL_POOL_NS / 16, Relaxed);
        }
    }
}

impl PoolSplit {
    /// Nearly all for the pool.
    pub const fn new() -> Self {
        Self {
            ranks: [0; RANKS],
            seen: 0,
            staged_touches: 0,
            share: FIRST,
            density: 2 * 16,
            is_learned: false,
            regret: 0,
            larger: true,
        }
    }

    /// Whether the share is that which faults have taught.
    pub fn is_learned(&self) -> bool {
        self.is_learned
    }

    /// The share is a share; regret is of a split that is not taken.
    pub fn check(&self) {
        assert!(SHARES.contains(&self.share));
        let counted: u64 = self.ranks.iter().map(|n| u64::from(*n)).sum();
        assert!(u64::from(self.seen) <= counted, "each fault has a rank");
    }

    /// A page of this rank came back, while `resident` pages were resident.
    pub fn record_refault(&mut self, rank: usize, resident: usize) {
        let faults = &mut self.ranks[(rank * SET / resident.max(1)).min(RANKS - 1)];
        if let Some(more) = faults.checked_add(1) {
            *faults = more;
            self.seen += 1;
        }
    }

    /// A page that waited to be stored was touched.
    pub fn record_staged_touch(&mut self) {
        self.staged_touches = self.staged_touches.saturating_add(1);
    }

    /// Touches to expect of a step of pages that wait, where `staged` do now and as many as `resident` are resident. Of a few
    /// nobody can tell.
    fn touches_of_step(&self, staged: usize, resident: usize) -> u64 {
        const FEW: usize = 256;
        match staged * FEW >= resident {
            true => u64::from(self.staged_touches) * (resident / SET) as u64 / staged as u64,
            false => 0,
        }
    }

    /// Whether the pool is to have nothing: pages go past it.
    pub fn is_none(&self) -> bool {
        self.share == 0
    }

    /// Pages in a frame of the pool, in sixteenths, where it holds these pages in so many frames, of `budget` pages. Of a
    /// pool that holds next to nothing it is what it was, as what stays is what nobody wants; at first two pages.
    pub fn density(&mut self, pages: usize, frames: usize, budget: usize) -> usize {
        const PART: usize = 32;
        if frames > 0 && frames * PART >= budget {
            self.density = pages * 16 / frames;
        }
        self.density
    }

    /// The pool's part, in pages: of the tree's `budget` until something was learned, then of what this process has
    /// `charged`; without pages that `refused` to leave, which would else be all that is left to the program.
    pub fn limit(&self, budget: usize, charged: usize, refused: usize) -> usize {
        let whole = if self.is_learned { charged } else { budget };
        whole.saturating_sub(refused) * self.share / WHOLE
    }

    /// Faults of pages of a rank below this one: a step that the line cuts counts in part.
    fn below(&self, rank: u64, resident: u64) -> u64 {
        const PARTS: u64 = 16;
        let at = (rank * SET as u64 * PARTS / resident).min(RANKS as u64 * PARTS);
        let (steps, part) = ((at / PARTS) as usize, at % PARTS);
        let whole: u64 = self.ranks[..steps].iter().map(|n| u64::from(*n)).sum();
        whole
            + self
                .ranks
                .get(steps)
                .map_or(0, |n| u64::from(*n) * part / PARTS)
    }

    /// Older faults count half from now on.
    fn halve(&mut self) {
        for rank in &mut self.ranks {
            *rank /= 2;
        }
        self.seen = 0;
        self.staged_touches /= 2;
    }

    /// Moves the share a step if that is worth it. In use are `resident` pages, `staged` ones that wait and `pool` frames,
    /// which hold `density` pages each in sixteenths, of `budget` pages. True if it was moved.
    pub fn adjust(
        &mut self,
        (resident, staged): (usize, usize),
        pool: usize,
        density: usize,
        budget: usize,
        costs: &Costs,
    ) -> bool {
        if self.seen < ENOUGH || resident < SET {
            return false;
        }
        costs.looked_at();
        let near = costs.pool.load(Relaxed) + AROUND_NS;
        let far = near + costs.more.load(Relaxed);
        let through = near * THROUGH / 100;
        let all = self.ranks.iter().map(|n| u64::from(*n)).sum::<u64>();
        let at_edge = u64::from(self.ranks[0].max(self.ranks[1]));
        let at_edge = at_edge.max(self.touches_of_step(staged, resident));
        let grows = pool * 8 >= budget * self.share / WHOLE * 7;
        let cost = |share: usize| {
            let limit = budget * share / WHOLE;
            let x = match pool as i64 - limit as i64 {
                x if x < 0 && !grows => 0,
                x => x,
            };
            let holds = (pool as i64 - x).max(0) * density as i64 / 16;
            let below = |pages: i64| self.below(pages.max(0) as u64, resident as u64);
            let hit = below(x);
            let in_pool = below(x + holds).max(hit);
            let steps = (-x).max(0) as u64 * SET as u64 / resident as u64;
            let missed = steps * at_edge;
            let way = if share == 0 { 0 } else { through };
            (near + way) * (in_pool - hit + missed) + (far + way) * (all - in_pool)
        };
        let now = cost(self.share);
        // The nearest of those that cost the same.
        let order = |s: &usize| (cost(*s), s.abs_diff(self.share));
        let best = SHARES.min_by_key(order).unwrap_or(self.share);
        let saved = now - cost(best);
        self.halve();
        let larger = best > self.share;
        if best == self.share || larger != self.larger {
            (self.regret, self.larger) = (0, larger);
        }
        if saved <= now * WORTH / 100 {
            return false;
        }
        // Half of what is counted was counted before.
        self.regret += saved / 2;
        let step = budget / WHOLE;
        let price = if larger {
            step as u64 * near
        } else {
            let limit = budget * (self.share - 1) / WHOLE;
            let pages = pool.saturating_sub(limit).min(step) * density / 16;
            pages as u64 * far / WRITTEN
        };
        if self.regret < price * best.abs_diff(self.share) as u64 {
            return false;
        }
        self.regret -= price;
        self.is_learned = true;
        self.share = if larger {
            self.share + 1
        } else {
            self.share - 1
        };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_engine::random::Random;

    /// The share that it comes to when ranks come from `rank`, for 8000 resident pages and a pool of
    /// as many frames, two pages in each.
    fn settles(rank: impl Fn(usize, usize) -> usize) -> usize {
        settles_with(FIRST, 32, rank)
    }

    /// The same from this share on, with so many sixteenths of a page in each frame.
    fn settles_with(share: usize, density: usize, rank: impl Fn(usize, usize) -> usize) -> usize {
        let (mut split, costs, budget) = (PoolSplit::new(), Costs::new(), 16_000);
        split.share = share;
        let mut random = Random::new(1);
        for _ in 0..400 {
            let pool = split.limit(budget, budget, 0);
            let resident = budget - pool;
            for _ in 0..2000 {
                let pages = rank(random.below(1 << 31), resident);
                if pages > 0 {
                    split.record_refault(pages, resident);
                }
            }
            split.adjust((resident, 0), pool, density, budget, &costs);
            split.check();
        }
        split.share
    }

    #[test]
    fn a_working_set_that_nearly_fits_becomes_resident() {
        // 12000 pages at random: what is missing comes back within as many evictions as are missing.
        let share = settles(|x, resident| {
            let missing = 12_000usize.saturating_sub(resident);
            if missing == 0 {
                0
            } else {
                1 + x % (2 * missing)
            }
        });
        assert!(share <= 5, "{share}/16 for the pool");
    }

    /// Missing pages come back at once, and a pool would take the room for them.
    #[test]
    fn a_working_set_that_just_fits_has_no_pool() {
        let missing = |resident: usize| 15_500usize.saturating_sub(resident);
        let rank = |x: usize, resident: usize| match missing(resident) {
            0 => 0,
            missing => 1 + x % missing,
        };
        assert_eq!(settles_with(4, 32, rank), 0);
    }

    #[test]
    fn a_working_set_far_larger_than_memory_goes_to_the_pool() {
        let share = settles(|x, resident| 1 + x % (60_000 - resident));
        assert!(share >= 11, "{share}/16 for the pool");
    }

    /// A pool whose frames hold a page each, as those of the program do, is worth less than one of two.
    #[test]
    fn a_pool_is_worth_what_its_frames_hold() {
        let rank = |x: usize, resident: usize| 1 + x % (30_000 - resident);
        let [poor, rich] = [16, 32].map(|density| settles_with(FIRST, density, rank));
        assert!(poor < rich, "{poor} and {rich} sixteenths");
    }

    /// No page comes back that left a moment ago, as those are still there. What is touched of them says that memory is
    /// short.
    #[test]
    fn pages_touched_while_they_wait_are_worth_more_than_a_pool() {
        let share_after = |touches: usize| {
            let (mut split, costs) = (PoolSplit::new(), Costs::new());
            split.share = 0;
            for _ in 0..100 {
                (0..ENOUGH).for_each(|n| split.record_refault(4 * 500 + n as usize, 8_000));
                (0..touches).for_each(|_| split.record_staged_touch());
                let pool = split.limit(8_000, 8_000, 0);
                split.adjust((8_000, 500), pool, 40, 8_000, &costs);
                split.check();
            }
            split.share
        };
        assert!(share_after(0) > 0);
        assert_eq!(share_after(2_000), 0);
    }

    /// Else a process of which more refuses than the pool leaves has nothing to work with.
    #[test]
    fn a_pool_has_no_share_of_pages_that_refuse() {
        let mut split = PoolSplit::new();
        assert_eq!(split.limit(16_000, 8_000, 4_800), 11_200 * FIRST / WHOLE);
        split.is_learned = true;
        assert_eq!(split.limit(16_000, 8_000, 4_800), 3_200 * FIRST / WHOLE);
        assert_eq!(split.limit(16_000, 8_000, 9_000), 0);
    }

    #[test]
    fn an_empty_pool_is_as_dense_as_it_was() {
        let mut split = PoolSplit::new();
        assert_eq!(split.density(0, 0, 0), 32);
        assert_eq!(split.density(0, 0, 3200), 32);
        assert_eq!(split.density(100, 100, 3200), 16);
        assert_eq!(split.density(99, 33, 3200), 16);
    }

    /// A working set for which the pool is right, after one that had no use of it. The last faults from the pool were dear,
    /// as pages were written then.
    #[test]
    fn a_pool_that_was_given_up_comes_back() {
        let (mut split, costs, budget) = (PoolSplit::new(), Costs::new(), 18_000);
        split.share = 0;
        (0..200).for_each(|_| costs.took(false, 40_000));
        (0..500).for_each(|_| costs.took(true, 80_000));
        let mut random = Random::new(3);
        for _ in 0..400 {
            let pool = split.limit(budget, budget, 0);
            let resident = budget - pool;
            let out = 28_000 - resident;
            for _ in 0..400 {
                let rank = random.below(out);
                split.record_refault(rank, resident);
                let from_pool = rank < pool * 5 / 2;
                costs.took(!from_pool, if from_pool { 8_000 } else { 80_000 });
            }
            split.adjust((resident, 100), pool, 40, budget, &costs);
            split.check();
        }
        assert!(split.share >= 5, "{}/16 for the pool", split.share);
    }

    #[test]
    fn little_is_learnt_from_few_faults() {
        let mut split = PoolSplit::new();
        for _ in 0..ENOUGH - 1 {
            split.record_refault(0, 8000);
        }
        assert!(!split.adjust((8000, 0), 8000, 32, 16_000, &Costs::new()));
        assert_eq!(split.share, FIRST);
        assert_eq!(split.limit(16_000, 4_000, 0), 13_000);
    }

    /// Windows of faults, all of pages of this rank, until the share is another: at most `most`.
    fn windows(split: &mut PoolSplit, rank: impl Fn(usize) -> usize, most: usize) -> usize {
        let (resident, pool) = (3_000, 13_000);
        let moved = |window: &usize| {
            (0..ENOUGH).for_each(|_| split.record_refault(rank(*window), resident));
            split.adjust((resident, 0), pool, 32, 16_000, &Costs::new())
        };
        (0..most).find(moved).unwrap_or(most)
    }

    #[test]
    fn a_step_is_taken_when_it_would_have_saved_what_it_costs() {
        // Every fault would be saved, and a step writes 2000 pages.
        let (each, write) = (10_000, 100_000 / WRITTEN as usize);
        let paid = 2_000 * write;
        let windows = windows(&mut PoolSplit::new(), |_| 1, 1_000);
        let lost = windows * ENOUGH as usize * each;
        assert!((paid / 2..4 * paid).contains(&lost), "{lost} ns for {paid}");
    }

    #[test]
    fn alternating_ranks_do_not_move_the_split() {
        // Now of pages that just left, now of those that left before all that the pool can hold.
        let rank = |window| if window % 2 == 0 { 1 } else { 40_000 };
        let mut split = PoolSplit::new();
        split.share = FIRST / 2;
        assert_eq!(windows(&mut split, rank, 1_000), 1_000);
    }

    #[test]
    fn a_limit_that_is_far_off_is_left_alone() {
        // All pages that are out left within a sixteenth of the pool's limit.
        let mut split = PoolSplit::new();
        for _ in 0..1_000 {
            (0..ENOUGH).for_each(|_| split.record_refault(7_000, 8_000));
            assert!(!split.adjust((8_000, 0), 800, 32, 16_000, &Costs::new()));
        }
    }

    #[test]
    fn a_frame_of_the_pool_is_worth_the_faults_of_its_pages() {
        let costs = Costs::new();
        // A page on a device costs ten times one in the pool.
        assert_eq!(
            [16, 32, 48].map(|density| costs.price(density)),
            [10, 20, 30]
        );
        assert_eq!(
            [0, 16 * 100].map(|density| costs.price(density)),
            [1, MOST_PRICE]
        );
    }

    #[test]
    fn a_busy_machine_makes_no_device_look_near() {
        let costs = Costs::new();
        for _ in 0..1_000 {
            costs.took(false, 500_000);
            costs.took(true, 600_000);
        }
        let more = costs.more.load(Relaxed);
        assert!((90_000..110_000).contains(&more), "{more}");
    }
}
