//! Learning from the order of faults how many pages to bring in with one.
//!
//! A handful of streams, each the page expected next. A fault at a stream's next page (the one before, for memory that is
//! scanned downwards) doubles the stream's window up to a unit. One a few pages on halves it. Any other fault starts a
//! stream with a window of one page, in place of the one used longest ago. So a sequential scan soon pays one fault for
//! sixteen pages, with a hole now and then too. Several scans at once do not disturb each other, and a random touch brings
//! in its own page only. One that turns round begins anew: touches to and fro are no scan. Units that are in memory cause no
//! fault: a scan that passes some is the same scan.
//!
//! A walk with a stride, as down a column of a matrix, has its own pages alone. Those between are mostly wanted later than
//! its own are again: with windows it would displace what it is about to come back to.
//!
//! A stream at its full window also names the pages ahead (`ahead`), so that those on devices are on their way before
//! they are touched. It looks twice as far each time, up to `REACH`, and again when half of that was used up, as the
//! kernel's readahead does.

use crate::map::page_map::{PageNumber, UNIT};
use std::ops::Range;

const STREAMS: usize = 8;
/// Pages that a scan may skip.
const SKIP: usize = 4;
/// Faults in a row where they were expected that make a scan which leaves out no page.
const EXACT: u8 = 8;
/// Pages in memory that are looked at, where a scan may have passed them without a fault of which we
/// hear.
const PASS: usize = 16 * UNIT;
/// How far a scan is looked ahead of, in pages.
pub const REACH: usize = 64;

#[derive(Clone, Copy)]
struct Stream {
    /// The page after the last one brought in.
    above: usize,
    /// The page before the first one brought in.
    below: usize,
    window: usize,
    used: u64,
    /// The pages that it looks ahead next.
    reach: usize,
    /// The pages it looked ahead at, at the end that it goes to: none of them is told again.
    told: usize,
    downward: bool,
    /// Faults in a row at the very next page that was not in memory.
    exact: u8,
}

impl Stream {
    const NEW: Self = Self {
        above: 0,
        below: 0,
        window: 0,
        used: 0,
        reach: UNIT,
        told: 0,
        downward: false,
        exact: 0,
    };

    fn ahead(&self, page: PageNumber) -> bool {
        (self.above..=self.above + SKIP).contains(&page.0)
    }
    fn behind(&self, page: PageNumber) -> bool {
        (self.below.saturating_sub(SKIP)..=self.below).contains(&page.0)
    }
    /// The pages between the scan and `page`, if it may have passed whole units on its way there.
    fn between(&self, page: PageNumber) -> Option<Range<usize>> {
        let (gap, edge) = if self.downward {
            (page.0 + 1..self.below.wrapping_add(1), UNIT - 1)
        } else {
            (self.above..page.0, 0)
        };
        let may = self.window == UNIT && page.within() == edge && gap.len() <= PASS;
        (may && !gap.is_empty()).then_some(gap)
    }
    /// Whether it leaves out no page.
    fn is_whole_scan(&self) -> bool {
        self.window == UNIT && self.exact >= EXACT
    }
    /// The first and the last page that it passed, if `page` may be where it comes to after more pages
    /// in memory than are looked at.
    fn stopped(&self, page: PageNumber) -> Option<[PageNumber; 2]> {
        let (next, edge, last) = if self.downward {
            (self.below, UNIT - 1, page.0 + 1)
        } else {
            (self.above, 0, page.0.wrapping_sub(1))
        };
        let ahead = if self.downward {
            page.0 < next
        } else {
            page.0 > next
        };
        let may = self.is_whole_scan() && ahead && page.within() == edge;
        may.then_some([PageNumber(next), PageNumber(last)])
    }
}

/// How many pages to bring in, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// The first page.
    pub first: PageNumber,
    /// The number of pages; the faulting page is among them, and all lie in its unit.
    pub pages: usize,
    /// Flag: the pages are part of a scan, by several faults before this one.
    pub stream: bool,
    /// Flag: no page is left out.
    pub whole_scan: bool,
}

impl Window {
    /// `page` alone.
    pub const fn one(page: PageNumber) -> Self {
        Self {
            first: page,
            pages: 1,
            stream: false,
            whole_scan: false,
        }
    }

    /// All of its unit.
    pub fn of_unit(page: PageNumber) -> Self {
        Self {
            first: page.unit().first(),
            pages: UNIT,
            stream: false,
            whole_scan: false,
        }
    }

    /// As many pages as `other`, if that is more.
    pub fn widened(self, other: Self) -> Self {
        if other.pages <= self.pages {
            return self;
        }
        Self {
            stream: self.stream,
            whole_scan: self.whole_scan,
            ..other
        }
    }
}

/// The streams of one process.
pub struct AccessPattern {
    streams: [Stream; STREAMS],
    clock: u64,
    /// The stream of the last window.
    last: usize,
    /// The state of that stream before the window.
    before: Stream,
    /// Flag: it may be needed again.
    can_undo: bool,
}

impl AccessPattern {
    /// Without streams.
    pub const fn new() -> Self {
        Self {
            streams: [Stream::NEW; STREAMS],
            clock: 0,
            last: 0,
            before: Stream::NEW,
            can_undo: false,
        }
    }

    /// The window of pages to bring in for a fault on `page`, at most. `present` says whether a page is in memory.
    /// Tell with `brought` what was.
    pub fn window(&mut self, page: PageNumber, present: impl Fn(PageNumber) -> bool) -> Window {
        self.clock += 1;
        let unit = page.unit().first().0;
        let near = |s: &Stream| s.window > 0 && (s.ahead(page) || s.behind(page));
        let passed = |s: &Stream| {
            s.between(page)
                .is_some_and(|mut pages| pages.all(|p| present(PageNumber(p))))
        };
        let stopped = |s: &Stream| {
            s.stopped(page)
                .is_some_and(|ends| ends.into_iter().all(&present))
        };
        let streams = &self.streams;
        let hit = (streams.iter().position(near))
            .or_else(|| streams.iter().position(passed))
            .or_else(|| streams.iter().position(stopped));
        let Some(i) = hit else {
            let oldest = (0..STREAMS)
                .min_by_key(|i| self.streams[*i].used)
                .unwrap_or(0);
            self.keep(oldest);
            self.streams[oldest] = Stream {
                above: page.0 + 1,
                below: page.0.wrapping_sub(1),
                window: 1,
                used: self.clock,
                told: page.0,
                ..Stream::NEW
            };
            return Window::one(page);
        };
        self.keep(i);
        let s = &mut self.streams[i];
        s.used = self.clock;
        let downward = page.0 < s.above;
        let skipped = match downward {
            true => page.0 + 1..s.below.wrapping_add(1),
            false => s.above..page.0,
        };
        let exact = !near(s) || skipped.into_iter().all(|p| present(PageNumber(p)));
        s.exact = if exact { s.exact.saturating_add(1) } else { 0 };
        s.window = match s.window {
            window if !exact => (window / 2).max(1),
            1 => 2,
            _ if downward != s.downward => 2,
            window => (window * 2).min(UNIT),
        };
        s.downward = downward;
        let (first, end) = if !downward {
            (page.0, (page.0 + s.window).min(unit + UNIT))
        } else {
            ((page.0 + 1).saturating_sub(s.window).max(unit), page.0 + 1)
        };
        s.above = end;
        s.below = first.wrapping_sub(1);
        Window {
            first: PageNumber(first),
            pages: end - first,
            stream: s.window == UNIT,
            whole_scan: s.is_whole_scan(),
        }
    }

    /// Windows are of no more than a unit, and nothing looks ahead farther than [`REACH`].
    pub fn check(&self) {
        for stream in &self.streams {
            assert!(stream.window <= UNIT && (UNIT..=REACH).contains(&stream.reach));
            assert!(stream.used <= self.clock);
        }
        assert!(self.last < STREAMS);
    }

    /// Which pages the scan of the last window comes to after it, that were not told yet. Empty if
    /// it is none, or enough was told.
    pub fn ahead(&mut self) -> Range<PageNumber> {
        let s = &mut self.streams[self.last];
        let next = if s.downward { s.below + 1 } else { s.above };
        let left = if s.downward {
            next.saturating_sub(s.told)
        } else {
            s.told.saturating_sub(next)
        };
        if s.window < UNIT || left > s.reach / 2 {
            return PageNumber(next)..PageNumber(next);
        }
        // Pages that were announced and lie behind by now, or in another direction, count for nothing.
        let from = |told: usize| if left > 0 { told } else { next };
        let range = if s.downward {
            let to = next.saturating_sub(s.reach);
            to..from(s.told).max(to)
        } else {
            from(s.told)..next + s.reach
        };
        s.told = if s.downward { range.start } else { range.end };
        s.reach = (s.reach * 2).min(REACH);
        PageNumber(range.start)..PageNumber(range.end)
    }

    fn keep(&mut self, stream: usize) {
        (self.last, self.before, self.can_undo) = (stream, self.streams[stream], true);
    }

    /// The fault of the last window is not served now, and comes again: its touch is no other than that one.
    pub fn undo(&mut self) {
        if std::mem::take(&mut self.can_undo) {
            self.streams[self.last] = self.before;
        }
    }

    /// Less than the last window was brought in: only `first..first + pages`. If that is nothing, the fault comes again.
    pub fn brought(&mut self, first: PageNumber, pages: usize) {
        if pages == 0 {
            return self.undo();
        }
        let s = &mut self.streams[self.last];
        s.above = first.0 + pages;
        s.below = first.0.wrapping_sub(1);
    }
}

/// The longest run of pages around `page`, inside the window, for which `good` holds.
pub fn around(
    page: PageNumber,
    first: PageNumber,
    pages: usize,
    good: impl Fn(PageNumber) -> bool,
) -> (PageNumber, usize) {
    let (mut start, mut end) = (page.0, page.0 + 1);
    while start > first.0 && good(PageNumber(start - 1)) {
        start -= 1;
    }
    while end < first.0 + pages && good(PageNumber(end)) {
        end += 1;
    }
    (PageNumber(start), end - start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_engine::random::Random;

    fn absent(_: PageNumber) -> bool {
        false
    }

    /// A fault for which there is no room is looked at again and again.
    #[test]
    fn a_fault_that_comes_again_is_one_touch() {
        let mut pattern = AccessPattern::new();
        let mut served = |page: usize, tries: usize| {
            for _ in 1..tries {
                pattern.window(PageNumber(page), |_| false);
                pattern.undo();
                pattern.undo();
            }
            let window = pattern.window(PageNumber(page), |_| false);
            pattern.check();
            window.pages
        };
        // A touch at random brings its own page alone.
        assert_eq!(served(1000, 8), 1);
        assert_eq!(served(5000, 8), 1);
        // A scan goes on in its direction: upward, and downward from the end of a unit.
        assert_eq!([16, 17, 19, 23].map(|page| served(page, 3)), [1, 2, 4, 8]);
        assert_eq!(
            [207, 206, 204, 200].map(|page| served(page, 3)),
            [1, 2, 4, 8]
        );
    }

    #[test]
    fn a_sequential_scan_soon_takes_whole_units() {
        let mut p = AccessPattern::new();
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
    fn a_downward_scan_too() {
        let mut p = AccessPattern::new();
        let (mut page, mut faults) = (100_000, 0);
        while page > 100_000 - 64 * UNIT {
            let w = p.window(PageNumber(page), absent);
            assert_eq!(w.first.0 + w.pages - 1, page);
            page = w.first.0 - 1;
            faults += 1;
        }
        assert!(faults < 64 + 6, "{faults} faults for 64 units");
    }

    /// Scans from `page`; what was told before it was brought, each page
    /// once, and by how much at most.
    fn told(mut page: usize, downward: bool) -> (usize, usize) {
        let mut p = AccessPattern::new();
        let (mut told, mut distance) = (std::collections::BTreeSet::new(), 0);
        let mut late = 0;
        for _ in 0..64 {
            let w = p.window(PageNumber(page), absent);
            late += (w.first.0..w.first.0 + w.pages)
                .filter(|n| !told.contains(n))
                .count();
            page = if downward {
                w.first.0 - 1
            } else {
                w.first.0 + w.pages
            };
            let ahead = p.ahead();
            for n in ahead.start.0..ahead.end.0 {
                assert!(told.insert(n), "{n} twice");
                distance = distance.max(n.abs_diff(page));
            }
        }
        (late, distance)
    }

    #[test]
    fn a_scan_is_told_before_it_comes() {
        for (page, downward) in [(1 << 20, false), (1 << 20, true)] {
            let (late, distance) = told(page, downward);
            assert!(late <= 2 * UNIT + 15, "{late} pages came as a surprise");
            assert!(distance <= REACH + UNIT, "{distance} pages ahead");
        }
    }

    #[test]
    fn random_touches_tell_nothing() {
        let mut p = AccessPattern::new();
        for n in 0..100usize {
            p.window(PageNumber(n * 7919 % 100 * 1000), absent);
            p.check();
            assert!(p.ahead().is_empty());
        }
    }

    /// Touches pages, and says how many faults and pages that takes.
    fn walk(p: &mut AccessPattern, pages: impl Iterator<Item = usize>) -> (usize, usize) {
        let (mut here, mut faults, mut brought) = (0..0, 0, 0);
        for page in pages {
            if !here.contains(&page) {
                let w = p.window(PageNumber(page), absent);
                here = w.first.0..w.first.0 + w.pages;
                faults += 1;
                brought += w.pages;
            }
        }
        (faults, brought)
    }

    #[test]
    fn a_scan_with_holes_is_a_scan() {
        let mut random = Random::new(5);
        let all = 5000..5000 + 256 * UNIT;
        let touched: Vec<usize> = all.filter(|_| random.below(10) > 0).collect();
        let mut p = AccessPattern::new();
        let (faults, _) = walk(&mut p, touched.iter().copied());
        assert!(
            faults * 4 < touched.len(),
            "{faults} faults for {} touches",
            touched.len()
        );
    }

    #[test]
    fn a_walk_with_a_stride_brings_its_own_pages() {
        for stride in 2..=8 {
            let mut p = AccessPattern::new();
            let pages = (5000..5000 + 64 * UNIT).step_by(stride);
            let touched = pages.len();
            assert_eq!(walk(&mut p, pages), (touched, touched), "stride {stride}");
            // One that becomes a scan is one.
            let (faults, _) = walk(&mut p, 9000..9000 + 64 * UNIT);
            assert!(faults < 64 + 6, "{faults} faults for 64 units");
        }
    }

    #[test]
    fn a_scan_passes_pages_that_are_in_memory() {
        let kept = |p: PageNumber| p.unit().0 % 5 < 3;
        for step in [1, -1] {
            let mut p = AccessPattern::new();
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
    fn a_scan_passes_much_that_is_in_memory_and_no_other_touch_is_taken_for_it() {
        let mut p = AccessPattern::new();
        let (mut at, stop) = (1000 * UNIT, 1020 * UNIT);
        while at < stop {
            at += p.window(PageNumber(at), absent).pages;
            p.check();
        }
        let behind = stop + 1000 * UNIT;
        let kept = |p: PageNumber| (stop..behind).contains(&p.0);
        let alone = |p: &mut AccessPattern, at: usize, present: &dyn Fn(PageNumber) -> bool| {
            p.window(PageNumber(at), present).pages == 1
        };
        assert!(alone(&mut p, behind + 5000 * UNIT, &absent), "not stopped");
        assert!(alone(&mut p, behind + UNIT / 2, &kept), "not at an edge");
        assert!(alone(&mut p, behind + 64 * UNIT, &kept), "not from memory");
        assert!(alone(&mut p, 900 * UNIT, &kept), "where it came from");
        for unit in 0..4 {
            assert!(p.window(PageNumber(behind + unit * UNIT), kept).whole_scan);
        }
    }

    #[test]
    fn random_touches_bring_their_own_page_and_do_not_break_a_scan() {
        let mut p = AccessPattern::new();
        let (mut next, mut random) = (UNIT, Random::new(1));
        for _ in 0..4 {
            next += p.window(PageNumber(next), absent).pages;
        }
        for _ in 0..100 {
            for _ in 0..3 {
                let page = PageNumber(1 << 30 | random.below(1 << 24));
                assert_eq!(
                    p.window(page, absent),
                    Window {
                        first: page,
                        pages: 1,
                        stream: false,
                        whole_scan: false
                    }
                );
            }
            let w = p.window(PageNumber(next), absent);
            assert!(w.pages > 1 || w.first.within() == UNIT - 1);
            next += w.pages;
        }
    }
}
