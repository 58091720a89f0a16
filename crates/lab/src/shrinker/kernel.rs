//! A model of the kernel's zswap, page by page, with its swap file behind: what 6.10 does, and what
//! the patches change.
//!
//! - Without patch 3 a store that finds the pool at its limit is refused and counted. The stores that
//!   follow are refused, uncounted, until the pool is down at its threshold. With it, only those at the
//!   limit are, and shrinking starts one percent above the threshold.
//! - The worker walks the groups in their order and writes one page of each: the one stored first that
//!   is still there. In 6.10 an empty group is a failure, the end of the order another, and an ended
//!   group a third. The walk then begins anew and never reaches later groups. At [`FAILURES`] failures
//!   the worker gives up, until the next refused store. With patches 1 and 2 empty and ended groups are
//!   passed by.
//! - With patch 5 pages that do not compress are kept as they are. With patch 6 nothing is written for
//!   [`STAND_BACK_NS`] after a refused store or a load that missed the pool.
//!
//! Not modelled: patch 4, which changes how the worker waits for memory; readahead.

use super::world::World;
use super::{COMPRESS_NS, COMPRESSED, Counts, DECOMPRESS_NS, PAGE, POOR, Swapping};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// Failures of a walk at which it ends.
const FAILURES: u32 = 16;
const STAND_BACK_NS: u64 = 500_000_000;
/// A look at a group.
const LOOK_NS: u64 = 200;

/// See the module.
pub struct Zswap {
    world: Arc<World>,
    /// The most bytes of the pool; none: no pool, a swap file alone.
    max: Option<u64>,
    /// The number of the six patches that it has.
    patches: u8,
    /// The group of each page.
    pool: HashMap<u64, u16>,
    groups: BTreeMap<u16, Group>,
    bytes: u64,
    reached_full: bool,
    stand_back_until: u64,
    /// The group that the worker looked at last.
    cursor: Option<u16>,
    /// Failures of the walk under way.
    walk: Option<u32>,
    /// Flag: the walk met a group with a page since it last began.
    met: bool,
    counts: Counts,
}

#[derive(Default)]
struct Group {
    /// Pages as they came; some of them left since.
    pages: VecDeque<u64>,
    bytes: u64,
    ended: bool,
}

fn size(page: u64) -> u64 {
    if page & POOR == 0 {
        COMPRESSED as u64
    } else {
        PAGE as u64
    }
}

impl Zswap {
    pub fn new(world: &Arc<World>, max: Option<u64>, patches: u8) -> Self {
        Self {
            world: world.clone(),
            max,
            patches,
            pool: HashMap::new(),
            groups: BTreeMap::new(),
            bytes: 0,
            reached_full: false,
            stand_back_until: 0,
            cursor: None,
            walk: None,
            met: false,
            counts: Counts::default(),
        }
    }

    fn accept(&self) -> u64 {
        self.max.unwrap_or(0) / 2
    }

    fn demand(&mut self) {
        self.stand_back_until = self.world.now() + STAND_BACK_NS;
    }

    /// Whether the pool takes another page; it may ask the worker to make room.
    fn takes(&mut self, max: u64) -> bool {
        if self.bytes >= max {
            self.counts.pool_limit_hit += 1;
            self.reached_full = true;
        } else if self.bytes <= self.accept() || self.patches >= 3 {
            self.reached_full = false;
        }
        let early = self.patches >= 3 && self.bytes >= self.accept() + max / 100;
        if self.reached_full || early {
            self.walk.get_or_insert(0);
        }
        !self.reached_full
    }

    fn keep(&mut self, group: u16, page: u64) -> bool {
        let Some(max) = self.max else { return false };
        if !self.takes(max) {
            return false;
        }
        self.world.spend(COMPRESS_NS);
        if page & POOR != 0 && self.patches < 5 {
            return false;
        }
        self.pool.insert(page, group);
        let group = self.groups.entry(group).or_default();
        group.pages.push_back(page);
        group.bytes += size(page);
        self.bytes += size(page);
        self.counts.zswpout += 1;
        true
    }

    fn take(&mut self, page: u64) -> bool {
        let Some(group) = self.pool.remove(&page) else {
            return false;
        };
        if let Some(group) = self.groups.get_mut(&group) {
            group.bytes -= size(page);
        }
        self.bytes -= size(page);
        true
    }

    /// The oldest page of a group that is in the pool.
    fn oldest(&mut self, group: u16) -> Option<u64> {
        let pages = &mut self.groups.get_mut(&group)?.pages;
        while let Some(page) = pages.pop_front() {
            if self.pool.contains_key(&page) {
                return Some(page);
            }
        }
        None
    }

    /// One group's turn; whether it counts as a failure.
    fn turn(&mut self) -> bool {
        let fixed = self.patches >= 2;
        let after = self.cursor.map_or(0, |group| group + 1);
        self.world.spend(LOOK_NS);
        let Some((&number, group)) = self.groups.range(after..).next() else {
            self.cursor = None;
            return !fixed || !std::mem::take(&mut self.met);
        };
        self.cursor = Some(number);
        if group.ended {
            if !fixed {
                self.cursor = None;
            }
            return !fixed;
        }
        let Some(page) = self.oldest(number) else {
            return !fixed;
        };
        self.met = true;
        self.take(page);
        self.world.spend(DECOMPRESS_NS);
        self.world.write(1);
        self.counts.zswpwb += 1;
        false
    }
}

impl Swapping for Zswap {
    fn store(&mut self, group: u16, pages: &[u64]) {
        for &page in pages {
            if !self.keep(group, page) {
                self.demand();
                self.world.write_behind(1);
            }
        }
    }
    fn load(&mut self, page: u64) {
        if self.take(page) {
            self.world.spend(DECOMPRESS_NS);
            self.counts.zswpin += 1;
        } else {
            self.demand();
            self.world.read();
        }
    }
    fn free(&mut self, page: u64) {
        self.take(page);
    }
    fn begin(&mut self, group: u16) {
        self.groups.entry(group).or_default();
    }
    /// References to an ended group keep it in the order of groups.
    fn end(&mut self, group: u16) {
        if let Some(group) = self.groups.get_mut(&group) {
            group.ended = true;
        }
    }
    fn work(&mut self) -> bool {
        let Some(failures) = self.walk else {
            return false;
        };
        if self.bytes <= self.accept() {
            self.walk = None;
            return false;
        }
        if self.patches >= 6 && self.world.now() < self.stand_back_until {
            return false;
        }
        let failures = failures + u32::from(self.turn());
        self.walk = (failures < FAILURES).then_some(failures);
        true
    }
    fn pool_bytes(&self) -> u64 {
        self.bytes
    }
    fn group_bytes(&self, group: u16) -> u64 {
        self.groups.get(&group).map_or(0, |group| group.bytes)
    }
    fn on_device(&self, page: u64) -> bool {
        !self.pool.contains_key(&page)
    }
    fn counts(&self) -> Counts {
        self.counts
    }
}
