//! Robust mutexes: the kernel stores to those that a thread holds when it ends, and follows the links from one
//! to the next through them. By then it waits for no page: one that is out would never be marked, nor any
//! after it, and who waits for it would wait for ever. So their pages stay in memory, from the time they are made until
//! they are destroyed.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};

use ebb_pager::hooks;

use crate::symbols::dlsym_next::DlsymNext;
use crate::symbols::errno::keeping_errno;

type PthreadMutexInit =
    unsafe extern "C" fn(*mut libc::pthread_mutex_t, *const libc::pthread_mutexattr_t) -> c_int;

// SAFETY: the type is that of the manual page.
static PTHREAD_MUTEX_INIT: DlsymNext<PthreadMutexInit> =
    unsafe { DlsymNext::new(c"pthread_mutex_init") };

type PthreadMutexDestroy = unsafe extern "C" fn(*mut libc::pthread_mutex_t) -> c_int;

// SAFETY: the type is that of the manual page.
static PTHREAD_MUTEX_DESTROY: DlsymNext<PthreadMutexDestroy> =
    unsafe { DlsymNext::new(c"pthread_mutex_destroy") };

/// Flag: there was a robust mutex.
static ANY: AtomicBool = AtomicBool::new(false);

pub fn resolve() {
    PTHREAD_MUTEX_INIT.get();
    PTHREAD_MUTEX_DESTROY.get();
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
            ANY.store(true, Ordering::Relaxed);
            keeping_errno(|| hooks::hold_mutex(mutex as usize));
        }
        next(mutex, attributes)
    }
}

/// # Safety
/// `pthread_mutex_destroy(3)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_destroy(mutex: *mut libc::pthread_mutex_t) -> c_int {
    let Some(next) = PTHREAD_MUTEX_DESTROY.get() else {
        return libc::ENOSYS;
    };
    // SAFETY: the caller's call as it stands.
    let failed = unsafe { next(mutex) };
    if failed == 0 && ANY.load(Ordering::Relaxed) {
        keeping_errno(|| hooks::mutex_is_gone(mutex as usize));
    }
    failed
}
