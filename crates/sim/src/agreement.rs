//! Whether the page map says what the kernel has: each page of registered memory, from outside the pager.
//!
//! A call changes one first and then the other, so a page may differ for a moment. One that differs for long, and is the same
//! all the time, is forgotten: memory that leaks, or content that will be lost. What this does not see: memory that was
//! mapped without the pager, which is not registered, and pages in transit.

use crate::memory::each;
use crate::scheduler::world;
use crate::threads::SimThreads;
use ebb_memory_kernel::{MemoryKernel, PAGE};
use ebb_pager::simulation::{Page, Simulated};
use std::cell::Cell;

/// Nanoseconds for which a page may differ. A thread stands still for less in the midst of a call.
const MOMENT: u64 = 5_000_000_000;

/// A page that differs.
#[derive(Clone, Copy)]
struct Difference {
    at: usize,
    /// The state that the page map has it in.
    said: Page,
    /// The moment at which it was first seen to differ.
    since: u64,
}

/// Pages that are looked at again.
const FOLLOWED: usize = 4;

thread_local! {
    static DIFFERENT: Cell<[Option<Difference>; FOLLOWED]> = const { Cell::new([None; FOLLOWED]) };
}

/// Another pager is looked at from now on.
pub fn forget() {
    DIFFERENT.set([None; FOLLOWED]);
}

/// Looks at all pages of a process, unless a thread of its pager is at work on them.
pub fn check(pager: &'static Simulated<MemoryKernel<SimThreads>>) {
    let seen = |start: usize, end: usize| {
        pager.kernel().tables(|tables| {
            let registered = |at: &usize| tables.mappings.get(*at).is_some_and(|m| m.registered);
            let all = each((start, (end - start) / PAGE)).filter(registered);
            let there = |at| (at, tables.pages.get(at).map(|page| page.protected));
            all.map(there).collect::<Vec<_>>()
        })
    };
    let Some(differences) = pager.differences(FOLLOWED, seen) else {
        return;
    };
    let (now, before) = (world().now.get(), DIFFERENT.get());
    let mut after = [None; FOLLOWED];
    for (place, (at, said)) in after.iter_mut().zip(differences) {
        let known = before
            .iter()
            .flatten()
            .find(|d| (d.at, d.said) == (at, said));
        let since = known.map_or(now, |known| known.since);
        *place = Some(Difference { at, said, since });
        if since + MOMENT < now {
            let is = pager.kernel().is_present(at);
            world().fail(&format!(
                "{at:#x} is {} for the kernel, and {said:?} in the page map, for long",
                if is { "there" } else { "not there" }
            ));
        }
    }
    DIFFERENT.set(after);
}
