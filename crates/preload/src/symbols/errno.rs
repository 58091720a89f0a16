//! libc's convention for errors.

/// Runs a memory hook: `errno` changes on failure alone.
pub fn libc_result<T>(hook: impl FnOnce() -> Result<T, i32>) -> Result<T, ()> {
    // SAFETY: the location is this thread's and valid for its life.
    let errno = unsafe { &mut *libc::__errno_location() };
    let before = *errno;
    let result = hook();
    *errno = match result {
        Ok(_) => before,
        Err(code) => code,
    };
    result.map_err(drop)
}

/// Runs what the caller has not asked for: `errno` stays, which a wait for a lock of ours changes.
pub fn keeping_errno<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: the location is this thread's and valid for its life.
    let errno = unsafe { &mut *libc::__errno_location() };
    let before = *errno;
    let result = f();
    *errno = before;
    result
}
