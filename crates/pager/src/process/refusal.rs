//! For tests (`EBB_FAULTS`): the system refuses pages.

use ebb_stores::Faults;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// For tests (`EBB_FAULTS`): the system refuses pages.
pub struct Refusal {
    faults: Faults,
    /// How often it was asked.
    asked: AtomicU64,
    /// Since when it has none at all.
    since: OnceLock<Instant>,
}

impl Refusal {
    /// If a test asks for it.
    pub fn of(faults: Faults) -> Option<Self> {
        faults.refuse_pages().then(|| Self {
            faults,
            asked: AtomicU64::new(0),
            since: OnceLock::new(),
        })
    }

    pub fn strikes(&self, served: u64) -> bool {
        let none = |(after, lasts)| {
            served >= after && self.since.get_or_init(Instant::now).elapsed() < lasts
        };
        self.faults.no_page(self.asked.fetch_add(1, Relaxed))
            || self.faults.no_page_after.is_some_and(none)
    }
}
