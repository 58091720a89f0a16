//! [`HoldBack`]: how many captured pages wait in the staging area before they are stored.
//!
//! A touch of a page that waits costs a remap, and is the only sign of use short of a load. The page counts as one that
//! just came, and another leaves in its place. Where programs come back to what they used lately, that spares loads.
//! Where they touch at random, one page is worth as much as another, and the remaps are for nothing.
//!
//! Their touches tell the two apart. Pages begin to wait when their time to stay is over. If they were always touched as often
//! as then, so often would a page be touched in the whole of that time:
//!
//! ```text
//! density = touched / captured * pages in memory / pages that wait
//! ```
//!
//! At random it is one or two. From [`MANY`] on pages in use leave, and as many wait as may; below [`FEW`], half as
//! many as before, if that lasts. Few wait where more loads come from the pool than from devices: such loads cost little more than remaps.
//!
//! ```text
//! least(pages)  <=  target(pages)  <=  most(pages)
//! ```
//!
//! Source: Turner and Levy, *Segmented FIFO Page Replacement* (1981), whose second segment has one size. Figures are in
//! decision 0016. Not here: what a touch says of the page itself (`reclaim_queue`).

use crate::map::page_map::UNIT;

/// Pages in memory, to one that waits in any case.
const LEAST: usize = 128;
/// Pages that wait in any case, at most.
pub const LEAST_PAGES: usize = 1024;
/// Pages in memory, to one that waits at most.
const MOST: usize = 16;
/// Pages that wait, at most: half of the largest staging area.
const MOST_PAGES: usize = 1 << 18;
/// Pages in memory, to one that is captured between two decisions.
const WINDOW: usize = 32;
/// The density from which on more pages wait.
const MANY: usize = 8;
/// The density below which fewer wait.
const FEW: usize = MANY / 2;
/// The first decisions for fewer change nothing: phases are short, and come again.
const GRACE: u32 = 2;
/// After as many decisions for fewer, nothing is left to halve.
const LOWEST: u32 = GRACE + MOST_PAGES.ilog2() + 1;

/// See the module.
pub struct HoldBack {
    /// Decisions for fewer since as many waited as may.
    lowered: u32,
    /// Pages that began to wait since the last decision.
    captured: usize,
    /// Touches of pages that waited, since then.
    touched: usize,
    /// Loads until then.
    loads: Loads,
}

/// Loads of pages so far, by where they came from.
#[derive(Clone, Copy, Default)]
pub struct Loads {
    pub pool: u64,
    pub device: u64,
}

impl HoldBack {
    /// As few as can be.
    pub const fn new() -> Self {
        Self {
            lowered: LOWEST,
            captured: 0,
            touched: 0,
            loads: Loads { pool: 0, device: 0 },
        }
    }

    /// How many pages are to wait, of so many in memory.
    pub fn target(&self, pages: usize) -> usize {
        (most(pages) >> self.lowered.saturating_sub(GRACE)).max(least(pages))
    }

    /// A page that waited was touched.
    pub fn touched(&mut self) {
        self.touched += 1;
    }

    /// Pages begin to wait.
    pub fn captured(&mut self, pages: usize) {
        self.captured += pages;
    }

    /// Decides anew how many are to wait, of so many in memory, once enough were captured.
    pub fn decide(&mut self, pages: usize, loads: Loads) {
        if self.captured < (pages / WINDOW).max(UNIT) {
            return;
        }
        let target = self.target(pages);
        let density = self.touched * pages / (self.captured * target);
        let since = |now: u64, before: u64| now.saturating_sub(before);
        let are_cheap = since(loads.pool, self.loads.pool) > since(loads.device, self.loads.device);
        match density {
            MANY.. if !are_cheap => self.lowered = 0,
            FEW.. if !are_cheap => {}
            _ => self.lowered = (self.lowered + 1).min(LOWEST),
        }
        (self.captured, self.touched, self.loads) = (0, 0, loads);
    }
}

/// Pages that wait in any case, of so many in memory.
pub fn least(pages: usize) -> usize {
    (pages / LEAST).clamp(UNIT / 2, LEAST_PAGES)
}

/// Pages that wait, at most.
fn most(pages: usize) -> usize {
    (pages / MOST).min(MOST_PAGES).max(least(pages))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_engine::random::Random;

    const PAGES: usize = 100_000;

    /// Captures in which each page is touched while it waits with a chance that is `density` for the time of all pages.
    fn after(hold_back: &mut HoldBack, density: f64, captured: usize, from: Loads) -> usize {
        let (mut random, mut loads) = (Random::new(5), hold_back.loads);
        for _ in 0..captured / UNIT {
            hold_back.captured(UNIT);
            loads.pool += from.pool;
            loads.device += from.device;
            hold_back.decide(PAGES, loads);
            let chance = density * hold_back.target(PAGES) as f64 / PAGES as f64;
            for _ in 0..UNIT {
                if (random.below(1_000_000) as f64) < chance * 1e6 {
                    hold_back.touched();
                }
            }
        }
        hold_back.target(PAGES)
    }

    const DEVICE: Loads = Loads { pool: 4, device: 8 };
    const POOL: Loads = Loads { pool: 8, device: 4 };

    #[test]
    fn pages_in_use_that_leave_make_more_wait_and_touches_at_random_do_not() {
        let mut hold_back = HoldBack::new();
        let mut after = |density, captured| after(&mut hold_back, density, captured, DEVICE);
        assert_eq!(after(1.5, 4 * PAGES), PAGES / LEAST);
        assert_eq!(after(12.0, PAGES), PAGES / MOST);
        assert_eq!(after(6.0, PAGES), PAGES / MOST);
        assert_eq!(after(1.5, PAGES), PAGES / LEAST);
    }

    #[test]
    fn where_loads_are_cheap_few_wait() {
        let mut hold_back = HoldBack::new();
        assert_eq!(after(&mut hold_back, 12.0, PAGES, POOL), PAGES / LEAST);
        assert_eq!(after(&mut hold_back, 12.0, PAGES, DEVICE), PAGES / MOST);
        assert_eq!(after(&mut hold_back, 12.0, PAGES, POOL), PAGES / LEAST);
    }

    /// For any touches and any number of pages.
    #[test]
    fn the_target_keeps_to_its_bounds() {
        let (mut hold_back, mut random) = (HoldBack::new(), Random::new(1));
        for _ in 0..100_000 {
            let pages = 1 << random.below(30);
            hold_back.captured(random.below(64));
            (0..random.below(64)).for_each(|_| hold_back.touched());
            hold_back.decide(pages, Loads::default());
            let target = hold_back.target(pages);
            let allowed = least(pages)..=most(pages);
            assert!(allowed.contains(&target), "{target}");
            assert!(hold_back.lowered <= LOWEST);
        }
    }
}
