//! Robust mutexes: the kernel stores to those that a thread holds when it ends, and follows the links from one
//! to the next through them. By then it waits for no page: one that is out would never be marked, nor any
//! after it, and who waits for it would wait for ever. So their pages stay in memory, from the time they are made.

use core::ffi::c_int;

use ebb_pager::hooks;

use crate::symbols::dlsym_next::DlsymNext;

type PthreadMutexInit =
    unsafe extern "C" fn(*mut libc::pthread_mutex_t, *const libc::pthread_mutexattr_t) -> c_int;

// SAFETY: the type is that of the manual page.
static PTHREAD_MUTEX_INIT: DlsymNext<PthreadMutexInit> =
    unsafe { DlsymNext::new(c"pthread_mutex_init") };

pub fn resolve() {
    PTHREAD_MUTEX_INIT.get();
}

/// # Safety
/// `pthread_mutex_init(3)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_init(
    mutex: *mut libc::pthread_mutex_t,
    attributes: *const libc::pthread_mutexattr_t,
) -> c_int {
    let Some(next) = PTHREAD_MUTEX_INIT.get() else {
        return libc::ENOSYS;
    };
    // SAFETY: attributes given to pthread_mutex_init are initialised; the range is named only, and the call is
    // the caller's as it stands.
    unsafe {
        let mut robust = libc::PTHREAD_MUTEX_STALLED;
        if !attributes.is_null()
            && libc::pthread_mutexattr_getrobust(attributes, &mut robust) == 0
            && robust == libc::PTHREAD_MUTEX_ROBUST
        {
            hooks::exclude(mutex as usize, size_of::<libc::pthread_mutex_t>());
        }
        next(mutex, attributes)
    }
}
