//! Faults on pages in transit, which the thread that ends the transit serves.

use crate::map::page_map::{Page, PageMap, PageNumber};
use crate::process::worker::Worker;
use ebb_sys::userfaultfd::Fault;

/// Each parked fault is on a page in transit: whoever ends a transit takes all.
pub struct Parked {
    faults: Vec<Fault>,
}

impl Parked {
    /// None.
    pub const fn new() -> Self {
        Self { faults: Vec::new() }
    }

    /// A fault whose page is in transit.
    pub fn park(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// A transit ended: all are this thread's to serve. Those whose page is still in transit are parked again.
    pub fn unpark(&mut self, worker: &mut Worker) {
        worker.unpark(&mut self.faults);
    }

    /// In a forked child: they are of the parent's threads.
    pub fn reset_in_child(&mut self) {
        self.faults.clear();
    }

    /// The pages are in transit.
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
