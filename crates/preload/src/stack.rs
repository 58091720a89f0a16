//! Stacks that the program makes itself, of memory that may be managed: those of contexts and of
//! signal handlers. A thread that runs on such a stack may hold the pager's lock, and must not
//! fault then; so these stacks are left out of paging. Those of threads are seen to in `thread`.
//!
//! What it does not do: see stacks that a program switches to by instructions of its own, as some
//! coroutine libraries do. Who takes the lock on one of these looks after it (the pager's `footing`).

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use ebb_pager::hooks;

use crate::next::Next;

type SigAltStack = unsafe extern "C" fn(*const libc::stack_t, *mut libc::stack_t) -> c_int;

// SAFETY: the type is that of the manual page.
static SIGALTSTACK: Next<SigAltStack> = unsafe { Next::new(c"sigaltstack") };
/// libc's `makecontext`. It is variadic, so it is jumped to and has no type here.
static MAKECONTEXT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

pub fn resolve() {
    SIGALTSTACK.get();
    // SAFETY: a lookup by name.
    let at = unsafe { libc::dlsym(libc::RTLD_NEXT, c"makecontext".as_ptr()) };
    MAKECONTEXT.store(at, Ordering::Relaxed);
}

fn exclude(stack: &libc::stack_t) {
    if !stack.ss_sp.is_null() && stack.ss_flags & libc::SS_DISABLE == 0 {
        // SAFETY: names the range only.
        unsafe { hooks::exclude(stack.ss_sp as usize, stack.ss_size) };
    }
}

/// # Safety
/// `sigaltstack(2)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaltstack(new: *const libc::stack_t, old: *mut libc::stack_t) -> c_int {
    // SAFETY: the caller's arguments, of a call of the type declared.
    unsafe {
        if let Some(stack) = new.as_ref() {
            exclude(stack);
        }
        match SIGALTSTACK.get() {
            Some(next) => next(new, old),
            None => {
                *libc::__errno_location() = libc::ENOSYS;
                -1
            }
        }
    }
}

/// # Safety
/// `context` is the first argument of `makecontext(3)`.
#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn made(context: *const libc::ucontext_t) {
    // SAFETY: the caller's contract: it has its stack by now.
    exclude(unsafe { &(*context).uc_stack });
}

/// Looks at the stack, and goes on in libc's with all arguments where they were.
///
/// # Safety
/// `makecontext(3)`'s.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn makecontext() {
    core::arch::naked_asm!(
        "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
        "call {made}",
        "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
        "jmp qword ptr [rip + {next}]",
        made = sym made,
        next = sym MAKECONTEXT,
    )
}
