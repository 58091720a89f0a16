//! Blocking signals around a critical section.

/// While it lives, no signal is delivered to this thread, glibc's internal ones included. A handler run
/// inside a critical section could touch memory whose service needs that section.
pub struct Blocked {
    old: u64,
}

impl Blocked {
    /// Restores `mask` when it is dropped.
    pub(crate) fn until(mask: u64) -> Self {
        Self { old: mask }
    }

    /// The mask from before.
    pub(crate) fn before(&self) -> u64 {
        self.old
    }

    /// Blocks every signal.
    pub fn all() -> Self {
        Self {
            old: swap(u64::MAX),
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        swap(self.old);
    }
}

fn swap(new: u64) -> u64 {
    let mut old = 0u64;
    // SAFETY: two words of the kernel's signal set size, 8 bytes.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &new,
            &mut old,
            8,
        )
    };
    old
}
