//! Texts of errors for tasks of ours.
//!
//! libc translates them, under a lock of its own and by memory of the program's. In a program with one thread
//! libc's locks are not made for others, and that memory may be out. So a task of ours has the plain texts.
//! The standard library asks by this name; threads of the program get libc's answer.

use core::ffi::{c_char, c_int};

use ebb_sys::thread;

use crate::symbols::dlsym_next::DlsymNext;

type Text = unsafe extern "C" fn(c_int, *mut c_char, libc::size_t) -> c_int;

// SAFETY: the types are those of the manual page.
static STRERROR: DlsymNext<Text> = unsafe { DlsymNext::new(c"__xpg_strerror_r") };
// SAFETY: as above. Libc has it from 2.32 on.
static PLAIN: DlsymNext<unsafe extern "C" fn(c_int) -> *const c_char> =
    unsafe { DlsymNext::new(c"strerrordesc_np") };

pub fn resolve() {
    STRERROR.get();
    PLAIN.get();
}

/// # Safety
/// `strerror_r(3)`'s, as POSIX has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __xpg_strerror_r(
    code: c_int,
    buffer: *mut c_char,
    len: libc::size_t,
) -> c_int {
    // SAFETY: the caller's call as it stands; the buffer is of that length, and the text a string for good.
    unsafe {
        if !thread::is_ours() {
            return STRERROR
                .get()
                .map_or(libc::ENOSYS, |next| next(code, buffer, len));
        }
        let text = PLAIN.get().map_or(core::ptr::null(), |plain| plain(code));
        let text = if text.is_null() {
            c"unknown error".as_ptr()
        } else {
            text
        };
        let whole = libc::strlen(text) + 1;
        if len == 0 {
            return libc::ERANGE;
        }
        let part = whole.min(len);
        buffer.copy_from_nonoverlapping(text, part);
        buffer.add(part - 1).write(0);
        if whole > len { libc::ERANGE } else { 0 }
    }
}
