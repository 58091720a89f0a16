//! Faults that wait. Those on pages in transit are served by the thread that ends the transit. Others came from where
//! `mremap` has just put memory, or more of it: they wait until it is registered.

use crate::map::page_map::{Page, PageMap, PageNumber};
use crate::process::worker::Worker;
use ebb_sys::userfaultfd::Fault;

/// Each parked fault is on a page in transit: whoever ends a transit takes all.
pub struct Parked {
    faults: Vec<Fault>,
    /// Faults from before the memory moved there: whoever registers memory takes all.
    early: Vec<Fault>,
}

impl Parked {
    /// None.
    pub const fn new() -> Self {
        Self {
            faults: Vec::new(),
            early: Vec::new(),
        }
    }

    /// A fault whose page is in transit.
    pub fn park(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// A fault on memory that is not registered yet. A page put there now would be refused, and its content lost.
    pub fn park_early(&mut self, fault: Fault) {
        self.early.push(fault);
    }

    /// All memory is registered: these are to come once more.
    pub fn take_early(&mut self) -> Vec<Fault> {
        std::mem::take(&mut self.early)
    }

    /// A transit ended: all are this thread's to serve. Those whose page is still in transit are parked again.
    pub fn unpark(&mut self, worker: &mut Worker) {
        worker.unpark(&mut self.faults);
    }

    /// In a forked child: they are of the parent's threads.
    pub fn reset_in_child(&mut self) {
        self.faults.clear();
        self.early.clear();
    }

    /// The pages of those that wait for a transit are in one.
    pub fn check(&self, map: &PageMap) {
        for fault in &self.faults {
            let page = map.get(PageNumber::of(fault.address));
            assert!(
                matches!(page, Page::Loading(_) | Page::Storing(_)),
                "{page:?}"
            );
        }
    }
}
