//! Learning from the order of faults how many pages to bring in with one.
//!
//! A handful of streams, each the page expected next. A fault at a stream's next page, or a few
//! pages on (ahead or behind, for memory walked downwards), doubles the stream's window up to a
//! unit; any other fault starts a stream with a window of one page in place of the one used
//! longest ago. So a sequential walk soon pays one fault for sixteen pages, one that skips pages
//! (objects of a few pages, every tenth record) still one for several touches, several walks at
//! once do not disturb each other, and a random touch brings in its own page only. Pages that are
//! in memory cause no fault: a walk that passes some is the same walk.

use crate::map::{PageNumber, UNIT};
use std::ops::Range;

const STREAMS: usize = 8;
/// Pages that a walk may skip.
const SKIP: usize = 4;
/// Pages in memory that a walk may pass without a fault of which we hear.
const PASS: usize = 16 * UNIT;

#[derive(Clone, Copy, Default)]
struct Stream {
    /// The page after the last one brought in.
    above: usize,
    /// The page before the first one brought in.
    below: usize,
    window: usize,
    used: u64,
}

impl Stream {
    fn ahead(&self, page: PageNumber) -> bool {
        (self.above..=self.above + SKIP).contains(&page.0)
    }
    fn behind(&self, page: PageNumber) -> bool {
        (self.below.saturating_sub(SKIP)..=self.below).contains(&page.0)
    }
    /// The pages that lie between the walk and `page`, if it may have passed them: those above it,
    /// or below.
    fn between(&self, page: PageNumber) -> Option<(Range<usize>, bool)> {
        let (up, down) = (self.above..page.0, page.0 + 1..self.below.wrapping_add(1));
        if self.window <= 1 {
            None
        } else if (1..=PASS).contains(&up.len()) {
            Some((up, true))
        } else if (1..=PASS).contains(&down.len()) {
            Some((down, false))
        } else {
            None
        }
    }
}

/// How many pages to bring in, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// The first page.
    pub first: PageNumber,
    /// How many; the faulting page is among them, and all lie in its unit.
    pub pages: usize,
}

/// The streams of one process.
#[derive(Default)]
pub struct Pattern {
    streams: [Stream; STREAMS],
    clock: u64,
    /// The stream of the last window.
    last: usize,
}

impl Pattern {
    /// Without streams.
    pub const fn new() -> Self {
        Self {
            streams: [Stream {
                above: 0,
                below: 0,
                window: 0,
                used: 0,
            }; STREAMS],
            clock: 0,
            last: 0,
        }
    }

    /// What to bring in for a fault on `page`, at most. `present` says whether a page is in memory.
    /// Tell with `brought` what was.
    pub fn window(&mut self, page: PageNumber, present: impl Fn(PageNumber) -> bool) -> Window {
        self.clock += 1;
        let unit = page.unit().first().0;
        let next = |s: &Stream| match s.window > 0 {
            true if s.ahead(page) => Some(true),
            true if s.behind(page) => Some(false),
            _ => None,
        };
        let passed = |s: &Stream| {
            let (mut pages, up) = s.between(page)?;
            pages.all(|p| present(PageNumber(p))).then_some(up)
        };
        let find = |hit: &dyn Fn(&Stream) -> Option<bool>| {
            let streams = self.streams.iter().enumerate();
            streams.filter_map(|(i, s)| Some((i, hit(s)?))).next()
        };
        let Some((i, up)) = find(&next).or_else(|| find(&passed)) else {
            let oldest = (0..STREAMS)
                .min_by_key(|i| self.streams[*i].used)
                .unwrap_or(0);
            self.last = oldest;
            self.streams[oldest] = Stream {
                above: page.0 + 1,
                below: page.0.wrapping_sub(1),
                window: 1,
                used: self.clock,
            };
            return Window {
                first: page,
                pages: 1,
            };
        };
        self.last = i;
        let s = &mut self.streams[i];
        s.used = self.clock;
        s.window = (s.window * 2).min(UNIT);
        let (first, end) = if up {
            (page.0, (page.0 + s.window).min(unit + UNIT))
        } else {
            ((page.0 + 1).saturating_sub(s.window).max(unit), page.0 + 1)
        };
        s.above = end;
        s.below = first.wrapping_sub(1);
        Window {
            first: PageNumber(first),
            pages: end - first,
        }
    }

    /// Less than the last window was brought in: only `first..first + pages`.
    pub fn brought(&mut self, first: PageNumber, pages: usize) {
        let s = &mut self.streams[self.last];
        s.above = first.0 + pages;
        s.below = first.0.wrapping_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn absent(_: PageNumber) -> bool {
        false
    }

    #[test]
    fn a_sequential_walk_soon_takes_whole_units() {
        let mut p = Pattern::new();
        let (mut page, mut faults) = (1000, 0);
        while page < 1000 + 64 * UNIT {
            let w = p.window(PageNumber(page), absent);
            assert_eq!(w.first.0, page);
            page += w.pages;
            faults += 1;
        }
        assert!(faults < 64 + 6, "{faults} faults for 64 units");
    }

    #[test]
    fn a_downward_walk_too() {
        let mut p = Pattern::new();
        let (mut page, mut faults) = (100_000, 0);
        while page > 100_000 - 64 * UNIT {
            let w = p.window(PageNumber(page), absent);
            assert_eq!(w.first.0 + w.pages - 1, page);
            page = w.first.0 - 1;
            faults += 1;
        }
        assert!(faults < 64 + 6, "{faults} faults for 64 units");
    }

    #[test]
    fn a_walk_that_skips_pages_is_a_walk() {
        let mut p = Pattern::new();
        let (mut touched, mut here, mut faults) = (0, 0..0, 0);
        for page in (5000..5000 + 64 * UNIT).step_by(3) {
            touched += 1;
            if !here.contains(&page) {
                let w = p.window(PageNumber(page), absent);
                here = w.first.0..w.first.0 + w.pages;
                faults += 1;
            }
        }
        assert!(
            faults * 4 < touched,
            "{faults} faults for {touched} touches"
        );
    }

    #[test]
    fn a_walk_passes_pages_that_are_in_memory() {
        let kept = |p: PageNumber| p.unit().0 % 5 < 3;
        for step in [1, -1] {
            let mut p = Pattern::new();
            let mut faults = 0;
            let mut page = 1000 * UNIT as isize - isize::from(step < 0);
            for _ in 0..200 * UNIT {
                let at = PageNumber(page as usize);
                page += step;
                let last = p.streams[p.last];
                if !kept(at) && !(last.below + 1..last.above).contains(&at.0) {
                    p.window(at, kept);
                    faults += 1;
                }
            }
            assert!(faults < 80 + 6, "{faults} faults for 80 units");
        }
    }

    #[test]
    fn random_touches_bring_their_own_page_and_do_not_break_a_walk() {
        let mut p = Pattern::new();
        let (mut walk, mut x) = (UNIT, 12345usize);
        for _ in 0..4 {
            walk += p.window(PageNumber(walk), absent).pages;
        }
        for _ in 0..100 {
            for _ in 0..3 {
                x = x
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                let page = PageNumber(1 << 30 | (x >> 40));
                assert_eq!(
                    p.window(page, absent),
                    Window {
                        first: page,
                        pages: 1
                    }
                );
            }
            let w = p.window(PageNumber(walk), absent);
            assert!(w.pages > 1 || w.first.within() == UNIT - 1);
            walk += w.pages;
        }
    }
}
