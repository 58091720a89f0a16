//! `dlopen(3)` without RTLD_DEEPBIND.
//!
//! A library opened with that flag (PHP opens its extensions so) looks names up in its own dependencies first. It
//! would call libc's `malloc`, `free` and `mmap`, with blocks that went to and fro between it and the program.
//! Without the flag it finds what the rest of the program does.
//!
//! libc's function asks by its return address who calls, for that one's search path and namespace:
//! so it is jumped to, not called.

use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::AtomicPtr;

use crate::symbols::dlsym_next;

/// libc's function, once looked up.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

pub fn resolve() {
    look_up();
}

extern "C" fn look_up() -> *mut c_void {
    dlsym_next::known(&NEXT, c"dlopen")
}

/// # Safety
/// As libc's: constructors of the library run.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen(file: *const c_char, mode: c_int) -> *mut c_void {
    // Two arguments, in rdi and rsi, are all that has to outlive the lookup; three words on the
    // stack align it for the call.
    core::arch::naked_asm!(
        "and esi, {keep}",
        "mov rax, [rip + {next}]",
        "test rax, rax",
        "jnz 2f",
        "push rdi",
        "push rsi",
        "push rax",
        "call {look_up}",
        "pop rcx",
        "pop rsi",
        "pop rdi",
        "2:",
        "jmp rax",
        keep = const !libc::RTLD_DEEPBIND,
        next = sym NEXT,
        look_up = sym look_up,
    )
}
