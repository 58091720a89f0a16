//! Mappings and pages of one process, and the threads that wait for a page.

use crate::PAGE;
use crate::by_page::ByPage;
use crate::frames::Frame;
use ebb_sys::memory::page_up;
use ebb_sys::userfaultfd::Fault;
use std::collections::{BTreeSet, VecDeque};

/// A forked child's part of a mapping: all of it, if neither is set.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct InChild {
    /// Flag: nothing (MADV_DONTFORK).
    pub absent: bool,
    /// Flag: zeros (MADV_WIPEONFORK).
    pub wiped: bool,
}

impl InChild {
    /// Follows advice of madvise(2), where it is about forks.
    pub fn follow(&mut self, advice: i32) {
        match advice {
            libc::MADV_DONTFORK => self.absent = true,
            libc::MADV_DOFORK => self.absent = false,
            libc::MADV_WIPEONFORK => self.wiped = true,
            libc::MADV_KEEPONFORK => self.wiped = false,
            _ => {}
        }
    }
}

/// A page's mapping. Neighbours whose mappings are equal are one mapping to the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Pages of one call have one number.
    pub number: u32,
    /// The protection, as mprotect(2) has it.
    pub prot: i32,
    /// Flag: missing pages are faults.
    pub registered: bool,
    /// Flag: with a descriptor of the program's own.
    pub programs: bool,
    /// Flag: the memory is the pager's own, with host memory behind.
    pub own: bool,
    /// Flag: pages are locked.
    pub locked: bool,
    /// Flag: they are, and the kernel fills none.
    pub on_fault: bool,
    /// Flag: accesses are in no order (MADV_RANDOM), which keeps it apart from others.
    pub random: bool,
    /// The part that a child has of it.
    pub in_child: InChild,
}

/// See the module.
#[derive(Clone)]
pub struct PageTables {
    /// The pages by address, one a page.
    pub mappings: ByPage<Mapping>,
    /// Pages that are there.
    pub pages: ByPage<Frame>,
    /// Pages that are fatal to touch.
    pub poisoned: BTreeSet<usize>,
    /// The end of the heap.
    pub heap_end: usize,
    /// Faults that nobody has read.
    pub faults: VecDeque<Fault>,
    /// Faults read or not, whose threads wait.
    pub waiting: Vec<Fault>,
    /// Transfers into pages that last long.
    pub long_pins: u64,
    /// Flag: no memory becomes code (PR_SET_MDWE).
    pub refuses_code: bool,
    numbers: u32,
    /// Addresses that hold nothing and are taken first: start and end.
    hole: (usize, usize),
    /// Addresses that memory was unmapped from lately: start and end.
    freed: VecDeque<(usize, usize)>,
    next: usize,
    next_own: usize,
}

const FIRST: usize = 0x1000_0000_0000;
/// Freed areas that are remembered.
const FREED: usize = 16;
const HEAP: usize = 0x2000_0000_0000;
/// Where ThreadSanitizer lets memory be, too.
const OWN: usize = 0x0100_0000_0000;

/// The addresses of the pages of an area.
pub fn pages_of(start: usize, len: usize) -> impl Iterator<Item = usize> {
    (start..start + page_up(len)).step_by(PAGE)
}

impl Default for PageTables {
    fn default() -> Self {
        Self {
            mappings: ByPage::new(),
            pages: ByPage::new(),
            poisoned: BTreeSet::new(),
            heap_end: HEAP,
            faults: VecDeque::new(),
            waiting: Vec::new(),
            long_pins: 0,
            refuses_code: false,
            numbers: 0,
            hole: (0, 0),
            freed: VecDeque::new(),
            next: FIRST,
            next_own: OWN,
        }
    }
}

impl PageTables {
    /// Nothing, of a process that was so many other programs before. Memory of the pagers of those may be there yet.
    pub fn of_image(image: u8) -> Self {
        Self {
            next_own: OWN + (usize::from(image) << 40),
            ..Self::default()
        }
    }

    /// Maps memory, in the place of what is there.
    pub fn map(&mut self, start: usize, len: usize, prot: i32, own: bool) {
        self.numbers += 1;
        let mapping = Mapping {
            number: self.numbers,
            prot,
            registered: false,
            programs: false,
            own,
            locked: false,
            on_fault: false,
            random: false,
            in_child: InChild::default(),
        };
        for at in pages_of(start, len) {
            self.mappings.insert(at, mapping);
        }
    }

    /// Unmaps memory. Threads that wait there go on waiting, and the faults stay to be read: the kernel wakes nobody
    /// whose page goes (Linux 6.18, `userfaultfd_unmap_prep` without its event).
    pub fn unmap(&mut self, start: usize, len: usize) {
        for at in pages_of(start, len) {
            self.mappings.remove(at);
            self.pages.remove(at);
            self.poisoned.remove(&at);
        }
    }

    /// The same, and the addresses may be given out again.
    pub fn free(&mut self, start: usize, len: usize) {
        self.unmap(start, len);
        self.freed.truncate(FREED - 1);
        self.freed.push_front((start, start + page_up(len)));
    }

    /// Unmaps memory, whose addresses are taken next.
    pub fn open_hole(&mut self, start: usize, len: usize) {
        self.hole = (start, start + len);
        self.unmap(start, len);
    }

    /// Takes the hole, if it begins at an address or that is any, and is large enough.
    fn take_hole(&mut self, at: Option<usize>, len: usize) -> Option<usize> {
        let (start, end) = self.hole;
        let fits = start < end && start + page_up(len) <= end && at.is_none_or(|at| at == start);
        fits.then(|| std::mem::take(&mut self.hole).0)
    }

    /// Extends the mapping that ends at `end` into the hole there, if there is one.
    pub fn fills_hole(&mut self, end: usize, len: usize) -> bool {
        let fits = self.take_hole(Some(end), len).is_some();
        if fits {
            let mapping = self.mappings[end - PAGE];
            for at in pages_of(end, len) {
                self.mappings.insert(at, mapping);
            }
        }
        fits
    }

    /// Addresses that hold nothing: `again`, those that were freed last, if there are enough.
    pub fn fresh(&mut self, len: usize, again: bool) -> usize {
        if let Some(start) = self.take_hole(None, len) {
            return start;
        }
        if let Some(start) = again.then(|| self.freed_again(len)).flatten() {
            return start;
        }
        let start = self.next;
        self.next += page_up(len) + 16 * PAGE;
        start
    }

    fn freed_again(&mut self, len: usize) -> Option<usize> {
        let fits = |&(start, end): &(usize, usize)| start + page_up(len) <= end;
        let all = &self.freed;
        let index = (0..all.len()).find(|i| fits(&all[*i]) && self.mapped(all[*i].0, len) == 0)?;
        self.freed.remove(index).map(|(start, _)| start)
    }

    /// The same for memory of the pager's own.
    pub fn fresh_own(&mut self, len: usize) -> usize {
        let start = self.next_own;
        self.next_own += page_up(len) + 16 * PAGE;
        start
    }

    /// Threads that waited for these pages, and do so no more.
    #[must_use]
    pub fn wake(&mut self, start: usize, len: usize) -> Vec<u32> {
        let inside = |f: &Fault| (start..start + len).contains(&f.address);
        if !self.waiting.iter().any(inside) {
            return Vec::new();
        }
        self.faults.retain(|f| !inside(f));
        let woken = self.waiting.extract_if(.., |f| inside(f));
        woken.map(|f| f.thread).collect()
    }

    /// A page is there from now on, in the place of a mark of poison, too.
    pub fn put(&mut self, at: usize, frame: Frame) {
        self.poisoned.remove(&at);
        if self.mappings[at].own {
            // SAFETY: host memory of this kernel's own, mapped for good.
            unsafe { (at as *mut u8).copy_from_nonoverlapping(frame.bytes().as_ptr(), PAGE) };
        }
        self.pages.insert(at, frame);
    }

    /// Whether an area is one mapping to the kernel, and mapped.
    pub fn is_whole(&self, start: usize, len: usize) -> bool {
        let first = self.mappings.get(start);
        let mut all = self.mappings.range(start..start + page_up(len));
        first.is_some()
            && self.mapped(start, len) == page_up(len) / PAGE
            && all.all(|(_, mapping)| Some(mapping) == first)
    }

    /// Whether a call about an area alone splits a mapping.
    pub fn splits(&self, start: usize, len: usize) -> bool {
        let inside = |at: usize| {
            let before = at.checked_sub(PAGE).and_then(|at| self.mappings.get(at));
            before.is_some() && before == self.mappings.get(at)
        };
        inside(start) || start.checked_add(page_up(len)).is_some_and(inside)
    }

    /// The number of pages of an area that are mapped.
    pub fn mapped(&self, start: usize, len: usize) -> usize {
        self.mappings.range(start..start + page_up(len)).count()
    }

    /// What an area holds is somewhere else from now on.
    pub fn move_pages(&mut self, old: usize, to: usize, len: usize) {
        for done in (0..len).step_by(PAGE) {
            if self.poisoned.remove(&(old + done)) {
                self.poisoned.insert(to + done);
            }
            if let Some(mut page) = self.pages.remove(old + done) {
                page.protected = false;
                self.pages.insert(to + done, page);
            }
        }
    }

    /// Memory came to a place where it is one mapping with what lies beside it and is alike. Its registration is taken
    /// away, and with it that of its neighbours (Linux 6.18, `move_vma`).
    pub fn merge_moved(&mut self, start: usize, len: usize) {
        let came = self.mappings[start];
        let (number, registered) = (came.number, came.registered);
        let alike = |m: &Mapping| {
            let as_it = Mapping {
                number,
                registered,
                ..*m
            };
            m.registered && as_it == came
        };
        let (mut first, mut end) = (start, start + page_up(len));
        while self.mappings.get(first - PAGE).is_some_and(alike) {
            first -= PAGE;
        }
        while self.mappings.get(end).is_some_and(alike) {
            end += PAGE;
        }
        self.change(first, end - first, |m| m.registered = false);
    }

    /// Whether each page of an area is mapped, and so.
    pub fn all(&self, start: usize, len: usize, like: impl Fn(&Mapping) -> bool) -> bool {
        let unlike = self.first(start, len, |mapping| !like(mapping));
        self.mapped(start, len) == page_up(len) / PAGE && unlike.is_none()
    }

    /// The first page of an area that is mapped so.
    pub fn first(&self, start: usize, len: usize, so: impl Fn(&Mapping) -> bool) -> Option<usize> {
        let mut all = self.mappings.range(start..start + page_up(len));
        all.find(|(_, mapping)| so(mapping)).map(|(at, _)| at)
    }

    /// Changes the mappings of an area.
    pub fn change(&mut self, start: usize, len: usize, f: impl Fn(&mut Mapping)) {
        let all = self.mappings.range_mut(start..start + page_up(len));
        all.for_each(|(_, mapping)| f(mapping));
    }

    /// Memory of the pager's own: start, bytes, and the part that a child has of it.
    pub fn own_memory(&self) -> Vec<(usize, usize, InChild)> {
        let own = self.mappings.iter().filter(|(_, mapping)| mapping.own);
        let mut all: Vec<(usize, usize, InChild)> = Vec::new();
        for (at, mapping) in own {
            match all.last_mut() {
                Some(last) if last.0 + last.1 == at && last.2 == mapping.in_child => last.1 += PAGE,
                _ => all.push((at, PAGE, mapping.in_child)),
            }
        }
        all
    }

    /// The page tables of a forked child, whose frames are shared with these from now on.
    pub fn child(&mut self) -> Self {
        self.pages.iter_mut().for_each(|(_, page)| page.share());
        let mut child = self.clone();
        child.become_child();
        child
    }

    /// In a copy: no thread waits, nothing is registered or locked, and what children do not have is gone.
    pub fn become_child(&mut self) {
        self.faults.clear();
        self.waiting.clear();
        self.long_pins = 0;
        self.mappings.retain(|_, m| !m.in_child.absent);
        for (_, mapping) in self.mappings.iter_mut() {
            (mapping.registered, mapping.locked) = (false, false);
        }
        let mappings = &self.mappings;
        let kept = |at: usize| {
            let mapping = mappings.get(at);
            mapping.is_some_and(|m| !m.in_child.wiped)
        };
        self.pages.retain(|at, _| kept(at));
        self.poisoned.retain(|at| kept(*at));
        for (_, frame) in self.pages.iter_mut() {
            frame.protected = false;
            if std::mem::take(&mut frame.pins) > 0 {
                // The kernel copies a pinned page at the fork.
                frame.own();
            }
        }
    }
}
