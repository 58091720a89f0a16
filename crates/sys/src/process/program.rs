//! The program whose memory a helper has: who it is, and whether it still uses that memory.
//!
//! The helper is told of neither the program's end nor its exec; the memory lives as long as it does. So it
//! has to see for itself, and go:
//!
//! - *death*: the program's pidfd is readable once every thread of it has ended;
//! - *exec*: the two have one memory no more (`kcmp`, or their sizes differ).
//!
//! Both mean that the first thread has let the memory go. Then the kernel clears a word of that thread and
//! wakes its waiters (`CLONE_CHILD_CLEARTID`, which libc sets for `pthread_join`). The helper waits for
//! that word beside what else it waits for, and looks when it is cleared, and now and then.
//!
//! Not here: how children that share the memory (of `vfork`, of `clone`) come and go.

use crate::kernel::{clock, futex, raw};
use crate::{Errno, memory, proc};
use libc::c_long;
use std::ops::ControlFlow::{Break, Continue};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering::SeqCst};
use std::time::Duration;

/// The program of this process.
struct Program {
    /// The number, as this process sees it; 0 before [`begin`].
    pid: AtomicU32,
    /// The first thread's word; null where it is not known.
    word: AtomicPtr<AtomicU32>,
    /// A word for a first thread that has none.
    own_word: AtomicU32,
    /// The helper's descriptor of the program; below 0: it has none yet.
    pidfd: AtomicI32,
}

/// One for the process: the kernel clears a word of it, and signal handlers ask.
static PROGRAM: Program = Program {
    pid: AtomicU32::new(0),
    word: AtomicPtr::new(std::ptr::null_mut()),
    own_word: AtomicU32::new(1),
    pidfd: AtomicI32::new(-1),
};

/// A page with nothing else in it.
#[repr(align(4096))]
struct OwnPage(AtomicU32);

/// One for the process: the kernel empties it in a forked child. It lies in the library, as a small process has no other
/// use for mappings of our own, whose place has to be chosen first.
static OWN_PAGE: OwnPage = OwnPage(AtomicU32::new(0));

/// A word that is zero in each forked child; none where the system refuses it.
pub fn word_of_process() -> Option<&'static AtomicU32> {
    let page = (&raw const OWN_PAGE).addr();
    // SAFETY: advice on a page that holds this word alone; it is whole, by its alignment.
    unsafe { memory::madvise(page, size_of::<OwnPage>(), libc::MADV_WIPEONFORK).ok()? };
    Some(&OWN_PAGE.0)
}

/// Called on the program's first thread: as the library is loaded, and in a forked child before another runs.
pub fn begin() {
    const GET_TID_ADDRESS: c_long = 40;
    PROGRAM.pid.store(std::process::id(), SeqCst);
    PROGRAM.pidfd.store(-1, SeqCst);
    let mut word = 0usize;
    // SAFETY: writes one word of ours; the second names a word that is there for good.
    unsafe {
        let args = [GET_TID_ADDRESS, (&raw mut word) as c_long, 0, 0, 0, 0];
        let known = raw::call(libc::SYS_prctl, args) == 0;
        if known && word == 0 {
            PROGRAM.own_word.store(1, SeqCst);
            word = PROGRAM.own_word.as_ptr() as usize;
            raw::call(libc::SYS_set_tid_address, [word as c_long, 0, 0, 0, 0, 0]);
        }
    }
    PROGRAM.word.store(word as *mut AtomicU32, SeqCst);
}

/// The number of the program; the caller's own where it is not helped.
pub fn pid() -> u32 {
    match PROGRAM.pid.load(SeqCst) {
        0 => std::process::id(),
        pid => pid,
    }
}

/// The helper takes hold of the program, once.
///
/// # Errors
/// ESRCH if it has ended.
pub fn watch() -> Result<(), Errno> {
    let args = [pid().into(), 0, 0, 0, 0, 0];
    // SAFETY: no pointers.
    let pidfd = unsafe { raw::checked(libc::SYS_pidfd_open, args)? };
    PROGRAM.pidfd.store(pidfd as i32, SeqCst);
    Ok(())
}

/// The program's pidfd; none before [`watch`].
pub fn pidfd() -> Option<BorrowedFd<'static>> {
    let fd = PROGRAM.pidfd.load(SeqCst);
    // SAFETY: it stays open as long as this process.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Processor time that the program's threads have used; none if it has ended.
pub fn time() -> Option<Duration> {
    clock::of_process(pid())
}

/// Whether the program has such a thread; yes, where nothing tells. One that the system still knows has not ended.
pub fn has_thread(thread: u32) -> bool {
    let known = |thread: u32| {
        let args = [pid().into(), thread.into(), 0, 0, 0, 0];
        // SAFETY: no pointers; no signal is sent.
        let answer = unsafe { raw::checked(libc::SYS_tgkill, args) };
        answer != Err(Errno(libc::ESRCH))
    };
    // Numbers are another namespace's where the program's own is not known.
    known(thread) || !known(pid())
}

/// How a program let its memory go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gone {
    /// It has ended.
    Dead,
    /// It has become another program.
    Other,
}

/// Whether the program uses its memory no more. A few system calls, on a task of ours.
pub fn is_gone() -> Option<Gone> {
    if pidfd().is_some_and(proc::has_ended) {
        return Some(Gone::Dead);
    }
    (!lives_here()).then_some(Gone::Other)
}

/// The word that is cleared when the first thread has let the memory go, and what it holds until then.
/// None: nobody tells; it is to be looked every so often.
pub fn word() -> Option<(&'static AtomicU32, u32)> {
    match now_in_word()? {
        (word, 0) => {
            // The kernel wakes one: a thread that joins the first may be another.
            futex::wake(word, i32::MAX, true);
            None
        }
        holds => Some(holds),
    }
}

/// The word, and what it holds now; none where it cannot be read.
fn now_in_word() -> Option<(&'static AtomicU32, u32)> {
    let at = PROGRAM.word.load(SeqCst);
    if at == PROGRAM.own_word.as_ptr().cast() {
        // Memory of ours, which is always there.
        return Some((&PROGRAM.own_word, PROGRAM.own_word.load(SeqCst)));
    }
    let mut now = [0; 4];
    // In a child that a thread forked, or `clone` made, the word may be anywhere, and go.
    memory::look_at_own(at as usize, &mut now).ok()?;
    // SAFETY: a word that was just there, which is but a key to wait by.
    let word = unsafe { at.as_ref()? };
    Some((word, u32::from_ne_bytes(now)))
}

/// On a task of ours: ends the program, as nobody can serve its memory any more, and who shares that with it. One that
/// it has become by then is let live: that has nothing to do with this memory.
pub fn kill() {
    if is_gone().is_some() {
        return;
    }
    // First: the helper ends as soon as a task of it sees that the program has.
    let _ = proc::all(kill_sharer);
    kill_by(PROGRAM.pidfd.load(SeqCst).into());
}

/// Ends a process if it shares this memory, as the kernel's OOM killer does: the memory would stay as long as it. Where
/// kcmp(2) may not say whether it does, it is let live.
fn kill_sharer(pid: u32) {
    let own = std::process::id();
    let other = pid != own && pid != self::pid();
    let shares = || other && proc::share_memory(pid, own) == Some(true);
    if !shares() {
        return;
    }
    // SAFETY: no pointers.
    let Ok(fd) = (unsafe { raw::checked(libc::SYS_pidfd_open, [pid.into(), 0, 0, 0, 0, 0]) })
    else {
        return;
    };
    // The number may have been another's before.
    if shares() {
        kill_by(fd as c_long);
    }
    // SAFETY: opened above.
    let _ = unsafe { raw::call(libc::SYS_close, [fd as c_long, 0, 0, 0, 0, 0]) };
}

fn kill_by(pidfd: c_long) {
    // SAFETY: no pointers.
    unsafe {
        raw::call(
            libc::SYS_pidfd_send_signal,
            [pidfd, libc::SIGKILL.into(), 0, 0, 0, 0],
        )
    };
}

/// Whether the program uses the memory of the calling task. Where nothing tells: yes.
fn lives_here() -> bool {
    let (program, own) = (pid(), std::process::id());
    match proc::share_memory(program, own) {
        Some(true) => true,
        // The first thread may have ended and others go on: then it has no memory.
        Some(false) => {
            let here = |thread| match proc::share_memory(thread, own) {
                Some(false) => Continue(()),
                _ => Break(()),
            };
            proc::each_thread(program, here).map_or(true, |found| found.is_some())
        }
        // As in most containers, and for one that changed its user.
        None => (0..5).any(|_| !is_another(program, own)),
    }
}

/// Whether two processes have different memory, by what `/proc` shows of them. The images tell. Where they may not be
/// read, or addresses are not drawn, the word of the first thread does, which the kernel clears at an exec. Once that is
/// cleared, the sizes tell. Those are read one after the other while threads of the program map and unmap: only a size that
/// was the same before and after counts.
fn is_another(program: u32, own: u32) -> bool {
    let stats = [own, program, own].map(proc::stat_of);
    let [Some(before), Some(program), Some(after)] = stats else {
        return false;
    };
    let other_size = || before.size == after.size && ![0, before.size].contains(&program.size);
    let shown = before.image.is_some() && program.image.is_some();
    let first_thread_is_here = || now_in_word().is_some_and(|(_, now)| now != 0);
    shown && program.image != before.image || !first_thread_is_here() && other_size()
}
