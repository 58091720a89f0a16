//! libc's convention for errors.

use core::ffi::c_int;

/// The answer of a call that libc does not have: `errno` says so.
pub fn not_there() -> c_int {
    // SAFETY: the location is this thread's and valid for its life.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    -1
}

/// Runs a memory hook: `errno` changes on failure alone.
pub fn libc_result<T>(hook: impl FnOnce() -> Result<T, i32>) -> Result<T, ()> {
    keeping_errno(hook).map_err(|code| {
        // SAFETY: the location is this thread's and valid for its life.
        unsafe { *libc::__errno_location() = code };
    })
}

/// Runs what the caller has not asked for: `errno` stays, which a wait for a lock of ours changes.
pub fn keeping_errno<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: as above.
    let errno = unsafe { &mut *libc::__errno_location() };
    let before = *errno;
    let result = f();
    *errno = before;
    result
}
