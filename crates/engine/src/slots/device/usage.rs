//! How many slots of a device are used: counts of those taken and those freed, which only grow, a
//! pair for each processor and one for who holds no processor's lock.
//!
//! They are read one by one while others go on. So all that were taken are read first, and what was
//! freed after that: the difference may be too small, as some were freed meanwhile, and never is too
//! large. A device that is full by it was full when the last of the first was read; the difference of
//! what was read in any other order would count a slot twice that is freed by one processor and taken
//! by another.
//!
//! Whoever takes slots counts them after, and whoever frees some before anybody can take them.

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

    /// So many were taken, or freed if negative.
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
