//! [`UnitLoads`]: whether a page that is loaded from a device brings the rest of its unit.
//!
//! A transfer of sixteen pages takes twice as long as that of one. So where the rest of a unit is wanted soon it had
//! better come at once. Where it is not, it takes room from pages in use, and the next turn of all others comes sooner.
//!
//! Nothing tells whether a page that came along is touched. So some units are a *sample*: their pages are loaded one by one.
//! When pages of such a unit leave again, its stay is over, and what was loaded says what was wanted of what was out:
//!
//! ```text
//! wanted(i) = Σ loads after the i-th / Σ pages that were out after it,   over stays of at least i loads
//! ```
//!
//! The rest comes with the `i`-th load where at least [`WANTED`] of it was: as far as pages in a row are out. Until
//! [`ENOUGH`] stays have ended it comes with the second load, as a phase that reads an array out of order is over before
//! its units leave. Where an array does not fit, three quarters of a unit displace as much as they spare (decision 0016).
//!
//! Not here: scans, which bring units without a device, too (`access_pattern`).

use crate::map::page_map::{UNIT, UnitNumber};
use ebb_engine::random::mix;

/// One unit in so many is a sample.
const SAMPLE: u64 = 16;
/// The part of the rest that is to be wanted, in eighths.
const WANTED: u32 = 7;
/// Stays from which something is learned; twice as many before older ones count half.
const ENOUGH: u32 = 32;
/// The load with which the rest comes before anything is learned.
const SECOND: usize = 2;

/// See the module.
pub struct UnitLoads {
    stays: u32,
    /// Loads that followed the one of each number.
    followed: [u32; UNIT],
    /// Pages that were out after it.
    out: [u32; UNIT],
}

impl UnitLoads {
    /// Nothing is known.
    pub const fn new() -> Self {
        Self {
            stays: 0,
            followed: [0; UNIT],
            out: [0; UNIT],
        }
    }

    /// Whether pages of this unit are loaded one by one.
    pub fn is_sample(unit: UnitNumber) -> bool {
        // Arrays and heaps have strides of powers of two.
        mix(unit.0 as u64).is_multiple_of(SAMPLE)
    }

    /// Whether the rest of a unit comes with its load of this number in this stay.
    pub fn brings_rest(&self, unit: UnitNumber, load: usize) -> bool {
        if Self::is_sample(unit) {
            return false;
        }
        let i = load.min(UNIT - 1);
        match self.stays >= ENOUGH && self.out[i] >= UNIT as u32 {
            true => self.followed[i] * 8 >= self.out[i] * WANTED,
            false => load >= SECOND,
        }
    }

    /// The stay of a unit of the sample is over: so many loads, no more than it has pages, and so many pages that are
    /// still out.
    pub fn ended(&mut self, loads: usize, out: usize) {
        for i in 1..=loads.min(UNIT - 1) {
            self.followed[i] += (loads - i) as u32;
            self.out[i] += (loads - i + out) as u32;
        }
        self.stays += 1;
        if self.stays >= 2 * ENOUGH {
            self.stays /= 2;
            for count in self.followed.iter_mut().chain(&mut self.out) {
                *count /= 2;
            }
        }
    }

    /// No more followed than was out.
    pub fn check(&self) {
        assert!(self.followed.iter().zip(&self.out).all(|(f, out)| f <= out));
        assert!(self.stays < 2 * ENOUGH);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(stays: usize, loads: usize, out: usize) -> UnitLoads {
        let mut unit_loads = UnitLoads::new();
        (0..stays).for_each(|_| unit_loads.ended(loads, out));
        unit_loads.check();
        unit_loads
    }

    fn first(unit_loads: &UnitLoads) -> Option<usize> {
        let unit = (0..).map(UnitNumber).find(|u| !UnitLoads::is_sample(*u));
        let unit = unit.expect("most are none");
        (1..=UNIT).find(|load| unit_loads.brings_rest(unit, *load))
    }

    #[test]
    fn the_rest_comes_with_the_load_after_which_it_was_wanted() {
        assert_eq!(first(&after(0, 0, 0)), Some(2), "nothing is known");
        assert_eq!(first(&after(1000, 16, 0)), Some(1), "all is wanted");
        assert_eq!(
            first(&after(1000, 1, 15)),
            Some(2),
            "of second loads nothing is known"
        );
        assert_eq!(first(&after(1000, 4, 12)), Some(5));
        let mut mixed = after(0, 0, 0);
        for stay in 0..1000 {
            mixed.ended([2, 16][stay % 2], [14, 0][stay % 2]);
        }
        // Half of the units are wanted whole, as the third load shows.
        assert_eq!(first(&mixed), Some(3));
    }

    #[test]
    fn one_unit_in_sixteen_is_a_sample_whatever_the_stride() {
        for stride in [1, 2, 16, 512, 4096] {
            let all = (0..4096).map(|i| UnitNumber(i * stride));
            let sample = all.filter(|unit| UnitLoads::is_sample(*unit)).count();
            assert!((128..512).contains(&sample), "{sample} of 4096");
        }
    }
}
