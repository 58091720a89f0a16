//! Locks that know their place in the order, and, in debug builds, see to it: whoever holds
//! one may only wait for one further in. Trying is allowed in any order, for it cannot wait.

use crate::sync::{self, Mutex, MutexGuard};
use std::ops::{Deref, DerefMut};

/// Places in the order, outermost first. One thread holds at most one lock of each.
pub(super) const CONTROL: usize = 0;
pub(super) const CPU: usize = 1;
pub(super) const SHARED_CURSOR: usize = 2;
pub(super) const CLUSTER: usize = 3;
pub(super) const LISTS: usize = 4;

/// A mutex with a place in the order; no larger than one without.
pub(super) struct Ordered<T, const PLACE: usize>(Mutex<T>);

impl<T, const PLACE: usize> Ordered<T, PLACE> {
    pub fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }
}

/// Holds an [`Ordered`].
pub(super) struct Guard<'a, T, const PLACE: usize> {
    guard: MutexGuard<'a, T>,
    _held: held::Held<PLACE>,
}

impl<T, const PLACE: usize> Deref for Guard<'_, T, PLACE> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T, const PLACE: usize> DerefMut for Guard<'_, T, PLACE> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// Waits for a lock.
pub(super) fn lock<T, const PLACE: usize>(ordered: &Ordered<T, PLACE>) -> Guard<'_, T, PLACE> {
    held::check::<PLACE>();
    Guard {
        guard: sync::lock(&ordered.0),
        _held: held::Held::new(),
    }
}

/// Takes a lock if that is possible at once.
pub(super) fn try_lock<T, const PLACE: usize>(
    ordered: &Ordered<T, PLACE>,
) -> Option<Guard<'_, T, PLACE>> {
    let guard = sync::try_lock(&ordered.0)?;
    Some(Guard {
        guard,
        _held: held::Held::new(),
    })
}

#[cfg(all(debug_assertions, not(loom)))]
mod held {
    use std::cell::Cell;

    thread_local! {
        /// How many locks of each place this thread holds.
        static HELD: Cell<[u8; 5]> = const { Cell::new([0; 5]) };
    }

    pub fn check<const PLACE: usize>() {
        let held = HELD.get();
        assert!(
            held[PLACE..].iter().all(|n| *n == 0),
            "waits for a lock of place {PLACE} while holding {held:?}"
        );
    }

    pub struct Held<const PLACE: usize>;

    impl<const PLACE: usize> Held<PLACE> {
        pub fn new() -> Self {
            let mut held = HELD.get();
            held[PLACE] += 1;
            HELD.set(held);
            Self
        }
    }

    impl<const PLACE: usize> Drop for Held<PLACE> {
        fn drop(&mut self) {
            let mut held = HELD.get();
            held[PLACE] -= 1;
            HELD.set(held);
        }
    }
}

#[cfg(not(all(debug_assertions, not(loom))))]
mod held {
    pub fn check<const PLACE: usize>() {}

    pub struct Held<const PLACE: usize>;

    impl<const PLACE: usize> Held<PLACE> {
        pub fn new() -> Self {
            Self
        }
    }
}

#[cfg(all(test, not(loom), debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_seen_to() {
        let outer: Ordered<(), CPU> = Ordered::new(());
        let inner: Ordered<(), LISTS> = Ordered::new(());
        drop((lock(&outer), lock(&inner)));
        let held = lock(&inner);
        drop(try_lock(&outer).unwrap());
        // A panic would abort a release build; here the test harness catches it.
        let wrong = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(lock(&outer))));
        assert!(wrong.is_err());
        drop(held);
        drop(lock(&outer));
    }
}
