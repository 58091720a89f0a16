//! Threads of the program: the pager learns of each as it starts and ends, and stacks that
//! the program brought itself are left out of paging.
//!
//! Threads that this library starts itself, by whatever way, are known by their entry lying
//! in our code, and pass untouched.

use core::ffi::{c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use ebb_pager::hooks;

use crate::malloc::{mi_free, mi_malloc};
use crate::next::Next;

type Entry = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
type C11Entry = unsafe extern "C" fn(*mut c_void) -> c_int;
type PthreadCreate = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    Entry,
    *mut c_void,
) -> c_int;
type ThrdCreate = unsafe extern "C" fn(*mut libc::pthread_t, C11Entry, *mut c_void) -> c_int;

// SAFETY: the types are those of the manual pages.
static PTHREAD_CREATE: Next<PthreadCreate> = unsafe { Next::new(c"pthread_create") };
// SAFETY: as above.
static THRD_CREATE: Next<ThrdCreate> = unsafe { Next::new(c"thrd_create") };

/// `thrd_error` and `thrd_nomem` of glibc's `<threads.h>`.
const THRD_ERROR: c_int = 2;
const THRD_NOMEM: c_int = 3;

unsafe extern "C" {
    // csrc/glue.c
    fn ebb_thread_boot(boot: *mut c_void) -> *mut c_void;
    fn ebb_c11_thread_boot(boot: *mut c_void) -> c_int;
    fn ebb_is_own_code(at: *const c_void) -> c_int;
}

/// `struct boot` of csrc/glue.c.
#[repr(C)]
struct Boot {
    start: *const c_void,
    arg: *mut c_void,
}

pub fn resolve() {
    PTHREAD_CREATE.get();
    THRD_CREATE.get();
}

/// The key whose destructor tells a thread's end; `NO_KEY` until made.
static EXIT_KEY: AtomicU32 = AtomicU32::new(NO_KEY);
const NO_KEY: u32 = u32::MAX;

/// Threads of the program, from before they start, so that the count is never 0 while one is
/// to come. libc ends the process with its last thread, but counts ours too.
static PROGRAM_THREADS: AtomicUsize = AtomicUsize::new(1);

/// In a forked child: the thread that forked is the only one. Whether it was before, too.
pub fn only_this() -> bool {
    PROGRAM_THREADS.swap(1, Ordering::Relaxed) == 1
}

/// libc runs the destructors of keys in this many rounds (`PTHREAD_DESTRUCTOR_ITERATIONS`).
const ROUNDS: usize = 4;

/// Makes the key, and sets it for the main thread. Being among the first of the process, it lies in the part of a thread's
/// key table that is always there, so setting it never allocates.
pub fn prepare() {
    let mut key = 0;
    // SAFETY: the destructor lives as long as the process (`-z nodelete`).
    if unsafe { libc::pthread_key_create(&mut key, Some(exit)) } == 0 {
        EXIT_KEY.store(key, Ordering::Relaxed);
        mark(1);
    }
}

/// Has the destructor run when this thread ends, with this round.
fn mark(round: usize) {
    let key = EXIT_KEY.load(Ordering::Relaxed);
    if key != NO_KEY {
        // SAFETY: the key was made.
        unsafe { libc::pthread_setspecific(key, ptr::without_provenance(round)) };
    }
}

/// First on each thread of the program; called from csrc/glue.c.
#[unsafe(no_mangle)]
extern "C" fn ebb_thread_enter() {
    mark(1);
}

/// Acts in the last round, behind the program's own destructors.
unsafe extern "C" fn exit(round: *mut c_void) {
    if (round as usize) < ROUNDS {
        return mark(round as usize + 1);
    }
    if PROGRAM_THREADS.fetch_sub(1, Ordering::AcqRel) == 1 {
        // SAFETY: what libc does where no thread of ours is left behind.
        unsafe { libc::exit(0) };
    }
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
    // SAFETY: looks at the address only.
    if unsafe { ebb_is_own_code(start as *const c_void) } != 0 {
        // SAFETY: the caller's call as it stands.
        return unsafe { next(thread, attributes, start, arg) };
    }
    if !attributes.is_null() {
        // SAFETY: attributes given to pthread_create are initialised.
        unsafe { exclude_given_stack(attributes) };
    }
    let boot = new_boot(start as *const c_void, arg);
    if boot.is_null() {
        return libc::EAGAIN;
    }
    // SAFETY: the caller's call, with our entry before its own; where no thread starts, the
    // boot block is still ours.
    unsafe {
        PROGRAM_THREADS.fetch_add(1, Ordering::Relaxed);
        let status = next(thread, attributes, ebb_thread_boot, boot);
        if status != 0 {
            PROGRAM_THREADS.fetch_sub(1, Ordering::Relaxed);
            mi_free(boot);
        }
        status
    }
}

/// # Safety
/// `thrd_create(3)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thrd_create(
    thread: *mut libc::pthread_t,
    start: C11Entry,
    arg: *mut c_void,
) -> c_int {
    let Some(next) = THRD_CREATE.get() else {
        return THRD_ERROR;
    };
    let boot = new_boot(start as *const c_void, arg);
    if boot.is_null() {
        return THRD_NOMEM;
    }
    // SAFETY: as for `pthread_create`.
    unsafe {
        PROGRAM_THREADS.fetch_add(1, Ordering::Relaxed);
        let status = next(thread, ebb_c11_thread_boot, boot);
        if status != 0 {
            PROGRAM_THREADS.fetch_sub(1, Ordering::Relaxed);
            mi_free(boot);
        }
        status
    }
}

fn new_boot(start: *const c_void, arg: *mut c_void) -> *mut c_void {
    // SAFETY: a fresh block of the size of what is written to it.
    unsafe {
        let boot = mi_malloc(size_of::<Boot>()).cast::<Boot>();
        if !boot.is_null() {
            boot.write(Boot { start, arg });
        }
        boot.cast()
    }
}

/// A stack of the program's own may lie in managed memory, and libc puts what it and the kernel have of the
/// thread on top of it: `errno`, and words that the kernel stores without being able to wait.
///
/// # Safety
/// `attributes` is initialised.
unsafe fn exclude_given_stack(attributes: *const libc::pthread_attr_t) {
    let (mut low, mut len) = (ptr::null_mut(), 0);
    // SAFETY: reads the attributes into two locals.
    let status = unsafe { libc::pthread_attr_getstack(attributes, &mut low, &mut len) };
    // With no stack set, glibc answers a range that ends at address 0.
    if status == 0 && !low.is_null() && (low as usize).wrapping_add(len) != 0 {
        // SAFETY: names the range only.
        unsafe { hooks::exclude(low as usize, len) };
    }
}
