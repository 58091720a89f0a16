//! The pager's knowledge of the program's memory. Plain data: the lock is the pager's (`pager`).

use crate::budget::age_samples::AgeSamples;
use crate::budget::charge::Charge;
use crate::budget::peer_reclaim::PeerReclaim;
use crate::budget::pool_split::PoolSplit;
use crate::map::access_pattern::AccessPattern;
use crate::map::access_pattern::Window;
use crate::map::page_map::{Page, PageMap, PageNumber};
use crate::map::ranges::Ranges;
use crate::process::shared_pages::Sharing;
use crate::reclaim::attempts::Attempts;
use crate::reclaim::reclaim_queue::ReclaimQueue;
use crate::reclaim::staging::Staging;
use ebb_engine::swap::Swap;
use ebb_engine::{Cpu, EntryId};
use ebb_sys::paging::Time;
use ebb_sys::userfaultfd::Fault;
use std::ops::ControlFlow::{Break, Continue};

/// Everything about this process's memory.
pub struct State {
    /// The managed ranges.
    pub ranges: Ranges,
    /// The state of their pages.
    pub map: PageMap,
    /// The order of eviction.
    pub queue: ReclaimQueue,
    /// Pages that threads were brought, which are theirs for a while.
    pub attempts: Attempts,
    /// Staging frames, once the process pages.
    pub staging: Option<Staging>,
    /// Learned access pattern.
    pub pattern: AccessPattern,
    /// The pool's share of the budget.
    pub pool_split: PoolSplit,
    /// When pages came into the pool.
    pub age_samples: AgeSamples,
    /// When the oldest did of those that others could have the room of, in the keeper's milliseconds.
    pub pool_oldest_ms: Option<u32>,
    /// How much dearer it is to have memory of them than of resident pages (`peer_reclaim`).
    pub pool_price: u64,
    /// Charges against the tree's budget.
    pub charge: Charge,
    /// When others asked for memory, and there was none to give.
    pub had_none_since: Option<Time>,
    /// When to ask others for memory that lies idle.
    pub peer_reclaim: PeerReclaim,
    /// Whether pages are shared with forked relatives.
    pub sharing: Sharing,
    /// How often protection was lifted from memory at large (`clean`).
    pub lifted: u32,
    /// Units that may be evicted although relatives share pages of them; see `sharing`.
    pub copy_units: u32,
    /// Faults on pages in transit, to be served when that ends.
    pub parked: Vec<Fault>,
    /// Pages that the tables take, as last counted.
    pub tables: i64,
}

impl State {
    /// Nothing is known.
    pub const fn new() -> Self {
        Self {
            ranges: Ranges::new(),
            map: PageMap::new(),
            queue: ReclaimQueue::new(),
            attempts: Attempts::new(),
            staging: None,
            pattern: AccessPattern::new(),
            pool_split: PoolSplit::new(),
            age_samples: AgeSamples::new(),
            pool_oldest_ms: None,
            pool_price: 1,
            charge: Charge::new(),
            had_none_since: None,
            peer_reclaim: PeerReclaim::new(),
            sharing: Sharing::Alone,
            lifted: 0,
            copy_units: 0,
            parked: Vec::new(),
            tables: 0,
        }
    }
}

/// Frees entries, neighbours in one call.
#[derive(Default)]
pub struct Freeing {
    first: Option<EntryId>,
    count: u32,
}

impl Freeing {
    /// One more entry to free.
    pub fn add(&mut self, swap: &Swap, cpu: Cpu, entry: EntryId) {
        match self.first {
            Some(first) if first.plus(self.count) == entry => self.count += 1,
            _ => {
                self.finish(swap, cpu);
                (self.first, self.count) = (Some(entry), 1);
            }
        }
    }

    /// Frees what was gathered.
    pub fn finish(&mut self, swap: &Swap, cpu: Cpu) {
        if let Some(first) = self.first.take() {
            swap.free(cpu, first, self.count);
        }
        self.count = 0;
    }
}

impl State {
    /// Forgets the content of every page in `start..end`: they read as zeros when next touched.
    /// None of them is in transit. Does not touch the memory itself.
    pub fn forget_pages(&mut self, swap: Option<&Swap>, cpu: Cpu, start: usize, end: usize) {
        const SOME: usize = 256;
        let (mut at, end) = (PageNumber::of(start), PageNumber::of(end));
        let mut freeing = Freeing::default();
        loop {
            let (mut batch, mut n) = ([(PageNumber(0), Page::Untouched); SOME], 0);
            self.map.each(at, end, |number, page| {
                batch[n] = (number, page);
                n += 1;
                if n == SOME { Break(()) } else { Continue(()) }
            });
            for &(number, page) in &batch[..n] {
                if matches!(page, Page::Staged(_) | Page::Swapped(_)) {
                    self.queue.no_longer_out(&self.map, number, 1);
                }
                let entry = match page {
                    Page::Resident(kept) => kept,
                    Page::Staged(frame) => {
                        let staging = self
                            .staging
                            .as_mut()
                            .expect("staged pages have a staging area");
                        staging.stored(frame);
                        None
                    }
                    Page::Swapped(entry) => Some(entry),
                    Page::Untouched | Page::Poisoned => None,
                    Page::Loading(_) | Page::Storing(_) => {
                        unreachable!("forgot a page in transit")
                    }
                };
                self.map.set(number, Page::Untouched);
                if let (Some(entry), Some(swap)) = (entry, swap) {
                    freeing.add(swap, cpu, entry);
                }
            }
            if n < SOME {
                break;
            }
            at = batch[n - 1].0.plus(1);
        }
        if let Some(swap) = swap {
            freeing.finish(swap, cpu);
        }
    }

    /// Pages of memory in use, the engine's included; see `Context::used`.
    pub fn used(&self, swap: &Swap) -> i64 {
        let pool = swap.pool_bytes().div_ceil(ebb_engine::PAGE_SIZE as u64);
        let frames = self
            .staging
            .as_ref()
            .map_or(0, |staging| staging.unused_frames());
        (self.map.in_memory() + frames) as i64 + pool as i64 + self.tables
    }

    /// Whether pages can be moved to where `page` is.
    pub fn movable(&self, page: PageNumber) -> bool {
        self.ranges
            .find(page.address())
            .is_some_and(|r| r.attributes.movable())
    }

    /// Counts the tables of pager and engine again: too slow for every fault, and they grow slowly.
    pub fn count_tables(&mut self, swap: &Swap) {
        let bytes = swap.memory().bookkeeping_bytes as usize
            + self.map.bytes()
            + self.queue.bytes()
            + self.attempts.bytes()
            + self.staging.as_ref().map_or(0, Staging::bytes);
        self.tables = bytes.div_ceil(ebb_engine::PAGE_SIZE) as i64;
    }

    /// The pager's invariants.
    pub fn check(&self) {
        let staging = self.staging.as_ref();
        if let Some(staging) = staging {
            staging.check();
        }
        let (mut staged, mut storing) = (0, 0);
        self.map
            .each(PageNumber(0), PageNumber(1 << 35), |number, page| {
                assert!(
                    self.ranges.find(number.address()).is_some(),
                    "{number:?} is {page:?} outside every range"
                );
                match page {
                    Page::Staged(frame) | Page::Storing(frame) => {
                        assert_eq!(staging.expect("a staging area").page_of(frame), number);
                        staged += 1;
                        storing += usize::from(matches!(page, Page::Storing(_)));
                    }
                    _ => {}
                }
                Continue(())
            });
        // Pages that are just being captured are in no frame yet.
        let frames = staging.map_or(0, Staging::staged_frames);
        assert!((staged - storing..=staged).contains(&frames));
    }
}

/// The window that the pattern of faults gives for `page`.
pub fn window(state: &mut State, page: PageNumber) -> Window {
    let State { map, pattern, .. } = state;
    pattern.window(page, |p| matches!(map.get(p), Page::Resident(_)))
}
