//! Blocking signals around a critical section.

/// While it lives, no signal is delivered to this thread, glibc's internal ones included: a
/// handler run inside a critical section could touch memory whose service needs that section.
pub struct Blocked {
    old: u64,
}

impl Blocked {
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

/// On a thread of ours, which has all signals blocked: lets libc's own signal through by which it
/// has every thread change its user or group. It waits for them all, and a thread that kept the
/// program's former rights would be a way back to them.
pub fn admit_changes_of_user() {
    /// glibc's SIGSETXID.
    const SETXID: u64 = 1 << (33 - 1);
    let change = SETXID;
    // SAFETY: a word of the kernel's signal set size, 8 bytes.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_UNBLOCK,
            &change,
            std::ptr::null_mut::<u64>(),
            8,
        )
    };
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
