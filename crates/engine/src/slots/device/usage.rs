//! Used slots of a device: counts of slots taken and slots freed, which only grow. Each processor has a
//! pair, and threads that hold no processor's lock share one. What is used in frozen and inherited
//! clusters is counted apart, as it takes no room that this process could have: it changes pairs when its
//! cluster changes its state.
//!
//! They are read one by one while others go on. So all taken counts are read first, and the freed counts
//! after that. The difference may be too small, as some were freed meanwhile, but is never too large. A
//! device that looks full was full when the last taken count was read. In any other order a slot that
//! one processor frees and another takes would count twice.
//!
//! Slots are counted after they are taken, and before they can be taken again when they are freed.

use crate::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// Slots taken and slots freed.
pub(in crate::slots) struct UsageCount {
    taken: AtomicU64,
    freed: AtomicU64,
}

impl UsageCount {
    pub fn new() -> Self {
        Self {
            taken: AtomicU64::new(0),
            freed: AtomicU64::new(0),
        }
    }

    /// Counts slots taken, or freed if negative.
    pub fn add(&self, slots: i64) {
        let count = if slots < 0 { &self.freed } else { &self.taken };
        count.fetch_add(slots.unsigned_abs(), Release);
    }

    /// The same where a lock keeps others from counting here.
    pub fn add_alone(&self, slots: i64) {
        let count = if slots < 0 { &self.freed } else { &self.taken };
        count.store(count.load(Relaxed) + slots.unsigned_abs(), Release);
    }

    /// Forgets all.
    pub fn reset(&self) {
        self.taken.store(0, Relaxed);
        self.freed.store(0, Relaxed);
    }
}

/// The slots in use by all of these.
pub(in crate::slots) fn used<'t>(counts: impl Iterator<Item = &'t UsageCount> + Clone) -> u64 {
    let taken: u64 = counts.clone().map(|count| count.taken.load(Acquire)).sum();
    let freed: u64 = counts.map(|count| count.freed.load(Relaxed)).sum();
    taken.saturating_sub(freed)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_slot_that_changes_hands_meanwhile_is_not_counted_twice() {
        let counts = [UsageCount::new(), UsageCount::new()];
        counts[0].add(10);
        let first = Cell::new(true);
        // Between the first look at one and at the other.
        let read = counts.iter().enumerate().map(|(i, count)| {
            if i == 1 && first.take() {
                counts[0].add(-1);
                counts[1].add_alone(1);
            }
            count
        });
        assert_eq!(used(read), 10);
    }
}
