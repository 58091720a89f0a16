//! Locks that know their place in the order, and, in debug builds, see to it: whoever holds
//! one may only wait for one further in. Trying is allowed in any order, for it cannot wait.
//!
//! One order for the whole engine: entries, pool, slots. The allocator calls back into the entries with
//! none of its locks held. The purpose of each lock is stated at its declaration.
//!
//! Not here: the table of groups, and the locks that hand out coders and background work; each is
//! held for a moment, with nothing locked inside.

use crate::sync::{self, Condvar, Mutex, MutexGuard};
use std::ops::{Deref, DerefMut};

macro_rules! ranks {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// A place in the order, outermost first. One thread holds at most one lock of each.
        #[derive(Clone, Copy, Debug)]
        #[repr(usize)]
        pub(crate) enum LockRank {
            $($(#[$doc])* $name,)*
        }

        #[cfg(all(debug_assertions, not(loom)))]
        const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

ranks! {
    EntryCursor,
    EntryCluster,
    GroupLists,
    PoolFilling,
    PoolPartial,
    Arena,
    /// Free windows, free cluster numbers, spare words: whoever holds one takes no other.
    Leaf,
    /// The table of devices. The ranks after it belong to the slots, too.
    Control,
    Cpu,
    SharedCursor,
    Cluster,
    Lists,
    /// Counts of room under way.
    InFlight,
}

/// A value that changes often, on cache lines of its own: away from values that are only read.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct CachePadded<T>(pub T);

/// Panics, in debug builds, if this thread holds a lock of the engine. An embedder asks this before it
/// waits for a lock of its own that is further out.
pub fn none_held() {
    held::check::<0>();
}

/// A mutex with a place in the order; no larger than one without.
pub(crate) struct Ordered<T, const RANK: usize>(Mutex<T>);

impl<T, const RANK: usize> Ordered<T, RANK> {
    pub fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }
}

impl<T: Default, const RANK: usize> Default for Ordered<T, RANK> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

/// Holds an [`Ordered`].
pub(crate) struct Guard<'a, T, const RANK: usize> {
    guard: MutexGuard<'a, T>,
    _held: held::Held<RANK>,
}

impl<T, const RANK: usize> Deref for Guard<'_, T, RANK> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T, const RANK: usize> DerefMut for Guard<'_, T, RANK> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// Waits for a lock.
pub(crate) fn lock<T, const RANK: usize>(ordered: &Ordered<T, RANK>) -> Guard<'_, T, RANK> {
    held::check::<RANK>();
    Guard {
        guard: sync::lock(&ordered.0),
        _held: held::Held::new(),
    }
}

/// Takes a lock if that is possible at once.
pub(crate) fn try_lock<T, const RANK: usize>(
    ordered: &Ordered<T, RANK>,
) -> Option<Guard<'_, T, RANK>> {
    let guard = sync::try_lock(&ordered.0)?;
    Some(Guard {
        guard,
        _held: held::Held::new(),
    })
}

/// Lets a lock go until what it guards may have changed. The thread should hold no other.
pub(crate) fn wait<'a, T, const RANK: usize>(
    condvar: &Condvar,
    ordered: &'a Ordered<T, RANK>,
    Guard { guard, _held }: Guard<'a, T, RANK>,
) -> Guard<'a, T, RANK> {
    Guard {
        guard: sync::wait(condvar, &ordered.0, guard),
        _held,
    }
}

/// The locks that a thread holds, by rank.
#[cfg(all(debug_assertions, not(loom)))]
pub use held::Locks;

/// The thread is another one of a simulation from now on, which holds these; those of the one before.
#[cfg(all(debug_assertions, not(loom)))]
pub fn exchange(locks: Locks) -> Locks {
    held::exchange(locks)
}

/// How many locks of a rank this thread has taken so far.
#[cfg(all(test, debug_assertions, not(loom)))]
pub(crate) fn taken(rank: LockRank) -> u64 {
    held::taken(rank)
}

#[cfg(all(debug_assertions, not(loom)))]
mod held {
    use super::NAMES;
    use std::cell::Cell;

    const RANKS: usize = NAMES.len();

    /// How many locks of each rank a thread holds.
    pub type Locks = [u8; RANKS];

    thread_local! {
        /// Those of this thread.
        static HELD: Cell<Locks> = const { Cell::new([0; RANKS]) };
    }

    pub fn exchange(locks: Locks) -> Locks {
        HELD.replace(locks)
    }

    #[cfg(test)]
    thread_local! {
        static TAKEN: Cell<[u64; RANKS]> = const { Cell::new([0; RANKS]) };
    }

    #[cfg(test)]
    pub fn taken(rank: super::LockRank) -> u64 {
        TAKEN.get()[rank as usize]
    }

    pub fn check<const RANK: usize>() {
        let held = HELD.get();
        if let Some(other) = (RANK..RANKS).find(|&rank| held[rank] > 0) {
            let [wanted, other] = [NAMES[RANK], NAMES[other]];
            panic!("waits for a lock of rank {wanted} while holding one of {other}");
        }
    }

    pub struct Held<const RANK: usize>;

    impl<const RANK: usize> Held<RANK> {
        pub fn new() -> Self {
            let mut held = HELD.get();
            held[RANK] += 1;
            HELD.set(held);
            #[cfg(test)]
            {
                let mut taken = TAKEN.get();
                taken[RANK] += 1;
                TAKEN.set(taken);
            }
            Self
        }
    }

    impl<const RANK: usize> Drop for Held<RANK> {
        fn drop(&mut self) {
            let mut held = HELD.get();
            held[RANK] -= 1;
            HELD.set(held);
        }
    }
}

#[cfg(not(all(debug_assertions, not(loom))))]
mod held {
    pub fn check<const RANK: usize>() {}

    pub struct Held<const RANK: usize>;

    impl<const RANK: usize> Held<RANK> {
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
        let outer: Ordered<(), { LockRank::Cpu as usize }> = Ordered::new(());
        let inner: Ordered<(), { LockRank::Lists as usize }> = Ordered::new(());
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
