//! Stacks of ours for threads of the program.
//!
//! A program makes its memory calls on whatever stack it has: of 8 KiB, with its own data right below, in
//! memory that is paged. The pager's part of such a call needs more than that, and must not fault while it
//! holds the pager's lock. So it is done on a stack from here: [`borrow`] blocks signals, takes a free one,
//! runs a closure on it, and comes back. The closure is moved there with all that it owns (`'static`: it
//! refers to nothing on the stack that was left). Its result is moved back when it is over.
//!
//! - Signals are blocked from before a stack is taken until after it is free again. A handler would run
//!   there, need any amount of it, or leave it by a jump and never give it back. So a closure does not wait
//!   for long.
//! - A thread that finds none waits. A holder waits at most for threads of ours, or for the lock of another
//!   holder, so a stack will become free.
//! - The lowest page of each is a guard. The memory is this library's own, zero until it is used, and the
//!   first that is free is taken, so that mostly one of them is ever touched.
//! - One more is kept for the thread that forks (`syscall_trap`), of which there is one at a time.
//! - A thread on a borrowed stack is the program's: its descriptors and its user are.
//! - Debuggers and profilers see through: `switch` says where the caller's frame is.
//!
//! Not here: giving back the stack of a thread that is killed alone. A child that shares its parent's
//! memory (`vfork`) may be, and would keep what it had.

use crate::kernel::futex;
use crate::kernel::signal::Blocked;
use crate::kernel::tasks::is_ours;
use crate::memory;
use std::cell::UnsafeCell;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

/// Bytes of a stack, its guard included.
pub(crate) const SIZE: usize = 64 << 10;
/// As many threads at a time.
const STACKS: usize = u32::BITS as usize;
/// The one of the thread that forks.
const FORKS: usize = STACKS;

#[repr(C, align(4096))]
struct StackMemory(UnsafeCell<[[MaybeUninit<u8>; SIZE]; STACKS + 1]>);
// SAFETY: only who has taken a stack uses its memory.
unsafe impl Sync for StackMemory {}

/// The stacks of this process.
struct Stacks {
    memory: StackMemory,
    /// Stacks in use, each a bit.
    taken: AtomicU32,
    /// Stacks that have their guard.
    guarded: AtomicU32,
}

/// One for the process: a thread finds its stack from its stack pointer, before anything could be allocated.
static STACK_SET: Stacks = Stacks {
    memory: StackMemory(UnsafeCell::new([[MaybeUninit::zeroed(); SIZE]; STACKS + 1])),
    taken: AtomicU32::new(0),
    guarded: AtomicU32::new(0),
};

/// How long a thread waits before it looks again: woken it is when one is free.
const LOOK: Duration = Duration::from_millis(20);

/// The number of the stack that the caller is on.
#[inline(always)]
fn number() -> Option<usize> {
    let here = 0u8;
    let number = (&raw const here as usize).wrapping_sub(STACK_SET.memory.0.get() as usize) / SIZE;
    (number <= FORKS).then_some(number)
}

/// Whether the caller runs on one of these stacks.
pub fn is_borrowed() -> bool {
    number().is_some()
}

/// Runs `f` on a stack of ours, with every signal blocked. Threads that are on such a stack already, and
/// threads of ours, run it where they are.
#[inline(always)]
pub fn borrow<R: 'static, F: FnOnce() -> R + 'static>(f: F) -> R {
    if is_borrowed() || is_ours() {
        return f();
    }
    let stack = Borrowed::take();
    let mut job = Job {
        f: ManuallyDrop::new(f),
        result: MaybeUninit::uninit(),
    };
    // SAFETY: the stack is ours alone until it is dropped; `run` is of the type that it is called by, and
    // takes `f` once and leaves a result.
    let result = unsafe {
        switch(run::<F, R>, (&raw mut job).cast(), stack.top());
        job.result.assume_init()
    };
    drop(stack);
    result
}

/// In a forked child, by the thread that forked: nobody else has a stack.
pub fn reset_in_child() {
    let own = number().filter(|n| *n != FORKS);
    STACK_SET.taken.store(own.map_or(0, |n| 1 << n), SeqCst);
}

/// Where the stack ends that is kept for the thread that forks. It has no guard: it is the last.
pub(crate) fn of_fork() -> usize {
    STACK_SET.memory.0.get() as usize + (FORKS + 1) * SIZE
}

struct Job<F, R> {
    f: ManuallyDrop<F>,
    result: MaybeUninit<R>,
}

/// First on the borrowed stack. A panic does not leave it: `extern "C"`.
extern "C" fn run<F: FnOnce() -> R, R>(job: *mut libc::c_void) {
    let job = job.cast::<Job<F, R>>();
    // SAFETY: `borrow` made it, and waits; nothing else takes the closure, which is here from now on.
    unsafe {
        let f = (&raw mut (*job).f).read();
        let result = ManuallyDrop::into_inner(f)();
        (&raw mut (*job).result).write(MaybeUninit::new(result));
    }
}

/// A stack, as long as this lives.
struct Borrowed {
    number: usize,
    _signals: Blocked,
}

impl Borrowed {
    #[inline(never)]
    fn take() -> Self {
        loop {
            let signals = Blocked::all();
            let taken = STACK_SET.taken.load(SeqCst);
            let number = taken.trailing_ones() as usize;
            if number == STACKS {
                drop(signals);
                futex::wait(&STACK_SET.taken, taken, Some(LOOK), false);
                continue;
            }
            let with = taken | 1 << number;
            if STACK_SET
                .taken
                .compare_exchange(taken, with, SeqCst, SeqCst)
                .is_ok()
            {
                guard(number);
                return Self {
                    number,
                    _signals: signals,
                };
            }
        }
    }

    fn top(&self) -> *mut libc::c_void {
        (STACK_SET.memory.0.get() as usize + (self.number + 1) * SIZE) as *mut libc::c_void
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        let before = STACK_SET.taken.fetch_and(!(1 << self.number), SeqCst);
        if before == u32::MAX {
            futex::wake(&STACK_SET.taken, i32::MAX, false);
        }
    }
}

/// Makes the lowest page of a stack one that nobody can write. It may be read: collectors of garbage look at all data of all
/// libraries for pointers (libgc). Where a process has too many mappings it does without.
fn guard(number: usize) {
    let bit = 1 << number;
    if STACK_SET.guarded.load(SeqCst) & bit == 0 {
        let start = STACK_SET.memory.0.get() as usize + number * SIZE;
        // SAFETY: of a stack that the caller has taken and not used yet.
        let _ = unsafe { memory::mprotect(start, memory::PAGE, libc::PROT_READ) };
        STACK_SET.guarded.fetch_or(bit, SeqCst);
    }
}

/// Calls `run(job)` with the stack pointer at `top`. An unwinder finds its frame at the call site. The
/// frame is marked as a signal's, or gdb would take the jump to another stack for damage.
///
/// Requires: `top` is aligned to 16, and nobody uses what is below.
#[unsafe(naked)]
unsafe extern "C" fn switch(
    run: extern "C" fn(*mut libc::c_void),
    job: *mut libc::c_void,
    top: *mut libc::c_void,
) {
    core::arch::naked_asm!(
        ".cfi_startproc",
        ".cfi_signal_frame",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsp, rdx",
        "call rax",
        "mov rsp, rbp",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn a_closure_runs_on_the_other_stack_and_comes_back() {
        let here = 0u8;
        let outer = &raw const here as usize;
        let (inner, nested, text) = borrow(|| {
            let here = 0u8;
            let nested = borrow(number);
            (&raw const here as usize, (number(), nested), "x".repeat(3))
        });
        assert!(!is_borrowed());
        assert_eq!(text, "xxx");
        assert!(inner.abs_diff(outer) > SIZE);
        assert!(nested.0.is_some() && nested.0 == nested.1, "{nested:?}");
    }

    /// More threads than there are stacks, each of which is used by one at a time.
    #[test]
    fn all_get_their_turn() {
        static INSIDE: [AtomicUsize; STACKS] = [const { AtomicUsize::new(0) }; STACKS];
        let done = Arc::new(AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 * STACKS {
                let done = done.clone();
                scope.spawn(move || {
                    for _ in 0..20 {
                        let done = done.clone();
                        borrow(move || {
                            let inside = &INSIDE[number().expect("on one of them")];
                            assert_eq!(inside.fetch_add(1, SeqCst), 0);
                            std::thread::sleep(Duration::from_micros(200));
                            inside.fetch_sub(1, SeqCst);
                            done.fetch_add(1, SeqCst);
                        });
                    }
                });
            }
        });
        assert_eq!(done.load(SeqCst), 3 * STACKS * 20);
    }

    /// The frames of who called are found from there.
    #[test]
    fn an_unwinder_sees_through() {
        let trace = borrow(|| std::backtrace::Backtrace::force_capture().to_string());
        assert!(trace.contains("an_unwinder_sees_through"), "{trace}");
        let frames = trace.matches("an_unwinder_sees_through").count();
        assert!(frames > 1, "the closure alone is there:\n{trace}");
    }
}
