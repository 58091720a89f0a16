//! Catches the system call by which libc's `fork` copies the process.
//!
//! Between the handlers of `pthread_atfork` and that call libc takes locks and looks at memory of its own.
//! After the call it does so again, in the child. Only libc knows which memory that is. The process has to
//! be at rest only for that one call. The kernel's Syscall User Dispatch (`prctl(2)`,
//! PR_SET_SYSCALL_USER_DISPATCH) makes it possible. On a thread for which it is armed, a system call from
//! outside this library's code becomes a SIGSYS instead, and the handler makes the call:
//!
//! 1. [`arm`], on the thread that is about to fork: all signals but SIGSYS are blocked, as a handler of the
//!    program's would make system calls too, and fork. The mask that libc sets meanwhile is kept beside.
//! 2. The handler goes to a stack of ours (`stack`). The caller of `arm` gave a function that makes the
//!    call which copies the process; the trap is disarmed before. Every other call is made as it is.
//! 3. The handler leaves that stack, and tells the caller of `arm`. Only now may another thread arm, which uses
//!    the same stack.
//! 4. The handler returns with the call's result and the mask that libc believes to have: in the parent and in
//!    the child. So the first code that runs in a child is ours, and the program's comes when that is done.
//!
//! Protocol: one thread at a time, which the caller sees to. Not here: calls that share the memory, which
//! never come here; a dispatch of the program's own, which the kernel does not tell of: it is off after a fork.

use crate::Errno;
use crate::kernel::raw;
use crate::kernel::signal::{self, Action, Blocked, set_action};
use crate::process::stack;
use libc::{c_int, c_long};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::SeqCst};

/// A system call that copies the process.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// SYS_fork, SYS_clone or SYS_clone3.
    pub number: c_long,
    /// The arguments.
    pub args: [c_long; 6],
}

/// How it went, in the process that returns.
#[derive(Clone, Copy, Debug)]
pub struct Copied {
    /// The result of the call: in the child 0, an error negated.
    pub result: c_long,
    /// The place where the stack of who returns is; 0: as it was.
    pub stack: usize,
}

/// What is done by who armed.
#[derive(Clone, Copy)]
pub struct Forking {
    /// Makes the call.
    pub copy: unsafe fn(Call) -> Copied,
    /// Called when all of that is over, in parent and child: another thread may arm.
    pub over: extern "C" fn(),
}

const ALLOW: u8 = 0;
const BLOCK: u8 = 1;

/// `si_code` of a signal by the dispatch.
const USER_DISPATCH: i32 = 2;
const ALL_BUT_SIGSYS: u64 = !(1 << (libc::SIGSYS - 1));

/// Of the thread that forks.
struct Armed {
    forking: Option<Forking>,
    /// The mask that the program believes to have.
    mask: u64,
    /// The action of SIGSYS before.
    before: Action,
}

/// The trap.
struct Trap {
    /// The end of the stack that the handler goes to.
    top: AtomicUsize,
    /// Read by the kernel before each system call.
    selector: AtomicU8,
    /// The thread for which it is armed, by its control block; 0: none. Others may have a dispatch of the program's own.
    thread: AtomicUsize,
    armed: UnsafeCell<Armed>,
}
// SAFETY: only the thread for which it is armed touches `armed`, and one is at a time.
unsafe impl Sync for Trap {}

/// One for the process: a signal handler finds it by its symbol, and the kernel reads the selector.
static TRAP: Trap = Trap {
    top: AtomicUsize::new(0),
    selector: AtomicU8::new(ALLOW),
    thread: AtomicUsize::new(0),
    armed: UnsafeCell::new(Armed {
        forking: None,
        mask: 0,
        before: Action::NOTHING,
    }),
};

/// Catches the calling thread's next call that copies the process, and has `forking` make it. The caller has blocked
/// all signals; the mask from before comes back with that call, or with what [`disarm`] returns.
///
/// # Errors
/// The system does not allow it: the signals are as the caller had them.
///
/// # Safety
/// No other thread does so before this one's call is over ([`Forking::over`]) or [`disarm`]ed. The thread makes no system call
/// of its own but what libc's forking functions do.
pub unsafe fn arm(forking: Forking, signals: Blocked) -> Result<(), Blocked> {
    TRAP.top.store(stack::of_fork(), SeqCst);
    TRAP.thread.store(control_block(), SeqCst);
    let (start, len) = own_code();
    // SAFETY: by the caller's contract this thread alone uses what is armed; the structures are the kernel's, and
    // the range is of this library's code.
    unsafe {
        let armed = &mut *TRAP.armed.get();
        armed.forking = Some(forking);
        armed.mask = signals.before();
        // Known before another thread can come to our handler.
        armed.before = set_action(libc::SIGSYS, None);
        let action = Action::new(entry as *const () as usize, libc::SA_SIGINFO, u64::MAX);
        set_action(libc::SIGSYS, Some(&action));
        signal::swap(ALL_BUT_SIGSYS);
        TRAP.selector.store(BLOCK, SeqCst);
        if dispatch(ON, start, len).is_err() {
            release(armed);
            signal::swap(u64::MAX);
            return Err(signals);
        }
        core::mem::forget(signals);
        Ok(())
    }
}

/// The calling thread makes its system calls itself again. If it was armed: its signals, still blocked.
///
/// # Safety
/// It is the one that armed last.
pub unsafe fn disarm() -> Option<Blocked> {
    // SAFETY: by the caller's contract.
    unsafe {
        let armed = &mut *TRAP.armed.get();
        armed.forking?;
        release(armed);
        signal::swap(u64::MAX);
        Some(Blocked::until(armed.mask))
    }
}

/// All but the mask is as it was.
///
/// # Safety
/// On the thread for which it was armed.
unsafe fn release(armed: &mut Armed) {
    TRAP.selector.store(ALLOW, SeqCst);
    armed.forking = None;
    // SAFETY: what was there before, unless another thread has set something else meanwhile.
    unsafe {
        let _ = dispatch(OFF, 0, 0);
        if set_action(libc::SIGSYS, None).handler == entry as *const () as usize {
            set_action(libc::SIGSYS, Some(&armed.before));
        }
    }
    TRAP.thread.store(0, SeqCst);
}

/// The calling thread's control block, whose first word is its own address.
fn control_block() -> usize {
    let at;
    // SAFETY: every thread that runs code of libc has one.
    unsafe {
        core::arch::asm!("mov {}, qword ptr fs:[0]", out(reg) at, options(nostack, preserves_flags, readonly));
    }
    at
}

/// The code of what this is linked into: its start and length.
fn own_code() -> (usize, usize) {
    unsafe extern "C" {
        static __ehdr_start: u8;
        static _etext: u8;
    }
    let (start, end) = (&raw const __ehdr_start as usize, &raw const _etext as usize);
    (start, end - start)
}

const OFF: c_long = 0;
const ON: c_long = 1;

/// # Safety
/// On: the selector says what is meant.
unsafe fn dispatch(on: c_long, start: usize, len: usize) -> Result<(), Errno> {
    const SET: c_long = 59;
    let selector = if on == ON {
        TRAP.selector.as_ptr() as c_long
    } else {
        0
    };
    let args = [SET, on, start as c_long, len as c_long, selector, 0];
    // SAFETY: the selector lives as long as the library.
    unsafe { raw::checked(libc::SYS_prctl, args) }.map(|_| ())
}

/// The handler: goes to the stack of ours where the signal is by the dispatch, on the thread for which it is armed.
#[unsafe(naked)]
unsafe extern "C" fn entry(_: c_int, _: *mut libc::siginfo_t, _: *mut libc::ucontext_t) {
    core::arch::naked_asm!(
        "cmp dword ptr [rsi + 8], {by_dispatch}",
        "jne {other}",
        "mov rax, qword ptr fs:[0]",
        "cmp rax, qword ptr [rip + {trap} + {thread}]",
        "jne {other}",
        "push rbp",
        "mov rbp, rsp",
        "mov rsp, qword ptr [rip + {trap} + {top}]",
        "call {caught}",
        "mov rsp, rbp",
        "test rax, rax",
        "jz 2f",
        "call rax",
        "2:",
        "pop rbp",
        "ret",
        by_dispatch = const USER_DISPATCH,
        other = sym other,
        trap = sym TRAP,
        top = const core::mem::offset_of!(Trap, top),
        thread = const core::mem::offset_of!(Trap, thread),
        caught = sym caught,
    )
}

/// What is to be called on the stack of the thread, if anything.
///
/// # Safety
/// A handler's arguments.
unsafe extern "C" fn caught(
    _: c_int,
    _: *mut libc::siginfo_t,
    context: *mut libc::ucontext_t,
) -> Option<extern "C" fn()> {
    // SAFETY: the kernel's context of this thread, for which the trap is armed.
    unsafe {
        let registers = &mut (*context).uc_mcontext.gregs;
        let at = |n: c_int| registers[n as usize];
        let args = [
            at(libc::REG_RDI),
            at(libc::REG_RSI),
            at(libc::REG_RDX),
            at(libc::REG_R10),
            at(libc::REG_R8),
            at(libc::REG_R9),
        ];
        let number = at(libc::REG_RAX);
        let mut over = None;
        let result = match number {
            libc::SYS_rt_sigprocmask => change_mask(args),
            libc::SYS_fork | libc::SYS_clone | libc::SYS_clone3 => {
                let armed = &mut *TRAP.armed.get();
                let forking = armed.forking.expect("it was armed");
                let mask = armed.mask;
                // Nothing of it is to be left in the child. (This handler has all signals blocked.)
                release(armed);
                let Copied { result, stack } = (forking.copy)(Call { number, args });
                over = Some(forking.over);
                if stack != 0 {
                    registers[libc::REG_RSP as usize] = stack as i64;
                }
                (&raw mut (*context).uc_sigmask).cast::<u64>().write(mask);
                result
            }
            _ => raw::call(number, args),
        };
        registers[libc::REG_RAX as usize] = result;
        over
    }
}

/// `rt_sigprocmask` of what the program believes to have.
///
/// # Safety
/// The caller's arguments; on the thread for which it is armed.
unsafe fn change_mask([how, new, old, ..]: [c_long; 6]) -> c_long {
    // SAFETY: libc's own words, where they are given.
    unsafe {
        let mask = &mut (*TRAP.armed.get()).mask;
        let before = *mask;
        if let Some(new) = (new as *const u64).as_ref() {
            match how as c_int {
                libc::SIG_BLOCK => *mask |= new,
                libc::SIG_UNBLOCK => *mask &= !new,
                libc::SIG_SETMASK => *mask = *new,
                _ => return -c_long::from(libc::EINVAL),
            }
        }
        if let Some(old) = (old as *mut u64).as_mut() {
            *old = before;
        }
    }
    0
}

/// A SIGSYS of the program's own, on another thread: as it would have been.
///
/// # Safety
/// A handler's arguments.
unsafe extern "C" fn other(
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::ucontext_t,
) {
    type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::ucontext_t);
    // SAFETY: written before this handler was set, by the thread that forks; what the program set is a function.
    unsafe {
        let before = (*TRAP.armed.get()).before;
        match before.handler {
            libc::SIG_IGN => {}
            libc::SIG_DFL => {
                set_action(libc::SIGSYS, Some(&before));
                libc::raise(signal);
            }
            handler => {
                let handler: Handler = core::mem::transmute(handler);
                handler(signal, info, context);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    static CAUGHT: AtomicU32 = AtomicU32::new(0);

    unsafe fn copy(call: Call) -> Copied {
        CAUGHT.fetch_add(1, SeqCst);
        // SAFETY: the caller's call.
        let result = unsafe { raw::call(call.number, call.args) };
        Copied { result, stack: 0 }
    }

    static OVER: AtomicU32 = AtomicU32::new(0);

    /// Nobody is on the stack that the next thread to arm uses.
    extern "C" fn over() {
        let here = 0u8;
        let below = stack::of_fork().wrapping_sub(&raw const here as usize);
        assert!(below > stack::SIZE, "{below} bytes below the top");
        OVER.fetch_add(1, SeqCst);
    }

    const FORKING: Forking = Forking { copy, over };

    /// Forks; the child ends with what `f` says.
    fn forked(f: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the child does little, and ends.
        unsafe {
            assert!(arm(FORKING, Blocked::all()).is_ok(), "the system allows it");
            match libc::fork() {
                0 => libc::_exit(f()),
                child => {
                    assert!(child > 0 && disarm().is_none());
                    let mut status = 0;
                    assert_eq!(libc::waitpid(child, &mut status, 0), child);
                    libc::WEXITSTATUS(status)
                }
            }
        }
    }

    fn mask() -> u64 {
        let mut mask = 0u64;
        let args = [0, 0, (&raw mut mask) as c_long, 8, 0, 0];
        // SAFETY: one word.
        unsafe { raw::call(libc::SYS_rt_sigprocmask, args) };
        mask
    }

    /// One for the process, so one test.
    #[test]
    fn the_call_is_caught_and_all_is_as_before() {
        let before = mask();
        for n in 1..=3 {
            assert_eq!(forked(|| i32::from(mask() == before) + 40), 41);
            assert_eq!((CAUGHT.load(SeqCst), OVER.load(SeqCst)), (n, n));
            assert_eq!(mask(), before);
        }
        // SAFETY: armed by this thread; no call follows.
        unsafe {
            assert!(arm(FORKING, Blocked::all()).is_ok(), "the system allows it");
            assert!(disarm().is_some() && disarm().is_none());
        }
        assert_eq!((CAUGHT.load(SeqCst), mask()), (3, before));
    }
}
