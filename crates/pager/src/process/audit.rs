//! The last look at a process's memory, for tests (`EBB_CHECK`): is every page as the page map says?
//!
//! The helper has the program's memory for a moment longer than the program. In that moment nobody changes it any
//! more, so page map and `/proc/self/pagemap` can be compared page by page. A page that the map has for resident
//! must be there, and one that it has for untouched, staged or swapped must not. Differences count in
//! `map_disagrees`, as those do that reclaim and faults come across.
//!
//! What it does not do: look at pages in transit, which a service thread may be moving, or at a process that was
//! killed inside a memory call, whose lock nobody gives back.

use crate::map::page_map::{Page, PageNumber};
use crate::process::context::Context;
use crate::process::state::State;
use ebb_sys::paging::Kernel;
use std::ops::ControlFlow::Continue;
use std::time::Duration;

/// For how long the lock is waited for: service threads hold it for less.
const PATIENCE: Duration = Duration::from_millis(100);
/// Pages that are looked at at once.
const AT_ONCE: usize = 64;

impl<K: Kernel> Context<K> {
    /// Compares, after the program has let its memory go; tells of what differs.
    pub fn audit(&self) {
        let begin = self.now();
        let state = loop {
            match self.base.try_lock_service() {
                Some(state) => break state,
                None if self.now() - begin > PATIENCE => return,
                None => self.kernel.sleep(Duration::from_millis(1)),
            }
        };
        let mut found = Differences::default();
        self.look_for_present(&state, &mut found);
        self.look_for_absent(&state, &mut found);
        drop(state);
        self.counters().map_disagrees.add(found.count);
        if let Some((page, said)) = found.first {
            self.member.message(&format!(
                "{} pages are not as the page map says, the first at {:#x}: {said:?}",
                found.count,
                page.address()
            ));
        }
    }

    /// Pages that are there and should not be.
    fn look_for_present(&self, state: &State, found: &mut Differences) {
        for range in state.ranges.all().filter(|r| r.attributes.registered) {
            // What cannot be scanned was unmapped without libc.
            let _ = self.kernel.scan(range.start, range.end, |start, end| {
                for page in (PageNumber::of(start).0..PageNumber::of(end).0).map(PageNumber) {
                    let said = state.pages.map().get(page);
                    // A mark of poison is found as a page is.
                    let gone = said.is_mapped() == Some(false) && said != Page::Poisoned;
                    found.add(gone, page, said);
                }
            });
        }
    }

    /// Pages that should be there and are not.
    fn look_for_absent(&self, state: &State, found: &mut Differences) {
        for range in state.ranges.all().filter(|r| r.attributes.registered) {
            let (first, end) = (PageNumber::of(range.start), PageNumber::of(range.end));
            let (mut base, mut there) = (end, Default::default());
            state.pages.map().each(first, end, |page, said| {
                if base > page || base.plus(AT_ONCE) <= page {
                    base = page;
                    there = self.look(page.address(), AT_ONCE.min(end.0 - page.0));
                }
                let absent = there.present >> (page.0 - base.0) & 1 == 0;
                found.add(absent && said.is_mapped() == Some(true), page, said);
                Continue(())
            });
        }
    }
}

/// Pages that are not as the page map says.
#[derive(Default)]
struct Differences {
    count: u64,
    /// One of them, and what the map says of it.
    first: Option<(PageNumber, Page)>,
}

impl Differences {
    fn add(&mut self, differs: bool, page: PageNumber, said: Page) {
        if differs {
            self.count += 1;
            self.first.get_or_insert((page, said));
        }
    }
}
