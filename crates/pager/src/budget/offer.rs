//! What this process offers its peers: the age of its pages in the pool, and whether it has had anything to give.
//!
//! ```text
//! pool_oldest_ms is none    =>  nothing of the pool may go to a device for others
//! had_none_since is some    =>  it was asked then, and gave nothing since
//! price >= 1
//! ```
//! Not here: the age of resident pages (`reclaim_queue`), telling the tree (`keeper`).

use crate::budget::age_samples::AgeSamples;
use ebb_sys::paging::Time;
use std::time::Duration;

/// Time for which a process that had no memory to give is not asked before others: relatives that have the same pages
/// all have them for old.
const HAD_NONE: Duration = Duration::from_millis(500);

/// See the module.
pub struct Offer {
    /// The time when pages came into the pool.
    age_samples: AgeSamples,
    /// The time when the oldest came of those that others could have the room of, in the keeper's milliseconds.
    pool_oldest_ms: Option<u32>,
    /// The factor by which memory of them is dearer than that of resident pages (`peer_reclaim`).
    price: u64,
    /// The time when others asked for memory, and there was none to give.
    had_none_since: Option<Time>,
}

impl Offer {
    /// Nothing in the pool, and nobody has asked.
    pub const fn new() -> Self {
        Self {
            age_samples: AgeSamples::new(),
            pool_oldest_ms: None,
            price: 1,
            had_none_since: None,
        }
    }

    /// So many clusters of pages have come into the pool by now; the number of the oldest that may go to a device,
    /// if any may.
    pub fn date_pool(&mut self, came: u64, oldest: Option<u64>, now_ms: u32) {
        self.age_samples.record(came, now_ms);
        self.pool_oldest_ms = oldest.map(|n| self.age_samples.date_of(n, now_ms));
    }

    /// When the oldest page in the pool came that may go to a device.
    pub fn pool_oldest_ms(&self) -> Option<u32> {
        self.pool_oldest_ms
    }

    /// The same, for others: none of a process that just had nothing to give, so that it is not asked at once again.
    pub fn offered_pool_oldest_ms(&self) -> Option<u32> {
        self.pool_oldest_ms
            .filter(|_| self.had_none_since.is_none())
    }

    /// The price of memory from the pool has been learned.
    pub fn set_price(&mut self, price: u64) {
        self.price = price;
    }

    /// The price of memory from the pool, in resident pages.
    pub fn price(&self) -> u64 {
        self.price
    }

    /// It was asked, and gave something or nothing.
    pub fn asked(&mut self, gave: bool, now: Time) {
        self.had_none_since = (!gave).then_some(now);
    }

    /// In a forked child, whose clock may be another one's (`unshare`).
    pub fn reset_in_child(&mut self) {
        self.had_none_since = None;
    }

    /// Whether it may be asked: it has not had nothing lately.
    pub fn may_be_asked(&mut self, now: Time) -> bool {
        if self
            .had_none_since
            .is_some_and(|since| now.saturating_sub(since) <= HAD_NONE)
        {
            return false;
        }
        self.had_none_since = None;
        true
    }

    /// The equations of the head comment.
    pub fn check(&self) {
        assert!(self.price >= 1);
        self.age_samples.check();
    }
}
