//! Records of touches, as a process writes them that runs with `EBB_RECORD` (`pager/src/reclaim/recorder.rs`).

use ebb_pager::UNIT;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// One page in so many may come back sooner than touches are hidden for.
const HIDDEN_FROM: usize = 50;

/// Touches of pages in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// The pages, numbered from 0 in the order of their addresses. Units stay whole; gaps between them are left out.
    pub touches: Vec<u32>,
    /// One more than the highest number.
    pub pages: usize,
    /// Pages that are touched at all.
    pub touched: usize,
    /// The touches of other pages, about, between two of one page that are both on record: what comes sooner is hidden.
    pub hidden: usize,
}

impl Trace {
    /// Of page numbers (addresses / 4096).
    #[must_use]
    pub fn of(numbers: &[u64]) -> Self {
        let unit = |n: u64| n / UNIT as u64;
        let mut units: BTreeMap<u64, u32> = numbers.iter().map(|n| (unit(*n), 0)).collect();
        for (place, number) in units.values_mut().zip(0..) {
            *place = number;
        }
        let within = |n: u64| (n % UNIT as u64) as u32;
        let place = |n: &u64| units[&unit(*n)] * UNIT as u32 + within(*n);
        let touches: Vec<u32> = numbers.iter().map(place).collect();
        let pages = units.len() * UNIT;
        let mut last = vec![None; pages];
        let mut between = Vec::new();
        for (at, page) in touches.iter().enumerate() {
            between.extend(
                last[*page as usize]
                    .replace(at)
                    .map(|before: usize| at - before),
            );
        }
        // A few come back sooner: they were dropped, or left early.
        let at = between.len() / HIDDEN_FROM;
        let hidden = match between.is_empty() {
            true => 0,
            false => *between.select_nth_unstable(at).1,
        };
        Self {
            touches,
            pages,
            touched: last.into_iter().flatten().count(),
            hidden,
        }
    }

    /// Of a file.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(file: &Path) -> io::Result<Self> {
        let bytes = std::fs::read(file)?;
        let (numbers, _) = bytes.as_chunks();
        let numbers: Vec<u64> = numbers.iter().map(|n| u64::from_ne_bytes(*n)).collect();
        Ok(Self::of(&numbers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_numbered_by_address_and_units_stay_whole() {
        let trace = Trace::of(&[0x7000_0003, 0x21, 0x7000_0003, 0x2f, 0x7000_0010]);
        assert_eq!(trace.touches, [19, 1, 19, 15, 32]);
        assert_eq!((trace.pages, trace.touched, trace.hidden), (48, 4, 2));
        assert_eq!(Trace::of(&[]), Trace::default());
    }

    #[test]
    fn a_file_that_was_cut_off_has_the_touches_before() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut bytes = 32u64.to_ne_bytes().to_vec();
        bytes.extend([1, 2, 3]);
        std::fs::write(file.path(), bytes).unwrap();
        assert_eq!(Trace::read(file.path()).unwrap().touches, [0]);
    }
}
