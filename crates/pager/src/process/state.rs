//! The pager's knowledge of the program's memory. Plain data: the lock is that of the base (`base`).

use crate::budget::charge::Charge;
use crate::budget::offer::Offer;
use crate::budget::peer_reclaim::PeerReclaim;
use crate::budget::pool_split::PoolSplit;
use crate::map::access_pattern::{AccessPattern, Window};
use crate::map::holders::Holders;
use crate::map::page_map::{Page, PageNumber};
use crate::map::ranges::Ranges;
use crate::map::strides::Strides;
use crate::process::parked::Parked;
use crate::process::shared_pages::{Protection, SharedPages};
use crate::reclaim::pages::Pages;
use ebb_engine::PAGE_SIZE;
use ebb_engine::swap::Swap;

/// Everything about this process's memory, in parts. The parts are visible, so that two can be borrowed at once;
/// what is in them is not, and changes by their own methods alone.
pub struct State {
    /// The managed ranges.
    pub ranges: Ranges,
    /// The threads and mutexes that need memory to stay.
    pub holders: Holders,
    /// The pages of the ranges: where each is, and when it leaves.
    pub pages: Pages,
    /// The learned access pattern.
    pub pattern: AccessPattern,
    /// Walks with a stride among faults that devices answer.
    pub strides: Strides,
    /// The pool's share of the budget.
    pub pool_split: PoolSplit,
    /// Charges against the tree's budget.
    pub charge: Charge,
    /// The offer to peers that ask for memory.
    pub offer: Offer,
    /// Requests to peers for memory that lies idle.
    pub peer_reclaim: PeerReclaim,
    /// Flag: pages are shared with forked relatives.
    pub protection: Protection,
    /// Faults on pages in transit.
    pub parked: Parked,
    /// Pages that the tables take, as last counted.
    tables: i64,
}

impl State {
    /// Nothing is known.
    pub const fn new() -> Self {
        Self {
            ranges: Ranges::new(),
            holders: Holders::new(),
            pages: Pages::new(),
            pattern: AccessPattern::new(),
            strides: Strides::new(),
            pool_split: PoolSplit::new(),
            charge: Charge::new(),
            offer: Offer::new(),
            peer_reclaim: PeerReclaim::new(),
            protection: Protection::new(),
            parked: Parked::new(),
            tables: 0,
        }
    }

    /// Pages of memory in use, the engine's included; see `Context::used`.
    pub fn used(&self, swap: &Swap) -> i64 {
        let pool = swap.pool_bytes().div_ceil(PAGE_SIZE as u64);
        self.pages.in_memory() as i64 + pool as i64 + self.tables
    }

    /// Whether pages can be moved to where `page` is.
    pub fn movable(&self, page: PageNumber) -> bool {
        self.ranges
            .find(page.address())
            .is_some_and(|r| r.attributes.movable())
    }

    /// The window that the pattern of faults gives for `page`.
    pub fn window(&mut self, page: PageNumber) -> Window {
        let Self { pages, pattern, .. } = self;
        pattern.window(page, |p| matches!(pages.map().get(p), Page::Resident(_)))
    }

    /// Counts the tables of pager and engine again: too slow for every fault, and they grow slowly.
    pub fn count_tables(&mut self, swap: &Swap) {
        let bytes = swap.memory().bookkeeping_bytes as usize + self.pages.bytes();
        self.tables = bytes.div_ceil(PAGE_SIZE) as i64;
    }

    /// Whether missing pages there are faults: not, between a call that moves memory and its registration.
    pub fn is_registered(&self, page: PageNumber) -> bool {
        let range = self.ranges.find(page.address());
        range.is_some_and(|range| range.attributes.registered)
    }

    /// Whether the page lies in memory that is still to be registered.
    pub fn is_to_be_registered(&self, page: PageNumber) -> bool {
        let range = self.ranges.find(page.address());
        range.is_some_and(|range| !range.attributes.registered)
    }

    /// The invariants of every part, and of parts together.
    pub fn check(&self, shared: &SharedPages) {
        self.ranges.check();
        self.holders.check();
        self.pages.check(&self.ranges);
        self.pattern.check();
        self.strides.check();
        self.pool_split.check();
        self.charge.check();
        self.offer.check();
        self.peer_reclaim.check();
        self.protection.check(shared);
        self.parked.check(self.pages.map());
        assert!(self.tables >= 0);
    }
}
