//! Threads of the program as they start: growth is looked at, and a stack that the program brought stays in memory
//! while its thread lives.
//!
//! Such a thread begins in [`begin_on_given_stack`]: it tells the pager its number, by which the pager sees when it
//! has ended, and jumps to the program's entry. Both threads take our heap's lock on a stack of ours: service needs that
//! lock, and the program's stack may be out. No frame of ours is left, which an unwinder of the program's, or of
//! `pthread_exit`, would come upon.

use core::ffi::{c_int, c_void};
use core::ptr;

use crate::symbols::errno::keeping_errno;
use ebb_pager::hooks;
use ebb_sys::stack;

use crate::malloc::blocks;
use crate::symbols::dlsym_next::DlsymNext;

type Entry = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
type PthreadCreate = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    Entry,
    *mut c_void,
) -> c_int;

// SAFETY: the type is that of the manual page.
static PTHREAD_CREATE: DlsymNext<PthreadCreate> = unsafe { DlsymNext::new(c"pthread_create") };

pub fn resolve() {
    PTHREAD_CREATE.get();
}

/// # Safety
/// `pthread_create(3)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Entry,
    arg: *mut c_void,
) -> c_int {
    let Some(next) = PTHREAD_CREATE.get() else {
        return libc::ENOSYS;
    };
    blocks::start_before_threads();
    keeping_errno(hooks::admit_thread);
    // SAFETY: attributes given to pthread_create are initialised.
    let given = unsafe { hold_given_stack(attributes) };
    let Some(start_of_stack) = given else {
        // SAFETY: the caller's call as it stands.
        return unsafe { next(thread, attributes, start, arg) };
    };
    let beginning = Beginning {
        start,
        arg,
        stack: start_of_stack,
    };
    let beginning = stack::borrow(move || Box::into_raw(Box::new(beginning)));
    // SAFETY: the caller's call, but for the entry: it does what the caller's would.
    let failed = unsafe { next(thread, attributes, begin_on_given_stack, beginning.cast()) };
    if failed != 0 {
        // SAFETY: there is no thread that would take it.
        stack::borrow(move || drop(unsafe { Box::from_raw(beginning) }));
        keeping_errno(|| hooks::stack_is_unused(start_of_stack));
    }
    failed
}

/// A stack of the program's own may lie in managed memory. libc puts its and the kernel's data of the thread on top
/// of it: `errno`, and words that the kernel stores without being able to wait. Its first byte, if it is such.
///
/// # Safety
/// `attributes` is null or initialised.
unsafe fn hold_given_stack(attributes: *const libc::pthread_attr_t) -> Option<usize> {
    if attributes.is_null() {
        return None;
    }
    let (mut low, mut len) = (ptr::null_mut(), 0);
    // SAFETY: reads the attributes into two locals.
    let status = unsafe { libc::pthread_attr_getstack(attributes, &mut low, &mut len) };
    let low = low as usize;
    // With no stack set, glibc answers a range that ends at address 0.
    let is_given = status == 0 && low != 0 && low.wrapping_add(len) != 0;
    // SAFETY: names the range only.
    (is_given && keeping_errno(|| unsafe { hooks::hold_stack(low, len) })).then_some(low)
}

/// How a thread on such a stack begins.
struct Beginning {
    start: Entry,
    arg: *mut c_void,
    stack: usize,
}

/// An entry and its argument, in two registers.
#[repr(C)]
struct Program {
    start: Entry,
    arg: *mut c_void,
}

/// The thread tells of itself.
///
/// # Safety
/// A [`Beginning`] of its own.
unsafe extern "C" fn tell(beginning: *mut Beginning) -> Program {
    // SAFETY: the caller's promise.
    let Beginning { start, arg, stack } =
        stack::borrow(move || *unsafe { Box::from_raw(beginning) });
    keeping_errno(|| hooks::stack_begins(stack));
    Program { start, arg }
}

/// Where such a thread begins.
#[unsafe(naked)]
unsafe extern "C" fn begin_on_given_stack(beginning: *mut c_void) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(
        "sub rsp, 8",
        "call {tell}",
        "add rsp, 8",
        "mov rdi, rdx",
        "jmp rax",
        tell = sym tell,
    );
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!(
        "stp x29, x30, [sp, #-16]!",
        "bl {tell}",
        "ldp x29, x30, [sp], #16",
        "mov x9, x0",
        "mov x0, x1",
        "br x9",
        tell = sym tell,
    );
}
