//! `setuid(3)` and its kin: threads of this library's that libc does not know become the same
//! (`ebb_sys::credentials`).

use core::ffi::{CStr, c_char, c_int};

use ebb_pager::hooks;

use crate::symbols::dlsym_next::DlsymNext;
use crate::symbols::errno::not_there;

macro_rules! changes_user {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        $(
            /// # Safety
            /// As libc's.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
                // SAFETY: the type is that of the manual page; the caller answers for the call.
                unsafe { change(&next::$name, |call| call($($argument),*)) }
            }
        )*

        mod next {
            #![allow(non_upper_case_globals)]
            use super::*;
            $(
                // SAFETY: as above.
                pub static $name: DlsymNext<unsafe extern "C" fn($($type),*) -> c_int> = unsafe {
                    let name = concat!(stringify!($name), "\0").as_bytes();
                    DlsymNext::new(CStr::from_bytes_with_nul_unchecked(name))
                };
            )*
        }

        pub fn resolve() {
            $(next::$name.get();)*
        }
    };
}

changes_user! {
    setuid(user: libc::uid_t);
    setgid(group: libc::gid_t);
    seteuid(user: libc::uid_t);
    setegid(group: libc::gid_t);
    setreuid(real: libc::uid_t, effective: libc::uid_t);
    setregid(real: libc::gid_t, effective: libc::gid_t);
    setresuid(real: libc::uid_t, effective: libc::uid_t, saved: libc::uid_t);
    setresgid(real: libc::gid_t, effective: libc::gid_t, saved: libc::gid_t);
    setgroups(count: libc::size_t, list: *const libc::gid_t);
    initgroups(user: *const c_char, group: libc::gid_t);
}

/// # Safety
/// That of what `call` calls.
unsafe fn change<F: Copy>(next: &DlsymNext<F>, call: impl FnOnce(F) -> c_int) -> c_int {
    let Some(function) = next.get() else {
        return not_there();
    };
    hooks::user_will_change();
    let result = call(function);
    if result == 0 {
        hooks::user_changed();
    }
    result
}
