//! The reclaim queue: which unit's turn it is to be evicted, and which of its pages stay.
//!
//! User space sees no accessed bit: a page that is used gives no sign until it is evicted and
//! comes back. The order is therefore first in, first out by unit, corrected by what refaults
//! teach about single pages:
//!
//! - **Time** is counted in *epochs*: one passes when an eighth of the resident set was evicted.
//! - A page that comes back within one resident set's worth of evictions (refault distance, as the
//!   kernel's workingset code has it) would have been a hit with twice the memory: its *heat* rises.
//!   If it came back later, its heat is halved.
//! - A page that comes back hot *stays* for `span(heat)` epochs, whatever its turn; each level
//!   doubles it. When the time is up the page is evicted again, as a *probe*: the only way to
//!   learn whether it is still used. A page in steady use thus costs a fault every hundred epochs,
//!   and one that is not leaves at the next probe.
//! - Pages brought in since their unit was queued are *fresh* and survive its next turn.
//! - Evicted pages stay in the staging area for a while, not stored yet: a touch there costs a
//!   remap, and counts as a refault.
//!
//! So a working set that is touched at random survives the streams that run past it. Pages that
//! came in beside the one that was touched get no heat by that.
//!
//! What the balance between resident pages and pool needs (`balance`) is a page's *rank*: how many
//! of the pages that are out were evicted after it. With so many frames more it would have been
//! resident. Its age says something else: a few pages that come and go make all others old.
//!
//! A unit stands in the queue at most once; `UnitState::queued` says so.
//!
//! Sources: Babaoglu and Joy, *Converting a Swap-Based System to do Paging in an Architecture
//! Lacking Page-Referenced Bits* (1981), for reclaim without accessed bits; Jiang and Zhang,
//! *LIRS* (2002), for reuse distance as the measure of worth.

use crate::map::{Mask, PageMap, PageNumber, UNIT, UnitNumber, UnitState};
use std::collections::VecDeque;

/// Epochs in which as much is evicted as is resident.
pub const RESIDENT_SET: u8 = 8;
/// Comes back within this: touched all the time, heat rises twice as fast.
const AT_ONCE: u8 = 2;
const MAX_HEAT: u64 = 5;

/// Epochs that a page of `heat` stays. At most 120: epochs are compared modulo 256.
const fn span(heat: u64) -> u8 {
    match heat {
        0 => 0,
        MAX_HEAT.. => 120,
        h => 4 << h,
    }
}

/// The queue. Its memory is taken ahead of need.
pub struct Queue {
    units: VecDeque<UnitNumber>,
    epoch: u8,
    /// Pages that are out, by the epoch of their eviction. Those of 256 epochs ago are not told
    /// from those of now, and counted no more: so it is a good guess.
    out: [u32; 256],
    /// Pages evicted in this epoch.
    evicted: usize,
    /// The keeper's milliseconds, for units queued from now on.
    pub now_ms: u32,
}

impl UnitState {
    /// Which pages' time to stay is up.
    fn due(&self, epoch: u8) -> Mask {
        (0..UNIT).fold(0, |mask, i| {
            mask | Mask::from(self.epochs[i].wrapping_sub(epoch) as i8 <= 0) << i
        })
    }

    /// Notes `epoch` for the pages of `mask`.
    fn stamp(&mut self, mask: Mask, epoch: u8) {
        for (i, noted) in self.epochs.iter_mut().enumerate() {
            if mask & 1 << i != 0 {
                *noted = epoch;
            }
        }
    }

    /// Page `within` came back `age` epochs after it was evicted.
    fn warm(&mut self, within: usize, age: u8, epoch: u8) {
        let at = within * 4;
        let heat = self.heat >> at & 15;
        let heat = if age <= AT_ONCE {
            (heat + 2).min(MAX_HEAT)
        } else if age <= RESIDENT_SET {
            (heat + 1).min(MAX_HEAT)
        } else {
            heat / 2
        };
        self.heat = self.heat & !(15 << at) | heat << at;
        self.epochs[within] = epoch.wrapping_add(if age <= RESIDENT_SET { span(heat) } else { 0 });
    }
}

impl Queue {
    /// Empty.
    pub const fn new() -> Self {
        Self {
            units: VecDeque::new(),
            epoch: 0,
            out: [0; 256],
            evicted: 0,
            now_ms: 0,
        }
    }

    /// Makes room for `units` more, so that `brought` does not allocate.
    pub fn reserve(&mut self, units: usize) {
        self.units.reserve(units);
    }

    /// Pages `mask` of `unit` are resident now. `refaulted` comes after this for the page that
    /// was touched.
    pub fn brought(&mut self, map: &mut PageMap, unit: UnitNumber, mask: Mask) {
        let (epoch, now) = (self.epoch, self.now_ms);
        let state = map.unit_mut(unit);
        state.stamp(mask, epoch);
        if state.queued {
            state.fresh |= mask as u16;
        } else {
            state.queued = true;
            state.fresh = 0;
            state.queued_ms = now;
            self.units.push_back(unit);
        }
    }

    /// How many epochs ago a page that is out was evicted.
    pub fn age(&self, map: &PageMap, page: PageNumber) -> u8 {
        self.epoch
            .wrapping_sub(map.unit(page.unit()).epochs[page.within()])
    }

    /// How many pages that are out were evicted after `page`, which is out too; by halves of an
    /// epoch.
    pub fn rank(&self, map: &PageMap, page: PageNumber) -> usize {
        let age = self.age(map, page);
        let own = self.epoch.wrapping_sub(age);
        let later: u32 = (0..age)
            .map(|k| self.out[usize::from(self.epoch.wrapping_sub(k))])
            .sum();
        (later + self.out[usize::from(own)] / 2) as usize
    }

    /// `pages` pages from `first`, all out, come back or are dropped.
    pub fn leaves(&mut self, map: &PageMap, first: PageNumber, pages: usize) {
        for page in (0..pages).map(|i| first.plus(i)) {
            let evicted = map.unit(page.unit()).epochs[page.within()];
            let out = &mut self.out[usize::from(evicted)];
            *out = out.saturating_sub(1);
        }
    }

    /// `page` was touched, and came back `age` epochs after its eviction. True: it would not have
    /// been missed with twice the memory.
    pub fn refaulted(&mut self, map: &mut PageMap, page: PageNumber, age: u8) -> bool {
        map.unit_mut(page.unit())
            .warm(page.within(), age, self.epoch);
        age <= RESIDENT_SET
    }

    /// The unit whose turn it is, and which of its resident pages to evict. It is out of the
    /// queue; give it back with `requeue` if pages of it stay. Looks at no more than `limit` units;
    /// if all their pages shall stay, takes the next ones and lets time pass faster.
    pub fn next(
        &mut self,
        map: &mut PageMap,
        limit: usize,
        resident: impl Fn(&PageMap, UnitNumber) -> Mask,
    ) -> Option<(UnitNumber, Mask)> {
        let limit = limit.min(self.units.len());
        for look in 0.. {
            let unit = self.units.pop_front()?;
            let present = resident(map, unit);
            let state = map.unit_mut(unit);
            if present == 0 {
                state.queued = false;
                continue;
            }
            let fresh = Mask::from(std::mem::take(&mut state.fresh));
            let mut victims = present & !fresh & state.due(self.epoch);
            if look >= limit {
                for _ in 0..RESIDENT_SET {
                    self.epoch = self.epoch.wrapping_add(1);
                    self.out[usize::from(self.epoch)] = 0;
                }
                victims = present;
            }
            if victims != 0 {
                state.queued = false;
                return Some((unit, victims));
            }
            self.units.push_back(unit);
        }
        None
    }

    /// Pages `mask` of `unit` were evicted.
    pub fn evicted(&mut self, map: &mut PageMap, unit: UnitNumber, mask: Mask) {
        let (epoch, resident) = (self.epoch, map.resident());
        map.unit_mut(unit).stamp(mask, epoch);
        self.out[usize::from(epoch)] += mask.count_ones();
        self.evicted += mask.count_ones() as usize;
        if self.evicted >= (resident / usize::from(RESIDENT_SET)).max(UNIT) {
            self.evicted = 0;
            self.epoch = epoch.wrapping_add(1);
            self.out[usize::from(self.epoch)] = 0;
        }
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

    fn bring(map: &mut PageMap, q: &mut Queue, unit: u32, mask: Mask) {
        for i in (0..UNIT).filter(|i| mask & 1 << i != 0) {
            map.set(UnitNumber(unit).first().plus(i), Page::Resident(None));
        }
        q.brought(map, UnitNumber(unit), mask);
    }

    const ALL: Mask = (1 << UNIT) - 1;

    #[test]
    fn first_in_first_out_but_what_is_fresh_stays_once() {
        let (mut map, mut q) = (PageMap::new(), Queue::new());
        for u in 0..2 {
            bring(&mut map, &mut q, u, ALL & !0b100);
        }
        bring(&mut map, &mut q, 0, 0b100);
        assert_eq!(
            q.next(&mut map, 8, resident),
            Some((UnitNumber(0), ALL & !0b100))
        );
        q.requeue(&mut map, UnitNumber(0));
        assert_eq!(
            q.next(&mut map, 8, resident),
            Some((UnitNumber(1), ALL & !0b100))
        );
        assert_eq!(q.next(&mut map, 8, resident), Some((UnitNumber(0), ALL)));
        assert_eq!(q.next(&mut map, 8, resident), None);
    }

    #[test]
    fn a_page_that_refaults_soon_stays_and_its_neighbours_go() {
        let (mut map, mut q) = (PageMap::new(), Queue::new());
        let page = UnitNumber(3).first().plus(5);
        bring(&mut map, &mut q, 3, ALL);
        let (unit, mask) = q.next(&mut map, 8, resident).unwrap();
        q.evicted(&mut map, unit, mask);
        let age = q.age(&map, page);
        bring(&mut map, &mut q, 3, ALL);
        assert!(q.refaulted(&mut map, page, age));
        assert_eq!(
            q.next(&mut map, 8, resident),
            Some((unit, ALL & !(1 << page.within())))
        );
    }

    #[test]
    fn when_everything_shall_stay_something_goes() {
        let (mut map, mut q) = (PageMap::new(), Queue::new());
        for u in 0..4 {
            bring(&mut map, &mut q, u, ALL);
            for i in 0..UNIT {
                q.refaulted(&mut map, UnitNumber(u).first().plus(i), 0);
            }
        }
        assert_eq!(q.next(&mut map, 2, resident), Some((UnitNumber(2), ALL)));
    }

    /// A program that touches `hot` pages at random and streams past `cold` others, in a memory of
    /// `room` pages: the share of hot touches that fault, after warming up.
    fn missed(hot: usize, cold: usize, room: usize) -> f64 {
        let (mut map, mut q) = (PageMap::new(), Queue::new());
        let (mut x, mut touches, mut misses) = (1u64, 0, 0);
        for step in 0..400_000 {
            x = x
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let is_hot = step % 4 != 0;
            let page = PageNumber(if is_hot {
                (x >> 33) as usize % hot
            } else {
                (1 << 20) + step / 4 % cold
            });
            let count = is_hot && step > 200_000;
            touches += u32::from(count);
            if matches!(map.get(page), Page::Resident(_)) {
                continue;
            }
            misses += u32::from(count);
            while map.resident() >= room {
                let (unit, mask) = q.next(&mut map, 512, resident).expect("all is queued");
                for i in (0..UNIT).filter(|i| mask & 1 << i != 0) {
                    map.set(unit.first().plus(i), Page::Swapped(ebb_engine::EntryId(0)));
                }
                q.evicted(&mut map, unit, mask);
                if resident(&map, unit) != 0 {
                    q.requeue(&mut map, unit);
                }
            }
            let (out, age) = (map.get(page) != Page::Untouched, q.age(&map, page));
            bring(&mut map, &mut q, page.unit().0, 1 << page.within());
            if out {
                q.refaulted(&mut map, page, age);
            }
        }
        f64::from(misses) / f64::from(touches)
    }

    #[test]
    fn a_hot_set_survives_a_stream() {
        // Without heat, 37% of the hot touches fault: the stream pushes everything out in turn.
        let share = missed(3000, 40_000, 4000);
        assert!(share < 0.03, "{:.1}% of hot touches fault", share * 100.0);
        // One that does not fit: at best half of the touches fault, without heat 69%.
        let share = missed(8000, 40_000, 4000);
        assert!(share < 0.56, "{:.1}% of hot touches fault", share * 100.0);
    }
}
