//! The constructor: the one place where the library's parts are started, in order.

use core::ffi::{c_char, c_int};

use ebb_sys::elf;

use crate::malloc::family;
use crate::memory::calls;
use crate::process::{
    credentials, environment, exec, exec_policy, fork, own_number, pthread_create, robust_mutex,
};
use crate::symbols::{dlopen, strerror};
use crate::syscall;

unsafe extern "C" {
    static mut environ: *const *const c_char;
}

/// glibc calls constructors with `main`'s arguments.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = construct;

// Beside the pager's part of the start: a small process loads few pages of code.
#[unsafe(link_section = ".text.startup")]
extern "C" fn construct(_argc: c_int, _argv: *const *const c_char, envp: *const *const c_char) {
    // SAFETY: no thread but this runs yet. libc's own constructor, which sets `environ` to
    // the same value, comes after ours.
    unsafe {
        if environ.is_null() {
            environ = envp;
        }
    }
    resolve_all();
    // SAFETY: `envp` is the process's environment, complete and not yet changed; the kernel has put it on the stack.
    unsafe {
        own_number::put(envp.cast_mut());
        environment::remember(envp);
    }
    exec_policy::remember();
    elf::note_loader();
    family::start();
    fork::register();
    ebb_pager::hooks::start();
}

/// Looks up every name now, while taking the loader's lock can harm nobody.
fn resolve_all() {
    dlopen::resolve();
    exec::resolve();
    fork::resolve();
    calls::resolve();
    robust_mutex::resolve();
    strerror::resolve();
    pthread_create::resolve();
    credentials::resolve();
    syscall::resolve();
}
