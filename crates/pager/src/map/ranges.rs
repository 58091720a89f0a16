//! Which addresses are managed, with which protection: the pager's view of the program's
//! memory map.
//!
//! Ranges do not overlap, are whole pages, and neighbours that are alike are one. It mirrors the calls that the hooks
//! saw. Calls made behind libc's back are not in it, and are harmless: a later call on the same addresses replaces
//! the record.

use crate::map::page_map::PageNumber;
use std::collections::BTreeMap;

/// The attributes of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// PROT_* bits, as [`recorded`].
    pub protection: i32,
    /// Flag: its missing pages are faults of ours. Only then may a page of it be swapped out.
    pub registered: bool,
    /// Flag: the program locked it: nothing leaves before it unlocks it.
    pub locked: bool,
    /// The other reasons for which nothing leaves.
    pub pinned: Pinned,
    /// Flag: the memory is to be the program's alone. Another userfaultfd is to have it.
    pub released: bool,
    /// Flag: the program put guards into it: nothing is filled in beside what it touches.
    pub guarded: bool,
    /// A forked child's part in it.
    pub in_child: InChild,
    /// The mapping of the file that it is a copy of.
    pub shadow: Option<Shadow>,
}

/// The protection as it is recorded: without the bits that say nothing of who may do what. `mmap` ignores those that it does
/// not know, and `mprotect` refuses them.
pub fn recorded(prot: i32) -> i32 {
    prot & (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC)
}

/// Why memory must not be paged, though the program has not locked it. Each reason goes by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pinned {
    /// Flag: until it is unmapped. The kernel stores words there, or the program does so in ways that wait for nobody.
    pub for_good: bool,
    /// Flag: as long as somebody is there who needs it: see [`holders`](crate::map::holders).
    pub held: bool,
    /// Flag: as long as it is under a protection key: the kernel moves no page to a place with another.
    pub keyed: bool,
}

impl Pinned {
    /// For any reason.
    pub fn is_pinned(self) -> bool {
        self != Self::default()
    }
}

/// How far from a range the mapping of its file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shadow(pub usize);

impl Shadow {
    /// The same of memory that went from one place to another.
    pub fn after_move(self, from: usize, to: usize) -> Self {
        Self(self.0.wrapping_add(from).wrapping_sub(to))
    }

    /// Where the file's bytes are that belong at an address.
    pub fn of(self, address: usize) -> usize {
        address.wrapping_add(self.0)
    }
}

/// The program's wish for a forked child's part in a range: a copy, if neither is set. Each flag is taken back by itself.
/// (The kernel is told otherwise: see `fork`.)
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InChild {
    /// Flag: the child has nothing (MADV_DONTFORK).
    pub absent: bool,
    /// Flag: it has zeros, if anything (MADV_WIPEONFORK).
    pub wiped: bool,
}

impl InChild {
    /// The wish after such advice.
    pub fn advised(mut self, advice: i32) -> Self {
        match advice {
            libc::MADV_DONTFORK | libc::MADV_DOFORK => {
                self.absent = advice == libc::MADV_DONTFORK;
            }
            _ => self.wiped = advice == libc::MADV_WIPEONFORK,
        }
        self
    }
}

impl Attributes {
    /// Those of memory that has just been mapped.
    pub fn mapped(protection: i32) -> Self {
        Self {
            protection: recorded(protection),
            registered: false,
            locked: false,
            pinned: Pinned::default(),
            released: false,
            guarded: false,
            in_child: InChild::default(),
            shadow: None,
        }
    }

    /// No page may leave, whatever happens.
    pub fn stays(self) -> bool {
        self.locked || self.pinned.is_pinned()
    }

    /// It is protected while relatives share it, so that writes are seen. Pinned memory is not: the kernel stores words
    /// of a thread there (`struct rseq`) when that thread goes on. The thread may wait for a lock of ours or hold it,
    /// so its store must not wait for service. The supervisor measures what such a write copies.
    pub fn is_protected(self) -> bool {
        !self.pinned.is_pinned()
    }

    /// The keeper is to register it, or to let it go.
    pub fn is_unsettled(self) -> bool {
        !self.registered || self.released
    }

    /// Plain read-write memory: pages may be moved into it.
    pub fn movable(self) -> bool {
        self.way_out() == Some(WayOut::Move)
    }

    /// Pages may leave it.
    pub fn evictable(self) -> bool {
        self.registered && !self.stays()
    }

    /// How pages leave it once it is registered; none: they have to stay.
    pub fn way_out(self) -> Option<WayOut> {
        const PLAIN: i32 = libc::PROT_READ | libc::PROT_WRITE;
        const EXECUTABLE: i32 = PLAIN | libc::PROT_EXEC;
        match self.protection {
            _ if self.stays() => None,
            PLAIN => Some(WayOut::Move),
            EXECUTABLE => Some(WayOut::MoveExecutable),
            sealed if sealed & libc::PROT_WRITE == 0 => Some(WayOut::Copy),
            _ => None,
        }
    }
}

/// How pages leave memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WayOut {
    /// They are moved: afterwards nobody can write them.
    Move,
    /// The same of read-write memory that may be executed too, as some programs have all of their
    /// heap (SBCL): both sides of a move must be alike.
    MoveExecutable,
    /// They are copied, and dropped: the kernel moves pages of writable memory alone, and what may
    /// only be read, or not even that, nobody can write anyway.
    Copy,
}

impl WayOut {
    /// Each of them, what most memory has first.
    pub const ALL: [Self; 3] = [Self::Move, Self::MoveExecutable, Self::Copy];
}

/// A managed range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// First address.
    pub start: usize,
    /// The address after the last.
    pub end: usize,
    /// The attributes.
    pub attributes: Attributes,
}

impl Range {
    /// Whether `page` lies in it.
    pub fn holds(&self, page: PageNumber) -> bool {
        (self.start..self.end).contains(&page.address())
    }
}

/// All managed ranges of the process.
#[derive(Default)]
pub struct Ranges {
    map: BTreeMap<usize, (usize, Attributes)>,
    /// The number of those that the keeper has to do something about.
    unsettled: usize,
}

impl Ranges {
    /// None.
    pub const fn new() -> Self {
        Self {
            map: BTreeMap::new(),
            unsettled: 0,
        }
    }

    /// None any more.
    pub fn clear(&mut self) {
        self.map.clear();
        self.unsettled = 0;
    }

    fn put(&mut self, start: usize, end: usize, attributes: Attributes) {
        self.unsettled += usize::from(attributes.is_unsettled());
        self.map.insert(start, (end, attributes));
    }

    fn take(&mut self, start: usize) {
        if let Some((_, attributes)) = self.map.remove(&start) {
            self.unsettled -= usize::from(attributes.is_unsettled());
        }
    }

    /// Whether the keeper has to do something about any.
    pub fn any_unsettled(&self) -> bool {
        self.unsettled > 0
    }

    /// The range that holds `address`.
    pub fn find(&self, address: usize) -> Option<Range> {
        let (&start, &(end, attributes)) = self.map.range(..=address).next_back()?;
        (address < end).then_some(Range {
            start,
            end,
            attributes,
        })
    }

    /// Whether any part of `start..end` is managed.
    pub fn overlaps(&self, start: usize, end: usize) -> bool {
        self.map
            .range(..end)
            .next_back()
            .is_some_and(|(_, &(e, _))| e > start)
    }

    /// The parts of `start..end` that are copies of files, and their shadows.
    pub fn shadows(&self, start: usize, end: usize) -> impl Iterator<Item = (Range, Shadow)> {
        let shadow = |range: Range| Some((range, range.attributes.shadow?));
        self.within(start, end).filter_map(shadow)
    }

    /// Whether any part of `start..end` is a copy of a file.
    pub fn has_copies(&self, start: usize, end: usize) -> bool {
        self.shadows(start, end).next().is_some()
    }

    /// The ranges that overlap `start..end`, cut to it.
    pub fn within(&self, start: usize, end: usize) -> impl Iterator<Item = Range> {
        let first = self
            .map
            .range(..=start)
            .next_back()
            .filter(|(_, v)| v.0 > start)
            .map_or(start, |(k, _)| *k);
        self.map
            .range(first..end.max(first))
            .map(move |(&s, &(e, attributes))| Range {
                start: s.max(start),
                end: e.min(end),
                attributes,
            })
            .filter(|range| range.start < range.end)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.map.len()
    }

    /// Every range, in order.
    pub fn all(&self) -> impl Iterator<Item = Range> {
        self.map.iter().map(|(&start, &(end, attributes))| Range {
            start,
            end,
            attributes,
        })
    }

    /// Adds or replaces `start..end`.
    pub fn insert(&mut self, start: usize, end: usize, attributes: Attributes) {
        debug_assert!(start < end);
        self.remove(start, end);
        let (mut from, mut to) = (start, end);
        if let Some((&s, &(e, a))) = self.map.range(..start).next_back()
            && e == start
            && a == attributes
        {
            self.take(s);
            from = s;
        }
        if let Some(&(e, a)) = self.map.get(&end)
            && a == attributes
        {
            self.take(end);
            to = e;
        }
        self.put(from, to, attributes);
    }

    /// Takes `start..end` out, splitting what reaches over.
    pub fn remove(&mut self, start: usize, end: usize) {
        while let Some((&s, &(e, a))) = self.map.range(..end).next_back() {
            if e <= start {
                break;
            }
            self.take(s);
            if e > end {
                self.put(end, e, a);
            }
            if s < start {
                self.put(s, start, a);
                break;
            }
        }
    }

    /// Changes the attributes of what is managed in `start..end`.
    pub fn change(&mut self, start: usize, end: usize, f: impl Fn(&mut Attributes)) {
        let mut at = start;
        // A change may join a range with one that reaches beyond `end`.
        while at < end
            && let Some(range) = self.next(at, end)
        {
            let mut attributes = range.attributes;
            f(&mut attributes);
            if attributes != range.attributes {
                self.insert(range.start, range.end, attributes);
            }
            at = range.end;
        }
    }

    /// Ranges are whole pages, do not overlap, and neighbours that are alike are one. Those that are unsettled are counted.
    pub fn check(&self) {
        let mut before: Option<Range> = None;
        for range in self.all() {
            assert!(range.start < range.end);
            assert!((range.start | range.end).is_multiple_of(ebb_engine::PAGE_SIZE));
            if let Some(before) = before.replace(range) {
                assert!(before.end <= range.start, "{before:?} {range:?}");
                let alike = before.end == range.start && before.attributes == range.attributes;
                assert!(!alike, "{before:?} {range:?} are one");
            }
        }
        let unsettled = self.all().filter(|range| range.attributes.is_unsettled());
        assert_eq!(unsettled.count(), self.unsettled);
    }

    /// Where the first part of `at..end` ends that is one range or is not managed at all; and which.
    pub fn part(&self, at: usize, end: usize) -> (usize, bool) {
        match self.next(at, end) {
            Some(range) if range.start == at => (range.end, true),
            Some(range) => (range.start, false),
            None => (end, false),
        }
    }

    /// The first part of a range behind `at` whose attributes are such.
    pub fn next_where(&self, at: usize, f: impl Fn(Attributes) -> bool) -> Option<Range> {
        self.within(at, usize::MAX)
            .find(|range| f(range.attributes))
    }

    /// The first part of a range in `at..end`.
    pub fn next(&self, at: usize, end: usize) -> Option<Range> {
        self.within(at, end).next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_engine::PAGE_SIZE;
    use proptest::prelude::*;

    /// Writable memory is moved out or stays: a copy would lose a write meanwhile.
    #[test]
    fn writable_memory_is_never_copied_out() {
        const SEMAPHORES: i32 = 8;
        let with = |protection| Attributes {
            registered: true,
            ..Attributes::mapped(protection)
        };
        for protection in 0..16 {
            let copied = with(protection).way_out() == Some(WayOut::Copy);
            assert_eq!(copied, protection & libc::PROT_WRITE == 0, "{protection}");
        }
        let plain = with(libc::PROT_READ | libc::PROT_WRITE | SEMAPHORES);
        assert!(plain.movable());
        let pinned = Attributes {
            pinned: Pinned {
                keyed: true,
                ..Pinned::default()
            },
            ..plain
        };
        assert_eq!(pinned.way_out(), None);
    }

    #[derive(Clone, Debug)]
    enum Op {
        Insert(usize, usize, i32),
        Remove(usize, usize),
        Protect(usize, usize, i32),
    }

    fn op() -> impl Strategy<Value = Op> {
        let span = (0usize..60, 1usize..12);
        prop_oneof![
            (span.clone(), 0i32..3).prop_map(|((s, l), p)| Op::Insert(s, s + l, p)),
            span.clone().prop_map(|(s, l)| Op::Remove(s, s + l)),
            (span, 0i32..3).prop_map(|((s, l), p)| Op::Protect(s, s + l, p)),
        ]
    }

    proptest! {
        #[test]
        fn behaves_like_an_array_of_pages(ops in prop::collection::vec(op(), 1..60)) {
            let mut ranges = Ranges::new();
            let mut model = [None; 80];
            for op in ops {
                match op {
                    Op::Insert(s, e, protection) => {
                        ranges.insert(s * PAGE_SIZE, e * PAGE_SIZE, Attributes::mapped(protection));
                        model[s..e].fill(Some(protection));
                    }
                    Op::Remove(s, e) => {
                        ranges.remove(s * PAGE_SIZE, e * PAGE_SIZE);
                        model[s..e].fill(None);
                    }
                    Op::Protect(s, e, p) => {
                        ranges.change(s * PAGE_SIZE, e * PAGE_SIZE, |a| a.protection = p);
                        model[s..e].iter_mut().flatten().for_each(|x| *x = p);
                    }
                }
                for (i, m) in model.iter().enumerate() {
                    prop_assert_eq!(ranges.find(i * PAGE_SIZE).map(|r| r.attributes.protection), *m);
                }
                let bytes: usize = ranges.all().map(|r| r.end - r.start).sum();
                prop_assert_eq!(bytes, model.iter().flatten().count() * PAGE_SIZE);
                ranges.check();
                let all: Vec<_> = ranges.all().collect();
                for w in all.windows(2) {
                    prop_assert!(w[0].end < w[1].start || w[0].attributes != w[1].attributes);
                    prop_assert!(w[0].end <= w[1].start);
                }
                let cut: Vec<usize> = ranges.within(20 * PAGE_SIZE, 40 * PAGE_SIZE)
                    .flat_map(|r| r.start / PAGE_SIZE..r.end / PAGE_SIZE).collect();
                let expected: Vec<usize> = (20..40).filter(|i| model[*i].is_some()).collect();
                prop_assert_eq!(cut, expected);
            }
        }
    }
}
