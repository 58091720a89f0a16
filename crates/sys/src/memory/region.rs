//! [`Region`]: the part of a program's address space where memory of ours goes.
//!
//! Without a wish the kernel puts a mapping right below the program's last one, or into a hole that the program made.
//! A mapping of ours there stops memory that grows down, and lies where the program may put its own. So mappings of
//! ours wish for places below the stack and above the other mappings that the program was started with. The kernel
//! never gives that room away by itself.
//!
//! # Protocol
//! The region is chosen with the first mapping, at random; a forked child has its parent's. Nothing is reserved: a place
//! is a wish, and may be taken by a program that names addresses itself. The lowest place that is free is the
//! next one: few page tables and few mappings hold all of them. One of the tables is the C library's too, which covers a
//! GiB.
//!
//! Not here: the mappings (`own`).

use super::page_up;
use crate::kernel::random;
use std::mem::size_of;
use std::ops::Range;

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

/// The least distance between memory of ours and the mappings that the program was started with.
const APART: usize = 32 * MIB;

/// The bytes that a table of page tables covers.
const TABLE: usize = GIB;

/// The room that is worth having.
const ROOM: usize = 4 * GIB;

/// Where the processor's addresses end, without five levels of tables.
const ADDRESSES: usize = 1 << 47;

/// Where places are.
pub(super) struct Region {
    bounds: Range<usize>,
}

/// The layout of an address space, as the kernel made it.
struct Layout {
    /// The end of the mappings that the program was started with, or some address near it.
    top: usize,
    /// An address of the first thread's stack.
    stack: usize,
    /// The size to which that stack may grow.
    growth: usize,
}

impl Layout {
    fn of_this_process() -> Self {
        // An address of the library's.
        let own = Self::of_this_process as fn() -> Self as usize;
        let [loader, vdso, stack] = [libc::AT_BASE, libc::AT_SYSINFO_EHDR, libc::AT_RANDOM]
            // SAFETY: it only looks the number up.
            .map(|number| unsafe { libc::getauxval(number) } as usize);
        let below_stack = [own, loader, vdso].into_iter().filter(|&at| at < stack);
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: fills the structure, if anything.
        unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut limit) };
        Self {
            top: below_stack.max().unwrap_or(own),
            stack,
            growth: usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX),
        }
    }
}

impl Region {
    /// One for this process.
    pub(super) fn choose() -> Self {
        let mut number = [0; size_of::<u64>()];
        // Where the kernel refuses, the layout itself is random, as far as this program's may be.
        let _ = random::fill(&mut number);
        Self::within(
            &Layout::of_this_process(),
            u64::from_ne_bytes(number) as usize,
        )
    }

    /// `random`: any number.
    fn within(layout: &Layout, random: usize) -> Self {
        // The kernel leaves what the stack's limit says, which a program may raise as it runs.
        let growth = layout.growth.clamp(GIB, 64 * GIB);
        let below_stack = layout.stack.saturating_sub(growth + GIB);
        let lowest = layout.top + APART;
        // Mappings begin far down, and go up, where the stack has no limit (`ulimit -s unlimited`).
        let upwards = layout.top < ADDRESSES / 4 * 3;
        let bounds = if upwards {
            below_stack.saturating_sub(64 * GIB)..below_stack
        } else if lowest + ROOM < below_stack {
            lowest..below_stack
        } else {
            // Without random addresses (`setarch -R`) there is no room above. Far below is the next best.
            let end = layout.top.saturating_sub(64 * GIB);
            end.saturating_sub(64 * GIB)..end
        };
        // In the first table, if much of it is left.
        let left = TABLE - bounds.start % TABLE;
        let choice = if left > 4 * APART {
            left - 2 * APART
        } else {
            TABLE
        };
        let start = page_up(bounds.start + random % choice);
        Self {
            bounds: start..bounds.end,
        }
    }

    /// A place for so many bytes beside these parts, which come in the order of addresses.
    pub(super) fn place(
        &self,
        len: usize,
        parts: impl Iterator<Item = Range<usize>>,
    ) -> Option<usize> {
        let mut start = self.bounds.start;
        for part in parts.filter(|part| part.end > self.bounds.start) {
            if start.checked_add(len)? <= part.start {
                break;
            }
            start = part.end;
        }
        let end = start.checked_add(len)?;
        (end <= self.bounds.end).then_some(start)
    }

    /// Somebody else has memory at a place: others are far from it.
    pub(super) fn refused(&mut self, place: usize) {
        self.bounds.start = (place + GIB).min(self.bounds.end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::PAGE;

    const STACK: usize = 0x7ffe_3f7e_8000;
    const TOP: usize = 0x7fd5_71ae_e000;

    fn layout(top: usize, growth: usize) -> Layout {
        Layout {
            top,
            stack: STACK,
            growth,
        }
    }

    #[test]
    fn places_lie_above_what_the_kernel_gives_and_below_the_stack() {
        for random in (0..1000).map(|n: usize| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
            for top in [TOP, TOP - 40 * MIB, TOP - (TOP % GIB), STACK - 20 * GIB + 1] {
                let region = Region::within(&layout(top, 8 * MIB), random);
                let start = region.place(MIB, [].into_iter()).unwrap();
                assert!(start >= top + APART && start.is_multiple_of(PAGE));
                assert!(start < top + APART + 2 * GIB && region.bounds.end <= STACK - GIB);
            }
        }
        // The tables of the first GiB serve both.
        let region = Region::within(&layout(TOP, 8 * MIB), usize::MAX);
        assert_eq!(region.bounds.start / GIB, TOP / GIB);
    }

    #[test]
    fn a_layout_without_room_above_has_its_region_far_away() {
        // As `setarch -R` makes it, and as `ulimit -s unlimited` does.
        for (top, growth) in [(STACK - 128 * MIB, 8 * MIB), (ADDRESSES / 3, usize::MAX)] {
            let region = Region::within(&layout(top, growth), 12345);
            let start = region.place(MIB, [].into_iter()).unwrap();
            assert!(start.abs_diff(top) > 60 * GIB, "{start:x}");
            assert!(start.abs_diff(STACK) > 60 * GIB && start.is_multiple_of(PAGE));
        }
        // A stack of a million GiB.
        Region::within(&layout(TOP, usize::MAX / 2), 1);
    }

    #[test]
    fn the_lowest_place_comes_first() {
        let mut region = Region {
            bounds: 100 * PAGE..110 * PAGE,
        };
        let parts = [90..95, 98..102, 103..108, 200..300];
        let place = |region: &Region, pages: usize| {
            let parts = parts.iter().map(|part| part.start * PAGE..part.end * PAGE);
            region.place(pages * PAGE, parts).map(|at| at / PAGE)
        };
        assert_eq!(place(&region, 1), Some(102));
        assert_eq!(place(&region, 2), Some(108));
        assert_eq!(place(&region, 3), None);
        assert_eq!(region.place(10 * PAGE, [].into_iter()), Some(100 * PAGE));
        assert_eq!(region.place(usize::MAX, [].into_iter()), None);
        region.refused(100 * PAGE);
        assert_eq!(place(&region, 1), None);
    }
}
