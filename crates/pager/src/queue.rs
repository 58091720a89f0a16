//! The reclaim queue: which unit's turn it is to be evicted.
//!
//! User space sees no accessed bit, so a page that is used gives no sign until it is evicted and
//! comes back. The order is therefore first in, first out by unit, with three corrections:
//!
//! - pages brought into a unit after it was queued are *fresh* and survive its next turn;
//! - a unit whose pages came back within one resident set's worth of evictions (refault distance)
//!   is *active* and is passed by once: it proved that it is used more often than its turn comes;
//! - evicted pages stay in the staging area for a while, not stored yet: a touch there costs a
//!   remap, and makes the unit active too.
//!
//! A unit stands in the queue at most once; `UnitState::queued` says so.

use crate::map::{Mask, PageMap, UnitNumber};
use std::collections::VecDeque;

/// The queue. Its memory is taken ahead of need.
#[derive(Default)]
pub struct Queue {
    units: VecDeque<UnitNumber>,
    /// Counts evicted pages: the eviction clock that refault distances are measured with.
    clock: u32,
    /// The keeper's milliseconds, for units queued from now on.
    pub now_ms: u32,
}

impl Queue {
    /// Empty.
    pub const fn new() -> Self {
        Self {
            units: VecDeque::new(),
            clock: 0,
            now_ms: 0,
        }
    }

    /// Makes room for `units` more, so that `brought` does not allocate.
    pub fn reserve(&mut self, units: usize) {
        self.units.reserve(units);
    }

    /// Pages `mask` of `unit` are resident now.
    pub fn brought(&mut self, map: &mut PageMap, unit: UnitNumber, mask: Mask) {
        let state = map.unit_mut(unit);
        if state.queued {
            state.fresh |= mask;
        } else {
            state.queued = true;
            state.fresh = 0;
            state.queued_ms = self.now_ms;
            self.units.push_back(unit);
        }
    }

    /// Pages of `unit` were swapped out and came back: whether that was soon, given how many
    /// pages are resident. If so the unit becomes active.
    pub fn refaulted(&mut self, map: &mut PageMap, unit: UnitNumber) -> bool {
        let resident = map.resident() as u32;
        let state = map.unit_mut(unit);
        let soon = state.evicted_at != 0 && self.clock.wrapping_sub(state.evicted_at) <= resident;
        state.active |= soon;
        soon
    }

    /// The unit whose turn it is, and which of its resident pages to evict. It is out of the
    /// queue; give it back with `requeue` if pages of it stay. Looks at no more than `limit` units.
    pub fn next(
        &mut self,
        map: &mut PageMap,
        limit: usize,
        resident: impl Fn(&PageMap, UnitNumber) -> Mask,
    ) -> Option<(UnitNumber, Mask)> {
        for _ in 0..limit.min(self.units.len()) {
            let unit = self.units.pop_front()?;
            let present = resident(map, unit);
            let state = map.unit_mut(unit);
            if present == 0 {
                state.queued = false;
                continue;
            }
            let victims = present & !state.fresh;
            state.fresh = 0;
            if victims == 0 || std::mem::take(&mut state.active) {
                self.units.push_back(unit);
                continue;
            }
            state.queued = false;
            return Some((unit, victims));
        }
        None
    }

    /// Pages of `unit` were evicted.
    pub fn evicted(&mut self, map: &mut PageMap, unit: UnitNumber, pages: u32) {
        self.clock = self.clock.wrapping_add(pages);
        map.unit_mut(unit).evicted_at = self.clock.max(1);
    }

    /// Puts a unit back at the end.
    pub fn requeue(&mut self, map: &mut PageMap, unit: UnitNumber) {
        if !std::mem::replace(&mut map.unit_mut(unit).queued, true) {
            self.units.push_back(unit);
        }
    }

    /// When the unit at the front was queued: what it holds was not seen to be used since.
    pub fn oldest_ms(&self, map: &PageMap) -> Option<u32> {
        self.units.front().map(|u| map.unit(*u).queued_ms)
    }

    /// Bytes of its memory.
    pub fn bytes(&self) -> usize {
        self.units.capacity() * size_of::<UnitNumber>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::{Page, UNIT};

    fn resident(map: &PageMap, unit: UnitNumber) -> Mask {
        map.mask(unit, |p| matches!(p, Page::Resident(_)))
    }

    #[test]
    fn first_in_first_out_but_fresh_and_active_stay_once() {
        let (mut map, mut q) = (PageMap::new(), Queue::new());
        for u in 0..3u32 {
            for i in 0..UNIT {
                map.set(UnitNumber(u).first().plus(i), Page::Resident(None));
            }
            q.brought(&mut map, UnitNumber(u), 0b11);
        }
        q.brought(&mut map, UnitNumber(0), 0b100);
        map.unit_mut(UnitNumber(1)).active = true;
        let all: Mask = (1 << UNIT) - 1;
        assert_eq!(
            q.next(&mut map, 8, resident),
            Some((UnitNumber(0), all & !0b100))
        );
        q.requeue(&mut map, UnitNumber(0));
        assert_eq!(q.next(&mut map, 8, resident), Some((UnitNumber(2), all)));
        assert_eq!(q.next(&mut map, 8, resident), Some((UnitNumber(0), all)));
        assert_eq!(q.next(&mut map, 8, resident), Some((UnitNumber(1), all)));
        assert_eq!(q.next(&mut map, 8, resident), None);
    }

    #[test]
    fn a_refault_within_the_resident_set_makes_a_unit_active() {
        let (mut map, mut q) = (PageMap::new(), Queue::new());
        for i in 0..10 {
            map.set(UnitNumber(7).first().plus(i), Page::Resident(None));
        }
        q.evicted(&mut map, UnitNumber(1), 4);
        q.evicted(&mut map, UnitNumber(2), 10);
        assert!(q.refaulted(&mut map, UnitNumber(1)));
        q.evicted(&mut map, UnitNumber(3), 1);
        assert!(
            !q.refaulted(&mut map, UnitNumber(1)),
            "eleven evictions ago, ten resident"
        );
        assert!(!q.refaulted(&mut map, UnitNumber(99)), "never evicted");
    }
}
