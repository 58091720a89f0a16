//! The memory of a program as it should be: [`MemoryModel`]. Each mapped page has its content and its protection, and the
//! thread that has claimed it for a call or a transfer.

use crate::chance::Stream;
use crate::content::Content;
use ebb_memory_kernel::PAGE;
use ebb_memory_kernel::by_page::ByPage;
use ebb_memory_kernel::page_tables::InChild;

/// The content that may come to a page by the call of the thread that has claimed it, beside zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Comes {
    /// Nothing: the content stays, or is dropped.
    Nothing,
    /// The content that another page had.
    This(Content),
    /// The page goes, and the next memory may be mapped there.
    Any,
}

/// A page as it should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expected {
    /// The content.
    pub content: Content,
    /// The protection.
    pub prot: i32,
    /// Flag: it is locked.
    pub locked: bool,
    /// The thread that has claimed it; 0: none.
    pub claimed: u32,
    /// The content that its call may bring there.
    pub comes: Comes,
    /// The part that a forked child has of it.
    pub in_child: InChild,
    /// Flag: the pager was not told that it was mapped.
    pub behind: bool,
}

/// Plain memory.
pub const PLAIN: i32 = libc::PROT_READ | libc::PROT_WRITE;

impl Expected {
    /// A new page.
    pub const NEW: Self = Self {
        content: Content::Zero,
        prot: PLAIN,
        locked: false,
        claimed: 0,
        comes: Comes::Nothing,
        in_child: InChild {
            absent: false,
            wiped: false,
        },
        behind: false,
    };

    /// Whether it may hold this while a thread has claimed it.
    pub fn meanwhile(&self, bytes: &[u8; PAGE]) -> bool {
        let comes = match self.comes {
            Comes::Nothing => false,
            Comes::This(content) => content.is(bytes),
            Comes::Any => true,
        };
        comes || self.content.is(bytes) || Content::Zero.is(bytes)
    }
}

/// See the module.
#[derive(Default)]
pub struct MemoryModel {
    pages: ByPage<Expected>,
    /// The places of pages, about, for whoever looks for one.
    areas: Vec<(usize, usize)>,
}

/// Pages in a row: where, and how many.
pub type Run = (usize, usize);

/// The addresses of a run.
pub fn each((start, pages): Run) -> impl Iterator<Item = usize> {
    (0..pages).map(move |i| start + i * PAGE)
}

impl MemoryModel {
    /// Nothing is mapped.
    pub const fn new() -> Self {
        Self {
            pages: ByPage::new(),
            areas: Vec::new(),
        }
    }

    /// The page at an address.
    pub fn get(&self, at: usize) -> Option<Expected> {
        self.pages.get(at).copied()
    }

    /// Changes a page that there is.
    pub fn change(&mut self, at: usize, f: impl FnOnce(&mut Expected)) {
        if let Some(page) = self.pages.get_mut(at) {
            f(page);
        }
    }

    /// The same of each page of a run.
    pub fn change_all(&mut self, run: Run, f: impl Fn(&mut Expected)) {
        each(run).for_each(|at| self.change(at, &f));
    }

    /// New pages.
    pub fn add(&mut self, run: Run, page: Expected) {
        each(run).for_each(|at| {
            self.pages.insert(at, page);
        });
        self.areas.push(run);
    }

    /// Pages that a thread has claimed are gone. Others of the run are somebody's who got the addresses since.
    pub fn remove(&mut self, run: Run, thread: u32) {
        for at in each(run) {
            if self.get(at).is_some_and(|page| page.claimed == thread) {
                self.pages.remove(at);
            }
        }
        self.forget_areas();
    }

    fn forget_areas(&mut self) {
        let pages = &self.pages;
        let there =
            |(start, count): &Run| pages.range(*start..start + count * PAGE).next().is_some();
        self.areas.retain(there);
    }

    /// How many pages there are.
    pub fn count(&self) -> usize {
        self.pages.len()
    }

    /// An address with a page.
    pub fn any(&self, stream: &mut Stream) -> Option<usize> {
        for _ in 0..8 {
            let &(start, pages) = self.areas.get(stream.below(self.areas.len()))?;
            let at = start + stream.below(pages) * PAGE;
            if self.pages.contains(at) {
                return Some(at);
            }
        }
        None
    }

    /// A run of unclaimed pages that are alike, of at most so many.
    pub fn run(&self, stream: &mut Stream, most: usize) -> Option<Run> {
        self.run_from(self.any(stream)?, stream, most)
    }

    /// One that begins there.
    pub fn run_from(&self, start: usize, stream: &mut Stream, most: usize) -> Option<Run> {
        let first = self.pages[start];
        if first.claimed != 0 {
            return None;
        }
        let most = 1 + stream.below(most);
        let kind = |p: &Expected| (p.prot, p.locked, p.behind, p.claimed);
        let alike = |at: &usize| {
            let page = self.pages.get(*at);
            page.is_some_and(|page| kind(page) == kind(&first))
        };
        let pages = each((start, most)).take_while(alike).count();
        Some((start, pages))
    }

    /// A thread claims a run.
    pub fn claim(&mut self, run: Run, thread: u32) {
        self.change_all(run, |page| {
            (page.claimed, page.comes) = (thread, Comes::Nothing);
        });
    }

    /// It lets go what it has claimed of a run.
    pub fn let_go(&mut self, run: Run, thread: u32) {
        self.change_all(run, |page| {
            if page.claimed == thread {
                page.claimed = 0;
            }
        });
    }

    /// In a forked child: nothing is known any more of what others than `thread` have claimed, and nothing is locked. Pages that
    /// were mapped behind the pager may read as what was out there before (decision 0001).
    pub fn become_child(&mut self, thread: u32) {
        for (_, page) in self.pages.iter_mut() {
            page.locked = false;
            if page.in_child.wiped {
                page.content = Content::Zero;
            }
        }
        let is_known = |page: &Expected| {
            [0, thread].contains(&page.claimed) && !page.behind && !page.in_child.absent
        };
        self.pages.retain(|_, page| is_known(page));
        self.forget_areas();
    }

    /// Addresses of all pages.
    pub fn all(&self) -> Vec<usize> {
        self.pages.iter().map(|(at, _)| at).collect()
    }

    /// All pages, in runs.
    pub fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for (at, _) in self.pages.iter() {
            match runs.last_mut() {
                Some((start, pages)) if *start + *pages * PAGE == at => *pages += 1,
                _ => runs.push((at, 1)),
            }
        }
        runs
    }
}
