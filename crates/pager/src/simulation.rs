//! The interface for a simulation: a pager on a kernel of the caller's, and a look at its state.
//!
//! The preload library's interface is [`hooks`](crate::hooks), on the one static pager. A simulation has a pager for each of its
//! processes, and plays the parts that the supervisor has in the beginning: it makes the member, and gives devices.

use crate::devices::swap_space;
pub use crate::map::page_map::Page;
use crate::map::page_map::PageNumber;
use crate::pager::Pager;
use crate::process::lifecycle::Beginning;
pub use crate::process::lifecycle::Entries;
pub use crate::process::outcome::Outcome;
use ebb_engine::DeviceId;
use ebb_engine::slots::Devices;
use ebb_sys::paging::Kernel;
use ebb_tree::Member;
use std::ffi::CString;
use std::ops::ControlFlow::Continue;

/// The pager of a simulated process.
pub struct Simulated<K: Kernel> {
    pager: Pager<K>,
}

/// What a process holds, in pages where nothing else is said.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    /// Pages that the map knows.
    pub known: usize,
    /// Resident pages.
    pub resident: usize,
    /// Pages in transit.
    pub in_transit: usize,
    /// Frames of the staging area with content.
    pub staged: usize,
    /// Managed ranges.
    pub ranges: usize,
    /// Entries of the swap space.
    pub entries: usize,
    /// Pages in the pool.
    pub pooled: u64,
    /// Bytes of the pool, those that are free among them.
    pub pool_bytes: u64,
    /// Slots of devices that hold something.
    pub slots: u64,
    /// Pages charged.
    pub charged: i64,
    /// Pages in use.
    pub used: i64,
    /// Pages of memory that is not managed.
    pub unmanaged: u64,
}

macro_rules! calls {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        /// See [`hooks`](crate::hooks).
        ///
        /// # Safety
        /// As there.
        pub unsafe fn $name(&'static self, $($argument: $type),*) -> $result {
            // SAFETY: passed on to the caller.
            unsafe { self.pager.$name($($argument),*) }
        }
    )*};
}

impl<K: Kernel> Simulated<K> {
    /// A process that has not begun.
    pub const fn new(kernel: K) -> Self {
        Self {
            pager: Pager::new(kernel),
        }
    }

    /// Its kernel.
    pub fn kernel(&self) -> &K {
        &self.pager.kernel
    }

    /// The process begins, in a tree whose supervisor has this address.
    pub fn begin(&'static self, control: String, entries: Entries) {
        self.pager.lifecycle.begin(Beginning {
            control: CString::new(control).ok(),
            entries,
            standard_error: None,
        });
        self.pager.vfork_calls.begin(&self.pager.kernel);
        self.pager.kernel.begin();
    }

    /// A thread of the program begins to map memory: it starts the keeper.
    pub fn start_first_keeper(&'static self) {
        self.pager.start_first_keeper();
    }

    /// On the helper's first thread: the process pages from the beginning, as the member that `join` makes, on the
    /// devices that `add` adds.
    ///
    /// # Panics
    /// It cannot page.
    pub fn run_keeper(
        &'static self,
        join: impl FnOnce() -> &'static Member,
        add: impl FnOnce(&Devices),
    ) -> ! {
        let pager = &self.pager;
        let member = join();
        let freed = |bytes: &[u8]| pager.before_give_back(bytes);
        let space = swap_space::open(&pager.kernel, member, freed).expect("a swap space");
        add(&space.devices.devices);
        let keeper = pager.adopt(member, space, false).expect("adopted");
        pager.vfork_calls.start(&pager.kernel);
        pager.run(keeper)
    }

    /// On the first thread of a forked child's helper.
    pub fn run_forked_keeper(&'static self) -> ! {
        self.pager.run_keeper()
    }

    /// On the service thread of this index.
    pub fn run_service(&'static self, index: usize) -> ! {
        self.pager.run_service(index)
    }

    /// Whether the process pages.
    pub fn pages(&self) -> bool {
        self.pager.pages()
    }

    /// A fork is near. False: it is to fail.
    pub fn make_ready(&'static self) -> bool {
        self.pager.make_ready()
    }

    calls! {
        before_fork() -> bool;
        after_fork_parent(child: Option<i32>) -> ();
        after_fork_child() -> ();
        mmap(addr: usize, len: usize, prot: i32, flags: i32, fd: i32, offset: i64) -> Outcome<usize>;
        munmap(addr: usize, len: usize) -> Outcome<()>;
        mremap(old: usize, old_len: usize, new_len: usize, flags: i32, new_addr: usize) -> Outcome<usize>;
        mprotect(addr: usize, len: usize, prot: i32) -> Outcome<()>;
        madvise(addr: usize, len: usize, advice: i32) -> Outcome<()>;
        mlock(addr: usize, len: usize, flags: i32) -> Outcome<()>;
        munlock(addr: usize, len: usize) -> Outcome<()>;
    }

    /// All invariants of the state, unless another thread has it. Whether they were looked at.
    pub fn check(&'static self) -> bool {
        let (Some(process), Some(state)) = (self.pager.process(), self.pager.try_lock_service())
        else {
            return false;
        };
        process.check(&state);
        true
    }

    /// Pages that are not to the kernel as the page map says, at most so many; none, if another thread has the state. `seen` are
    /// the pages of registered memory in an area: the address, and for one that is there whether it is protected.
    pub fn differences(
        &'static self,
        most: usize,
        seen: impl Fn(usize, usize) -> Vec<(usize, Option<bool>)>,
    ) -> Option<Vec<(usize, Page)>> {
        let state = self.pager.try_lock_service()?;
        let agrees = |said: Page, there: Option<bool>| {
            // A clean copy is good until the page is written.
            let written = matches!(said, Page::Resident(Some(_))) && there == Some(false);
            let mapped = said.is_mapped();
            mapped.is_none_or(|mapped| mapped == there.is_some()) && !written
        };
        let registered = state
            .ranges
            .all()
            .filter(|range| range.attributes.registered);
        let pages = registered.flat_map(|range| seen(range.start, range.end));
        let said = |at| state.pages.map().get(PageNumber::of(at));
        let different = pages.filter(|&(at, there)| !agrees(said(at), there));
        Some(different.take(most).map(|(at, _)| (at, said(at))).collect())
    }

    /// The invariant of parked faults alone, unless another thread has the state. It takes little, and is to be looked
    /// at often: the next end of a transit takes over faults that one left behind.
    pub fn check_parked(&'static self) {
        if let Some(state) = self.pager.try_lock_service() {
            state.parked.check(state.pages.map());
        }
    }

    /// What the process holds.
    pub fn held(&'static self) -> Held {
        let Some(process) = self.pager.process() else {
            return Held::default();
        };
        let state = self.pager.lock_service();
        let map = state.pages.map();
        let mut known = 0;
        for range in state.ranges.all() {
            let page = PageNumber::of;
            map.each(page(range.start), page(range.end), |_, _| {
                known += 1;
                Continue(())
            });
        }
        let usage = process.swap_space.devices.devices.usage();
        Held {
            known,
            resident: map.resident(),
            in_transit: map.in_transit(),
            staged: state.pages.staged_frames(),
            ranges: state.ranges.count(),
            entries: process.swap.entries(),
            pooled: process.swap.memory().pool_pages,
            pool_bytes: process.swap.pool_bytes(),
            slots: usage.iter().map(|u| u64::from(u.used - u.bad)).sum(),
            charged: state.charge.charged(),
            used: process.used(&state),
            unmanaged: state.charge.unmanaged(),
        }
    }

    /// The device that was added as this one is to leave from now on, or is to stay after all.
    pub fn leave_device(&self, index: usize, leaves: bool) {
        if let Some(process) = self.pager.process() {
            let devices = &process.swap_space.devices;
            devices.leave_unlisted(DeviceId(index as u8), leaves);
        }
    }

    /// Devices in use.
    pub fn devices(&self) -> usize {
        let process = self.pager.process();
        process.map_or(0, |p| p.swap_space.devices.devices.usage().len())
    }

    /// Page faults that were served.
    pub fn served(&self) -> u64 {
        self.pager.process().map_or(0, |p| p.services.served())
    }

    /// Pages that memory and page map disagreed about so far.
    pub fn disagreements(&self) -> u64 {
        let process = self.pager.process();
        process.map_or(0, |p| p.counters().map_disagrees.get())
    }

    /// Pages that were lost so far, each with a message.
    pub fn poisoned(&self) -> u64 {
        self.pager
            .process()
            .map_or(0, |p| p.counters().poisoned.get())
    }
}
