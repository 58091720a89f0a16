//! `mremap` of an area that is more than one mapping to the program, or of which a part alone is managed.
//!
//! Since 6.17 the kernel moves such an area with one call, if its length stays and the place is given. It does so
//! mapping by mapping, and stops at one that is registered with a userfaultfd: what lies before is moved then, and the
//! call has failed. So each part is moved by a call of its own here, and is alike: managed with the same attributes, or
//! not managed at all.
//!
//! As with the kernel's call, other threads see it in between, what was moved before an error stays where it is then,
//! and holes stay holes. Before 6.17 that kernel refuses what is moved here; no program relies on that.

use crate::map::ranges::{Attributes, Ranges};
use crate::pager::Pager;
use crate::process::outcome::Outcome;
use ebb_engine::PAGE_SIZE;
use ebb_sys::memory::page_up;
use ebb_sys::paging::Kernel;

/// The flags of the call that are known here.
pub(super) const KNOWN: i32 = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;

/// Where the first part of `start..end` ends that a program, and the kernel without us, know as one mapping, or that is
/// not managed.
pub(super) fn part_end(ranges: &Ranges, start: usize, end: usize) -> usize {
    let known = |a: Attributes| (a.protection, a.locked, a.in_child);
    let Some(first) = ranges.find(start) else {
        return ranges.next(start, end).map_or(end, |range| range.start);
    };
    let mut at = start;
    for range in ranges.within(start, end) {
        if range.start != at || known(range.attributes) != known(first.attributes) {
            break;
        }
        at = range.end;
    }
    at
}

/// Whether two areas, each a start and a length, have nothing in common.
pub(super) fn are_apart((a, a_len): (usize, usize), (b, b_len): (usize, usize)) -> bool {
    a + a_len <= b || b + b_len <= a
}

impl<K: Kernel> Pager<K> {
    /// Whether a call moves an area of several parts to a place that is given.
    pub(super) fn moves_parts(
        &'static self,
        (old, old_len): (usize, usize),
        new_len: usize,
        flags: i32,
        new_addr: usize,
    ) -> bool {
        const MOVES: i32 = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let len = page_up(old_len);
        let (Some(end), Some(_)) = (old.checked_add(len), new_addr.checked_add(len)) else {
            return false;
        };
        let is_whole = (old | new_addr).is_multiple_of(PAGE_SIZE) && len == page_up(new_len);
        let is_apart = are_apart((old, len), (new_addr, len));
        let is_known = flags & !KNOWN == 0 && flags & MOVES == MOVES;
        if old_len == 0 || !(is_whole && is_apart && is_known) {
            return false;
        }
        self.kernel
            .on_own_stack(move || part_end(&self.lock().ranges, old, end) < end)
    }

    /// Makes such a call, part by part, from what is `done` on. What is done when it stops is done for good.
    ///
    /// # Safety
    /// As the system call.
    pub(super) unsafe fn remap_parts(
        &'static self,
        (old, len): (usize, usize),
        flags: i32,
        new_addr: usize,
        done: &mut usize,
    ) -> Outcome<usize> {
        let (mut at, end) = (old + *done, old + page_up(len));
        while at < end {
            let part = move || {
                let state = self.lock();
                let stop = part_end(&state.ranges, at, end);
                (stop, state.ranges.find(at).is_some())
            };
            let (stop, is_managed) = self.kernel.on_own_stack(part);
            let (len, to) = (stop - at, new_addr + (at - old));
            // SAFETY: the caller answers for the system call.
            match unsafe { self.remap_alike(at, len, len, flags, to) } {
                Ok(_) => {}
                // A hole, as it may be anywhere but at the beginning.
                Err(libc::EFAULT) if !is_managed && at > old && self.takes(at, len) => {
                    // SAFETY: just mapped.
                    let _ = unsafe { self.kernel.munmap(at, len) };
                }
                Err(error) => return Err(error),
            }
            at = stop;
            *done = at - old;
        }
        Ok(new_addr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_alike_and_holes_are_parts() {
        let plain = Attributes::mapped(libc::PROT_READ | libc::PROT_WRITE);
        let mut ranges = Ranges::new();
        let page = |n: usize| n * PAGE_SIZE;
        ranges.insert(page(10), page(20), plain);
        ranges.insert(page(24), page(30), plain);
        // Pins are not known to the program.
        ranges.change(page(12), page(14), |a| a.pinned.for_good = true);
        ranges.change(page(26), page(28), |a| a.protection = libc::PROT_READ);
        let stops = [10, 20, 24, 26, 28, 30, 40].map(page);
        for part in stops.windows(2) {
            assert_eq!(part_end(&ranges, part[0], page(40)), part[1]);
        }
        assert_eq!(part_end(&ranges, page(11), page(13)), page(13));
    }
}
