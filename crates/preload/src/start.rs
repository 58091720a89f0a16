//! The constructor: the one place where the library's parts are started, in order.

use core::ffi::{c_char, c_int};

use crate::{exec, fork, malloc, next, refuse};

unsafe extern "C" {
    static mut environ: *const *const c_char;
}

/// glibc calls constructors with `main`'s arguments.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = construct;

extern "C" fn construct(_argc: c_int, _argv: *const *const c_char, envp: *const *const c_char) {
    // SAFETY: no thread but this runs yet. libc's own constructor, which sets `environ` to
    // the same value, comes after ours.
    unsafe {
        if environ.is_null() {
            environ = envp;
        }
    }
    next::resolve_all();
    // SAFETY: `envp` is the process's environment, complete and not yet changed.
    unsafe { exec::remember(envp) };
    refuse::remember();
    malloc::start();
    fork::register();
    ebb_pager::hooks::start();
}
