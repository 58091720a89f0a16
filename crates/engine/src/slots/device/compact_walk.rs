//! The way of compaction through the part-filled clusters of a device, a bounded number at a time.
//!
//! It goes through the lists one after the other, and then begins again: one such *pass* sees every
//! cluster, however many are ahead of the empty ones. Clusters that it has looked at are at the list's end.

use crate::slots::cluster::{frag, nonfull};
use crate::types::{CLUSTER_SLOTS, ORDERS};

/// Lists that it goes through: two for each order.
const WAYS: u8 = 2 * ORDERS as u8;

/// See the module. Guarded by the lists' lock, and small: it lies in what their cache lines had left.
#[derive(Clone, Copy)]
pub(in crate::slots) struct CompactWalk {
    /// The number of the list where the pass is, as `list` counts them; behind the last: no pass is under way.
    way: u8,
    /// Clusters of this list to be looked at.
    left: u32,
    /// Clusters looked at since the last page was moved.
    vain: u32,
    /// Free slots seen in this pass, or in the last.
    free: u32,
    /// Free slots seen in the pass before.
    before: u32,
}

/// The list of this number.
fn list(way: u8) -> usize {
    match way.is_multiple_of(2) {
        true => nonfull(way / 2),
        false => frag(way / 2),
    }
}

impl CompactWalk {
    pub const fn new() -> Self {
        Self {
            way: WAYS,
            left: 0,
            vain: 0,
            // Not known: there may be room.
            free: u32::MAX,
            before: u32::MAX,
        }
    }

    /// The list to look at next, and how many of its clusters. None at the end of a pass. `length` says how many a
    /// list has.
    pub fn next(&mut self, length: impl Fn(usize) -> u32) -> Option<(usize, u32)> {
        let len = |way: u8| length(list(way));
        if self.way == WAYS {
            (self.way, self.left) = (0, len(0));
            (self.before, self.free) = (self.free, 0);
        }
        while self.left == 0 {
            self.way += 1;
            if self.way == WAYS {
                return None;
            }
            self.left = len(self.way);
        }
        Some((list(self.way), self.left))
    }

    /// Of `asked` clusters of the list that `next` said, so many were there to be looked at, with so many free slots.
    pub fn looked(&mut self, asked: u32, seen: u32, free: usize) {
        self.vain = self.vain.saturating_add(seen);
        self.free = self.free.saturating_add(free as u32);
        // The list may have become shorter.
        let gone = seen < asked;
        self.left = if gone { 0 } else { self.left - seen };
    }

    /// Whether the clusters that it goes through have room for all that is in one of them, as far as is known.
    pub fn has_room(&self) -> bool {
        let before = if self.way == WAYS { 0 } else { self.before };
        self.free.max(before) as usize >= CLUSTER_SLOTS
    }

    /// Pages were moved, or whole clusters are there: it is worth looking at all again.
    pub fn begin(&mut self) {
        self.vain = 0;
    }

    /// Whether every cluster was looked at since.
    pub fn is_over(&self, length: impl Fn(usize) -> u32) -> bool {
        let all = (0..WAYS).map(|way| length(list(way))).sum();
        self.vain >= all
    }
}
