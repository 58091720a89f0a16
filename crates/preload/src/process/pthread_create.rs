//! Threads of the program as they start: growth is looked at, and a stack that the program brought is left out of
//! paging.

use core::ffi::{c_int, c_void};
use core::ptr;

use crate::symbols::errno::keeping_errno;
use ebb_pager::hooks;

use crate::malloc::family;
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
    family::start_before_threads();
    keeping_errno(hooks::admit_thread);
    if !attributes.is_null() {
        // SAFETY: attributes given to pthread_create are initialised.
        unsafe { exclude_given_stack(attributes) };
    }
    // SAFETY: the caller's call as it stands.
    unsafe { next(thread, attributes, start, arg) }
}

/// A stack of the program's own may lie in managed memory. libc puts its and the kernel's data of the thread on top
/// of it: `errno`, and words that the kernel stores without being able to wait.
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
