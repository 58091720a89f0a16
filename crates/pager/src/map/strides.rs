//! Walks with a stride: faults whose addresses lie equally far apart, as down a column of a matrix, or over objects of
//! one size. They name the pages that come next, so that those on devices are on their way before they are touched.
//!
//! Strides are exact in bytes: rows of 80,000 bytes lie 19 or 20 pages apart. Three faults make a walk, the third as far
//! from the second as that is from the first. Pages in memory cause no fault, so a walk may pass some steps. Where it
//! begins anew, at the next column, the second fault shows it.
//!
//! ```text
//! next(k) = last + k * stride;  told <= depth = min(2 * steps, DEPTH)
//! ```
//!
//! So no more is named in vain than twice what a walk has gone. As with scans (`access_pattern`), more is named once half
//! of it was used up. The idea is Chen's and Baer's reference prediction table, without their program counter.
//!
//! Not here: pages side by side (`access_pattern`), and who reads them (`swap_in`).

use crate::map::page_map::PageNumber;
use arrayvec::ArrayVec;
use ebb_engine::PAGE_SIZE;

/// Walks that are followed at a time.
const WALKS: usize = 4;
/// Faults among which a new one is looked for.
const RECENT: usize = 8;
/// Steps that are named ahead, at most.
const DEPTH: usize = 32;
/// Steps that are believed of a walk that begins anew.
const AGAIN: usize = 4;
/// Bytes that are a stride: nearer pages are a scan's.
const STRIDE: std::ops::RangeInclusive<usize> = 2 * PAGE_SIZE..=64 << 20;

/// A walk; none if its stride is zero.
#[derive(Clone, Copy, Default)]
struct Walk {
    /// The bytes from one fault to the next.
    stride: isize,
    /// The address of the last fault.
    last: usize,
    /// The steps that it has gone.
    steps: usize,
    /// The steps after the last fault that were named.
    told: usize,
    used: u64,
}

impl Walk {
    /// How many steps lie between the last fault and this one.
    fn steps_to(&self, address: usize) -> Option<usize> {
        let distance = address.wrapping_sub(self.last).cast_signed();
        if self.stride == 0 || distance % self.stride != 0 {
            return None;
        }
        let steps = usize::try_from(distance / self.stride).ok()?;
        (1..=DEPTH).contains(&steps).then_some(steps)
    }

    /// The address after so many steps more, if there is one.
    fn after(&self, steps: usize) -> Option<usize> {
        let distance = self.stride.checked_mul(steps.cast_signed())?;
        self.last.checked_add_signed(distance)
    }

    /// Goes on to this fault. The pages to name.
    fn advance(&mut self, address: usize, steps: usize) -> Ahead {
        self.last = address;
        self.steps += 1;
        self.told = self.told.saturating_sub(steps);
        let depth = self.steps.saturating_mul(2).min(DEPTH);
        if self.told > depth / 2 {
            return Ahead::new();
        }
        let from = std::mem::replace(&mut self.told, depth);
        let next = (from + 1..=depth).map_while(|steps| self.after(steps));
        next.map(PageNumber::of).collect()
    }
}

/// Pages that come next, in that order.
pub type Ahead = ArrayVec<PageNumber, DEPTH>;

/// The walks of one process.
pub struct Strides {
    walks: [Walk; WALKS],
    /// Addresses of the last faults, each at its number modulo their count.
    recent: [usize; RECENT],
    clock: u64,
}

impl Strides {
    /// Without walks.
    pub const fn new() -> Self {
        const NONE: Walk = Walk {
            stride: 0,
            last: 0,
            steps: 0,
            told: 0,
            used: 0,
        };
        Self {
            walks: [NONE; WALKS],
            recent: [0; RECENT],
            clock: 0,
        }
    }

    /// A fault at this byte. The pages that its walk comes to, and that were not named yet.
    pub fn touched(&mut self, address: usize) -> Ahead {
        self.clock += 1;
        let mut walks = self.walks.iter().enumerate();
        let goes_on = walks.find_map(|(walk, w)| Some((walk, w.steps_to(address)?)));
        let walk = goes_on.or_else(|| {
            let begins = self.again(address).or_else(|| self.begin(address))?;
            Some((begins, 1))
        });
        self.recent[self.clock as usize % RECENT] = address;
        let Some((walk, steps)) = walk else {
            return Ahead::new();
        };
        let walk = &mut self.walks[walk];
        walk.used = self.clock;
        walk.advance(address, steps)
    }

    /// Nothing is named beyond [`DEPTH`].
    pub fn check(&self) {
        for walk in &self.walks {
            assert!(walk.told <= DEPTH && walk.used <= self.clock);
            assert!(walk.stride == 0 || STRIDE.contains(&walk.stride.unsigned_abs()));
        }
    }

    /// A walk with a known stride that has begun anew, at another place.
    fn again(&mut self, address: usize) -> Option<usize> {
        let Self { walks, recent, .. } = self;
        let from = |w: &Walk| address.wrapping_sub(w.stride.cast_unsigned());
        let walk = walks
            .iter()
            .position(|w| w.stride != 0 && recent.contains(&from(w)))?;
        let Walk { stride, steps, .. } = walks[walk];
        walks[walk] = Walk {
            stride,
            last: from(&walks[walk]),
            // It may be two touches at random.
            steps: steps.min(AGAIN),
            ..Walk::default()
        };
        Some(walk)
    }

    /// A new walk, in place of the one used longest ago.
    fn begin(&mut self, address: usize) -> Option<usize> {
        let newest_first =
            (0..RECENT as u64).map(|age| (self.clock.wrapping_sub(1 + age)) as usize % RECENT);
        let stride = newest_first.map(|i| self.recent[i]).find_map(|second| {
            let stride = address.wrapping_sub(second);
            let first = second.wrapping_sub(stride);
            let is_stride = STRIDE.contains(&stride.cast_signed().unsigned_abs());
            (is_stride && self.recent.contains(&first)).then(|| stride.cast_signed())
        })?;
        let oldest = (0..WALKS).min_by_key(|&i| self.walks[i].used)?;
        self.walks[oldest] = Walk {
            stride,
            last: address.wrapping_sub(stride.cast_unsigned()),
            steps: 1,
            ..Walk::default()
        };
        Some(oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_engine::random::Random;

    /// The faults of these touches whose page was named before, each page once.
    fn foreseen(strides: &mut Strides, touches: impl Iterator<Item = usize>) -> (usize, usize) {
        let mut named = std::collections::BTreeSet::new();
        let (mut hits, mut vain) = (0, 0);
        for address in touches {
            hits += usize::from(named.remove(&PageNumber::of(address).0));
            for page in strides.touched(address) {
                vain += usize::from(!named.insert(page.0));
            }
            strides.check();
        }
        (hits, vain + named.len())
    }

    #[test]
    fn a_column_is_foreseen_from_its_fourth_page_on_and_the_next_from_its_third() {
        for stride in [2 * PAGE_SIZE as isize, 80_000, -65_552, 1 << 20] {
            let mut strides = Strides::new();
            let column = |at: usize| (0..200).map(move |row| at.wrapping_add_signed(row * stride));
            let (hits, vain) = foreseen(&mut strides, column(1 << 40));
            assert!(hits >= 200 - 3, "{stride}: {hits}");
            assert!(vain <= DEPTH, "{stride}: {vain}");
            let (hits, _) = foreseen(&mut strides, column((1 << 40) + 8 * PAGE_SIZE + 8));
            assert!(hits >= 200 - 2, "{stride}: {hits}");
        }
    }

    #[test]
    fn walks_beside_each_other_and_pages_that_cause_no_fault_disturb_none() {
        let mut strides = Strides::new();
        let walk = |at: usize, stride: usize| (0..300).map(move |n| at + n * stride);
        let mixed = walk(1 << 40, 70_000)
            .zip(walk(1 << 41, 9_000))
            .zip(walk(1 << 42, 300_008))
            .flat_map(|((a, b), c)| [a, b, c]);
        // Every fifth is in memory.
        let faults = mixed.enumerate().filter(|(n, _)| n / 3 % 5 != 4);
        let (hits, _) = foreseen(&mut strides, faults.map(|(_, at)| at));
        assert!(hits >= 720 - 12, "{hits}");
    }

    /// A loop over few rows names no more pages in vain than twice what it went.
    #[test]
    fn little_is_named_in_vain() {
        let mut strides = Strides::new();
        let mut random = Random::new(7);
        let at_random =
            (0..10_000).map(|_| (1 << 40) + (random.next() as usize % (1 << 17)) * PAGE_SIZE);
        let (_, vain) = foreseen(&mut strides, at_random);
        assert!(vain < 100, "{vain} of 10,000 touches at random");
        let mut strides = Strides::new();
        let (_, vain) = foreseen(&mut strides, (0..4).map(|n| (1 << 40) + n * 50_000));
        assert!(vain <= 6, "{vain}");
        assert!(strides.touched(0).is_empty() && strides.touched(usize::MAX).is_empty());
    }
}
