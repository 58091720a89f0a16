//! The older allocators, written anew after their description, as baselines.
//!
//! - `free-only`: large folios are cut from whole clusters alone, each order from its current cluster or
//!   the list of empty ones; single slots also from anywhere. The kernel's test of mTHP calls it
//!   "Without".
//! - `legacy`: empty clusters, then clusters of the same order with free slots, then those
//!   scanned in vain before, then (single slots) clusters of other orders. The test calls it "With".
//!
//! One processor, no locks: they are compared by what they find, and what finding costs.

use ebb_engine::{CLUSTER_SLOTS, ORDERS};

/// Slots for folios of one device.
pub trait SlotAllocator {
    /// A whole aligned place for a folio of 2^order pages.
    fn allocate(&mut self, order: u8) -> Option<u32>;
    /// Gives back slots that lie within one cluster.
    fn free(&mut self, start: u32, pages: u32);
    /// The worker's part: frees of returned slots that it would have done by now.
    fn settle(&mut self) {}
    /// Free slots.
    fn free_slots(&self) -> u32;
}

const NIL: u32 = u32::MAX;

const FREE: usize = 0;
const FULL: usize = 1;
const NONFULL: usize = 2;
const FRAG: usize = NONFULL + ORDERS;
const LISTS: usize = FRAG + ORDERS;

struct Cluster {
    count: u16,
    order: u8,
    list: usize,
    prev: u32,
    next: u32,
}

/// The common part of both baselines: a byte for each slot, and clusters on lists.
struct Map {
    used: Vec<bool>,
    clusters: Vec<Cluster>,
    first: [u32; LISTS],
    last: [u32; LISTS],
    len: [u32; LISTS],
    free: u32,
    /// The place to look next, for each order.
    next: [Option<u32>; ORDERS],
}

impl Map {
    /// Slot 0 is the device's header and never free.
    fn new(slots: u32) -> Self {
        let clusters = slots / CLUSTER_SLOTS as u32;
        let mut map = Self {
            used: vec![false; slots as usize],
            clusters: Vec::new(),
            first: [NIL; LISTS],
            last: [NIL; LISTS],
            len: [0; LISTS],
            free: slots,
            next: [None; ORDERS],
        };
        for c in 0..clusters {
            map.clusters.push(Cluster {
                count: 0,
                order: 0,
                list: FREE,
                prev: NIL,
                next: NIL,
            });
            map.append(c, FREE);
        }
        map.take(0, 1, 0);
        map
    }

    fn append(&mut self, c: u32, list: usize) {
        let last = self.last[list];
        let cluster = &mut self.clusters[c as usize];
        (cluster.list, cluster.prev, cluster.next) = (list, last, NIL);
        if last == NIL {
            self.first[list] = c;
        } else {
            self.clusters[last as usize].next = c;
        }
        self.last[list] = c;
        self.len[list] += 1;
    }

    fn shift(&mut self, c: u32, list: usize) {
        let Cluster {
            prev,
            next,
            list: from,
            ..
        } = self.clusters[c as usize];
        match prev {
            NIL => self.first[from] = next,
            p => self.clusters[p as usize].next = next,
        }
        match next {
            NIL => self.last[from] = prev,
            n => self.clusters[n as usize].prev = prev,
        }
        self.len[from] -= 1;
        self.append(c, list);
    }

    fn take(&mut self, start: u32, pages: u32, order: u8) {
        self.used[start as usize..(start + pages) as usize].fill(true);
        self.free -= pages;
        let c = start / CLUSTER_SLOTS as u32;
        let cluster = &mut self.clusters[c as usize];
        if cluster.count == 0 {
            cluster.order = order;
        }
        cluster.count += pages as u16;
        let order = usize::from(cluster.order);
        if usize::from(cluster.count) == CLUSTER_SLOTS {
            self.shift(c, FULL);
        } else if cluster.list == FREE {
            self.shift(c, NONFULL + order);
        }
    }

    /// Looks for a window from `at` to the end of its cluster, takes it, and notes where to
    /// go on.
    fn scan(&mut self, at: u32, order: u8) -> Option<u32> {
        let size = 1 << order;
        let end = (at / CLUSTER_SLOTS as u32 + 1) * CLUSTER_SLOTS as u32;
        let mut found = None;
        for start in (at..end).step_by(size as usize) {
            if !self.used[start as usize..(start + size) as usize].contains(&true) {
                found = Some(start);
                break;
            }
        }
        self.next[usize::from(order)] = None;
        let start = found?;
        self.take(start, size, order);
        let c = &self.clusters[(start / CLUSTER_SLOTS as u32) as usize];
        if usize::from(c.count) < CLUSTER_SLOTS && start + size < end {
            self.next[usize::from(order)] = Some(start + size);
        }
        Some(start)
    }

    fn scan_cluster(&mut self, c: u32, order: u8) -> Option<u32> {
        self.scan(c * CLUSTER_SLOTS as u32, order)
    }

    fn give_back(&mut self, start: u32, pages: u32) {
        for slot in &mut self.used[start as usize..(start + pages) as usize] {
            assert!(*slot, "a slot is freed twice");
            *slot = false;
        }
        self.free += pages;
        let c = start / CLUSTER_SLOTS as u32;
        let cluster = &mut self.clusters[c as usize];
        cluster.count -= pages as u16;
        let nonfull = NONFULL + usize::from(cluster.order);
        if cluster.count == 0 {
            self.shift(c, FREE);
        } else if cluster.list != nonfull {
            self.shift(c, nonfull);
        }
    }
}

/// Whole clusters for large folios.
pub struct FreeOnly {
    map: Map,
    /// The place where the search for any free slot goes on.
    hand: u32,
}

impl FreeOnly {
    /// An empty device; slot 0 is lost to its header.
    #[must_use]
    pub fn new(slots: u32) -> Self {
        Self {
            map: Map::new(slots),
            hand: 0,
        }
    }
}

impl SlotAllocator for FreeOnly {
    fn allocate(&mut self, order: u8) -> Option<u32> {
        if let Some(at) = self.map.next[usize::from(order)]
            && let Some(found) = self.map.scan(at, order)
        {
            return Some(found);
        }
        let c = self.map.first[FREE];
        if c != NIL {
            return self.map.scan_cluster(c, order);
        }
        if order > 0 || self.map.free == 0 {
            return None;
        }
        let slots = self.map.used.len() as u32;
        let found = (0..slots)
            .map(|i| (self.hand + i) % slots)
            .find(|s| !self.map.used[*s as usize])?;
        self.hand = (found + 1) % slots;
        self.map.take(found, 1, 0);
        Some(found)
    }
    fn free(&mut self, start: u32, pages: u32) {
        self.map.give_back(start, pages);
    }
    fn free_slots(&self) -> u32 {
        self.map.free
    }
}

/// Lists of clusters by order and by what scanning them found.
pub struct Legacy {
    map: Map,
}

impl Legacy {
    /// An empty device; slot 0 is lost to its header.
    #[must_use]
    pub fn new(slots: u32) -> Self {
        Self {
            map: Map::new(slots),
        }
    }
}

impl SlotAllocator for Legacy {
    fn allocate(&mut self, order: u8) -> Option<u32> {
        let map = &mut self.map;
        let o = usize::from(order);
        if let Some(at) = map.next[o]
            && let Some(found) = map.scan(at, order)
        {
            return Some(found);
        }
        if map.first[FREE] != NIL {
            return map.scan_cluster(map.first[FREE], order);
        }
        if o + 1 < ORDERS {
            let mut scanned = 0;
            while map.first[NONFULL + o] != NIL {
                let c = map.first[NONFULL + o];
                map.shift(c, FRAG + o);
                scanned += 1;
                if let Some(found) = map.scan_cluster(c, order) {
                    return Some(found);
                }
            }
            while scanned < map.len[FRAG + o] {
                let c = map.first[FRAG + o];
                map.shift(c, FRAG + o);
                scanned += 1;
                if let Some(found) = map.scan_cluster(c, order) {
                    return Some(found);
                }
            }
        }
        if order > 0 {
            return None;
        }
        for o in 1..ORDERS {
            for list in [FRAG + o, NONFULL + o] {
                if map.first[list] != NIL {
                    return map.scan_cluster(map.first[list], 0);
                }
            }
        }
        None
    }
    fn free(&mut self, start: u32, pages: u32) {
        self.map.give_back(start, pages);
    }
    fn free_slots(&self) -> u32 {
        self.map.free
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_engine::random::Random;

    fn exercise(baseline: &mut dyn SlotAllocator, slots: u32) {
        let mut random = Random::new(7);
        let mut held: Vec<(u32, u32)> = Vec::new();
        let mut used = vec![false; slots as usize];
        used[0] = true;
        for _ in 0..20_000 {
            if random.below(2) == 0 {
                let order = [0, 0, 2, 4, 9][random.below(5)];
                if let Some(start) = baseline.allocate(order) {
                    assert_eq!(start % (1 << order), 0);
                    for slot in &mut used[start as usize..start as usize + (1 << order)] {
                        assert!(!std::mem::replace(slot, true));
                    }
                    held.push((start, 1 << order));
                } else if order == 0 {
                    assert!(!used.contains(&false), "a slot was free");
                }
            } else if !held.is_empty() {
                let (start, pages) = held.swap_remove(random.below(held.len()));
                used[start as usize..(start + pages) as usize].fill(false);
                baseline.free(start, pages);
            }
            assert_eq!(
                baseline.free_slots() as usize,
                used.iter().filter(|u| !**u).count()
            );
        }
    }

    #[test]
    fn no_slot_is_given_twice_and_the_last_is_found() {
        exercise(&mut FreeOnly::new(2048), 2048);
        exercise(&mut Legacy::new(2048), 2048);
    }
}
