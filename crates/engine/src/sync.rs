//! The one door to threads' primitives: `std` normally, `loom` under
//! `RUSTFLAGS="--cfg loom"`, so that every concurrent structure can be model-checked
//! as it stands.

#[cfg(not(loom))]
pub use std::sync::{Arc, Mutex, MutexGuard, atomic};

#[cfg(loom)]
pub use loom::sync::{Arc, Mutex, MutexGuard, atomic};

/// Locks, ignoring poison: a panic aborts the process, so none is ever seen.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// Locks if that is possible at once.
pub fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    mutex.try_lock().ok()
}
