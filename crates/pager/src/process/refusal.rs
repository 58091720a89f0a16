//! For tests (`EBB_FAULTS`): the system refuses pages.

use ebb_stores::Faults;
use ebb_sys::paging::Time;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// For tests (`EBB_FAULTS`): the system refuses pages.
pub struct Refusal {
    faults: Faults,
    /// The number of times that it was asked.
    asked: AtomicU64,
    /// The moment since which it has none at all.
    since: OnceLock<Time>,
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

    /// Whether the page that is asked for now is refused, after so many served faults.
    pub fn strikes(&self, served: u64, now: Time) -> bool {
        let none =
            |(after, lasts)| served >= after && now - *self.since.get_or_init(|| now) < lasts;
        self.faults.no_page(self.asked.fetch_add(1, Relaxed))
            || self.faults.no_page_after.is_some_and(none)
    }
}
