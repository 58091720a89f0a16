//! The one door to threads' primitives: `std` normally, `loom` under
//! `RUSTFLAGS="--cfg loom"`, so that every concurrent structure can be model-checked
//! as it stands. In debug builds locks can be those of a simulation ([`simulated`]), whose threads are coroutines
//! of one thread: none of them may keep that thread waiting.

use std::sync::TryLockError;

#[cfg(not(loom))]
pub use std::sync::{Arc, Condvar, Mutex, MutexGuard, atomic};

#[cfg(loom)]
pub use loom::sync::{Arc, atomic};
#[cfg(loom)]
pub use modelled::{Condvar, Mutex, MutexGuard};

/// Locks, ignoring poison: a panic aborts the process, so none is ever seen.
#[inline]
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(all(debug_assertions, not(loom)))]
    if let Some(scheduler) = simulated::scheduler() {
        scheduler.before_lock();
        loop {
            match try_lock(mutex) {
                Some(guard) => return guard,
                None => scheduler.lock_taken(),
            }
        }
    }
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// Lets the lock of `mutex` go until the condition may have changed; ignores poison, too.
pub fn wait<'a, T>(
    condvar: &Condvar,
    mutex: &'a Mutex<T>,
    guard: MutexGuard<'a, T>,
) -> MutexGuard<'a, T> {
    #[cfg(all(debug_assertions, not(loom)))]
    if let Some(scheduler) = simulated::scheduler() {
        drop(guard);
        scheduler.wait(address(condvar), None);
        return lock(mutex);
    }
    let _ = mutex;
    match condvar.wait(guard) {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// The same, for so long at most; whether it took less. Models know no time: there it always does.
pub fn wait_at_most<'a, T>(
    condvar: &Condvar,
    mutex: &'a Mutex<T>,
    guard: MutexGuard<'a, T>,
    limit: std::time::Duration,
) -> (MutexGuard<'a, T>, bool) {
    #[cfg(loom)]
    {
        let _ = limit;
        (wait(condvar, mutex, guard), true)
    }
    #[cfg(not(loom))]
    {
        #[cfg(debug_assertions)]
        if let Some(scheduler) = simulated::scheduler() {
            drop(guard);
            let soon = scheduler.wait(address(condvar), Some(limit));
            return (lock(mutex), soon);
        }
        let _ = mutex;
        let (guard, result) = match condvar.wait_timeout(guard, limit) {
            Ok(waited) => waited,
            Err(poisoned) => poisoned.into_inner(),
        };
        (guard, !result.timed_out())
    }
}

/// Wakes all who wait.
pub fn notify_all(condvar: &Condvar) {
    #[cfg(all(debug_assertions, not(loom)))]
    if let Some(scheduler) = simulated::scheduler() {
        return scheduler.notify(address(condvar));
    }
    condvar.notify_all();
}

/// Locks if that is possible at once.
#[inline]
pub fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(all(debug_assertions, not(loom)))]
fn address(condvar: &Condvar) -> usize {
    std::ptr::from_ref(condvar).addr()
}

/// Locks of a simulation, in debug builds: its scheduler hears of each, and decides who runs.
#[cfg(all(debug_assertions, not(loom)))]
pub mod simulated {
    use std::sync::OnceLock;
    use std::time::Duration;

    /// Decides which of the threads runs that a simulation has. All calls are by such a thread.
    pub trait Scheduler: Sync {
        /// A lock is about to be taken: others may run before.
        fn before_lock(&self);
        /// The lock is another's: that one has to run.
        fn lock_taken(&self);
        /// Waits for a [`notify`](Self::notify) of this condition, or for so long; whether it was notified.
        fn wait(&self, condition: usize, limit: Option<Duration>) -> bool;
        /// Wakes all who wait for a condition.
        fn notify(&self, condition: usize);
    }

    static SCHEDULER: OnceLock<&'static dyn Scheduler> = OnceLock::new();

    /// All locks of this process are the scheduler's from now on.
    pub fn begin(scheduler: &'static dyn Scheduler) {
        SCHEDULER.get_or_init(|| scheduler);
    }

    #[inline]
    pub(super) fn scheduler() -> Option<&'static dyn Scheduler> {
        SCHEDULER.get().copied()
    }
}

/// A mutex for models. Loom 0.7's own mutex keeps a thread that is about to try until the lock is free
/// again, if another gets it first. So it sees deadlocks where a lock is tried against the order.
///
/// Threads run one at a time and change only inside loom's own operations. So nothing comes between
/// taking `turn`, deciding, and giving it back, and nobody ever waits for it.
#[cfg(loom)]
#[allow(missing_docs)]
mod modelled {
    use loom::thread::{Thread, current, park};
    use std::ops::{Deref, DerefMut};
    use std::sync::{LockResult, TryLockError, TryLockResult};

    #[derive(Default)]
    struct Queue {
        held: bool,
        waiting: Vec<Thread>,
    }

    /// As `std::sync::Mutex`.
    pub struct Mutex<T> {
        turn: loom::sync::Mutex<Queue>,
        data: std::sync::Mutex<T>,
    }

    /// As `std::sync::MutexGuard`.
    pub struct MutexGuard<'a, T> {
        mutex: &'a Mutex<T>,
        data: Option<std::sync::MutexGuard<'a, T>>,
    }

    impl<T> Mutex<T> {
        pub fn new(data: T) -> Self {
            Self {
                turn: loom::sync::Mutex::new(Queue::default()),
                data: std::sync::Mutex::new(data),
            }
        }

        /// The guard, if nobody has it; else this thread is woken when that changes, if it waits.
        fn attempt(&self, waits: bool) -> Option<MutexGuard<'_, T>> {
            let mut queue = self.turn.lock().unwrap();
            if queue.held {
                if waits {
                    queue.waiting.push(current());
                }
                return None;
            }
            queue.held = true;
            Some(MutexGuard {
                mutex: self,
                data: Some(self.data.try_lock().unwrap()),
            })
        }

        pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
            loop {
                match self.attempt(true) {
                    Some(guard) => return Ok(guard),
                    None => park(),
                }
            }
        }

        pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
            self.attempt(false).ok_or(TryLockError::WouldBlock)
        }
    }

    impl<T: Default> Default for Mutex<T> {
        fn default() -> Self {
            Self::new(T::default())
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.data.as_ref().expect("held")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.data.as_mut().expect("held")
        }
    }

    impl<T> Drop for MutexGuard<'_, T> {
        fn drop(&mut self) {
            // A panic ends the model.
            if std::thread::panicking() {
                return;
            }
            let mut queue = self.mutex.turn.lock().unwrap();
            self.data = None;
            queue.held = false;
            queue.waiting.drain(..).for_each(|thread| thread.unpark());
        }
    }

    /// As `std::sync::Condvar`.
    #[derive(Default)]
    pub struct Condvar {
        waiting: std::sync::Mutex<Vec<Thread>>,
    }

    impl Condvar {
        pub fn new() -> Self {
            Self::default()
        }

        pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
            let mutex = guard.mutex;
            self.waiting.lock().unwrap().push(current());
            drop(guard);
            park();
            mutex.lock()
        }

        pub fn notify_all(&self) {
            let waiting = std::mem::take(&mut *self.waiting.lock().unwrap());
            waiting.iter().for_each(Thread::unpark);
        }
    }
}
