//! Waiting on a word of memory, in this process or in memory shared between processes.

use super::raw;
use crate::Errno;
use std::ffi::c_long;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Sleeps while `*word == seen`, at most `timeout`. Wakes spuriously at times. `shared`: the word
/// is in memory shared with other processes.
pub fn wait(word: &AtomicU32, seen: u32, timeout: Option<Duration>, shared: bool) {
    let private = if shared { 0 } else { libc::FUTEX_PRIVATE_FLAG };
    let limit = timeout.map(|t| libc::timespec {
        tv_sec: t.as_secs() as _,
        tv_nsec: t.subsec_nanos() as _,
    });
    let limit = limit.as_ref().map_or(0, |t| &raw const *t as c_long);
    let operation = libc::FUTEX_WAIT | private;
    let args = [
        word.as_ptr() as c_long,
        operation.into(),
        seen.into(),
        limit,
        0,
        0,
    ];
    // SAFETY: the word outlives the call and the timeout is valid or null.
    unsafe { raw::call(libc::SYS_futex, args) };
}

/// Wakes up to `count` who wait on `word`.
pub fn wake(word: &AtomicU32, count: i32, shared: bool) {
    let private = if shared { 0 } else { libc::FUTEX_PRIVATE_FLAG };
    let operation = libc::FUTEX_WAKE | private;
    let args = [
        word.as_ptr() as c_long,
        operation.into(),
        count.into(),
        0,
        0,
        0,
    ];
    // SAFETY: the word's address is only a key here.
    unsafe { raw::call(libc::SYS_futex, args) };
}

/// Writes to the word at `address` what it holds, in one step with the program's own writes. Its page is the process's
/// own after that, not a forked relative's. It waits for nobody: where the kernel makes a change for a futex (`FUTEX_WAKE_OP`)
/// it lets no userfaultfd have the fault. One who waits for the word may wake for nothing.
///
/// # Errors
/// The page is missing or protected, in memory registered with a userfaultfd, or the memory may not be written.
pub fn rewrite(address: usize) -> Result<(), Errno> {
    // Adds 0. It wakes who waits for the word only if that holds the number that is compared with: seldom.
    const ADD_NOTHING: c_long =
        (libc::FUTEX_OP_ADD << 28 | libc::FUTEX_OP_CMP_EQ << 24 | 0x800) as c_long;
    let nobody = AtomicU32::new(0);
    let args = [
        nobody.as_ptr() as c_long,
        (libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG).into(),
        0,
        0,
        address as c_long,
        ADD_NOTHING,
    ];
    // SAFETY: a word of ours that nobody waits for, and one that stays what it is.
    unsafe { raw::checked(libc::SYS_futex, args) }.map(drop)
}

/// A word to be waited for, what it was seen to hold, and whether it is in memory shared with other processes.
pub type Watched<'a> = (&'a AtomicU32, u32, bool);

/// Sleeps while both words are as seen, at most `timeout`. Wakes spuriously at times. Where the system does not
/// let wait for two, it waits for the first, in short turns.
pub fn wait_for_either(first: Watched<'_>, second: Watched<'_>, timeout: Option<Duration>) {
    /// `struct futex_waitv`, and its flags.
    #[repr(C)]
    struct Waiter {
        value: u64,
        address: u64,
        flags: u32,
        reserved: u32,
    }
    const WORD: u32 = 2;
    const TURN: Duration = Duration::from_millis(20);
    let waiter = |(word, seen, shared): Watched<'_>| Waiter {
        value: seen.into(),
        address: word.as_ptr() as u64,
        flags: WORD
            | if shared {
                0
            } else {
                libc::FUTEX_PRIVATE_FLAG as u32
            },
        reserved: 0,
    };
    let waiters = [waiter(first), waiter(second)];
    let limit = timeout.map(|timeout| {
        let until = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let ns = until.tv_nsec as u64 + u64::from(timeout.subsec_nanos());
        libc::timespec {
            tv_sec: until.tv_sec + (timeout.as_secs() + ns / 1_000_000_000) as i64,
            tv_nsec: (ns % 1_000_000_000) as i64,
        }
    });
    let limit = limit.as_ref().map_or(0, |t| &raw const *t as c_long);
    let (list, count) = (waiters.as_ptr() as c_long, waiters.len() as c_long);
    let args = [list, count, 0, limit, libc::CLOCK_MONOTONIC.into(), 0];
    // SAFETY: the words outlive the call; the structures and the timeout are valid, or that is null.
    let result = unsafe { raw::checked(libc::SYS_futex_waitv, args) };
    if matches!(result, Err(Errno(libc::ENOSYS | libc::EPERM))) {
        let turn = timeout.map_or(TURN, |timeout| timeout.min(TURN));
        wait(first.0, first.1, Some(turn), first.2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::PAGE;
    use crate::memory::pagemap::PageMapFile;
    use crate::memory::userfaultfd::Userfaultfd;
    use crate::memory::{self, reserve};
    use std::sync::atomic::Ordering::SeqCst;

    fn word(address: usize) -> &'static AtomicU32 {
        // SAFETY: memory that a test has mapped for its life.
        unsafe { &*(address as *const AtomicU32) }
    }

    #[test]
    fn a_page_whose_word_is_rewritten_is_no_relatives() {
        let area = reserve(PAGE).unwrap();
        word(area).store(7, SeqCst);
        // SAFETY: the child does nothing but wait for its end.
        let child = unsafe { libc::fork() };
        if child == 0 {
            loop {
                // SAFETY: waits for a signal.
                unsafe { libc::pause() };
            }
        }
        let pagemap = PageMapFile::open().unwrap();
        let before = pagemap.look(area, 1).shared;
        let rewritten = rewrite(area);
        let after = pagemap.look(area, 1).shared;
        // SAFETY: a child of this test's own.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        assert_eq!((before, rewritten, after), (1, Ok(()), 0));
        assert_eq!(word(area).load(SeqCst), 7);
    }

    /// No write of a thread beside it is lost.
    #[test]
    fn a_word_is_rewritten_in_one_step() {
        const TIMES: u32 = 100_000;
        let area = reserve(PAGE).unwrap();
        std::thread::scope(|scope| {
            let writer =
                scope.spawn(|| (0..TIMES).for_each(|_| _ = word(area).fetch_add(1, SeqCst)));
            while !writer.is_finished() {
                rewrite(area).unwrap();
            }
        });
        assert_eq!(word(area).load(SeqCst), TIMES);
    }

    #[test]
    fn pages_that_service_would_have_to_bring_are_not_waited_for() {
        let fault = match Userfaultfd::open() {
            Ok(fault) => fault,
            Err(e) => return println!("skipped: no userfaultfd: {e}"),
        };
        let area = reserve(2 * PAGE).unwrap();
        fault.register(area, 2 * PAGE).unwrap();
        assert!(fault.copy(area + PAGE, &[3; PAGE], true, false).1.is_ok());
        let refused = [area, area + PAGE].map(rewrite);
        assert_eq!(refused, [Err(Errno(libc::EFAULT)); 2], "missing, protected");
        assert!(!fault.wait(0), "nobody waits");
        fault.protect(area + PAGE, PAGE, false).unwrap();
        assert_eq!(rewrite(area + PAGE), Ok(()));
        // SAFETY: nobody refers to the pages.
        unsafe { memory::mprotect(area, 2 * PAGE, libc::PROT_READ).unwrap() };
        assert_eq!(rewrite(area + PAGE), Err(Errno(libc::EFAULT)));
    }
}
