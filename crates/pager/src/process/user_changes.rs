//! [`UserChanges`]: the program's threads tell the keeper of changes of the user. Without the lock.
//!
//! ```text
//! followed  <=  made
//! ```
//! Not here: what a change means (`syscalls::user_change`).

use ebb_sys::paging::Kernel;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

/// Changes of the program's user.
pub struct UserChanges {
    /// Changes by which the process may have given up the tree's user.
    made: AtomicU32,
    /// Changes that the keeper has acted upon.
    followed: AtomicU32,
}

impl UserChanges {
    /// None.
    pub const fn new() -> Self {
        Self {
            made: AtomicU32::new(0),
            followed: AtomicU32::new(0),
        }
    }

    /// One more; its number.
    pub fn make(&self) -> u32 {
        self.made.fetch_add(1, SeqCst) + 1
    }

    /// Waits a while for the keeper; whether it has acted upon this one.
    pub fn wait_followed(&self, kernel: &impl Kernel, change: u32, wake_keeper: impl Fn()) -> bool {
        let followed = self.followed.load(SeqCst);
        if followed.wrapping_sub(change) as i32 >= 0 {
            return true;
        }
        wake_keeper();
        kernel.wait_word(&self.followed, followed, Some(Duration::from_millis(5)));
        false
    }

    /// The equation of the head comment.
    pub fn check(&self) {
        let followed = self.followed.load(SeqCst);
        assert!(self.made.load(SeqCst).wrapping_sub(followed) as i32 >= 0);
    }

    /// In the keeper: the change that it has not acted upon.
    pub fn pending(&self) -> Option<u32> {
        let made = self.made.load(SeqCst);
        (self.followed.load(SeqCst) != made).then_some(made)
    }

    /// In the keeper: it has.
    pub fn follow(&self, kernel: &impl Kernel, change: u32) {
        self.followed.store(change, SeqCst);
        kernel.wake_word(&self.followed, i32::MAX);
    }
}
