//! `dlsym(3)` and `dlvsym`: who asks a *handle* for a function of libc's that one of ours stands before gets ours, as
//! from everywhere else. Python's `ctypes` asks so, as do Java and .NET. libc's own `free` could not be given our blocks, and
//! its memory calls would go past the pager.
//!
//! Where another library has a function of that name between ours and libc's, that one goes on to libc's, mostly by a
//! handle. It must not come back to ours, which goes on to it. So ours is the answer only in place of the very function that
//! it goes on to.
//!
//! libc asks by the return address who calls, if no handle is given: so its function is jumped to, not called. The
//! next function of these names may be another library's, too.
//!
//! Not here: `dlvsym` with RTLD_NEXT from the program itself, which finds libc's function, as ours have no version.

use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::AtomicPtr;

use crate::symbols::dlsym_next;
use crate::symbols::object::{self, Object};

/// The next function of the name, once looked up.
// On a page that the loader writes to in any case.
#[unsafe(link_section = ".data")]
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
/// The same of the other.
static NEXT_OF_VERSION: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

#[unsafe(link_section = ".text.startup")]
extern "C" fn look_up() -> *mut c_void {
    dlsym_next::known(&NEXT, c"dlsym")
}

extern "C" fn look_up_of_version() -> *mut c_void {
    dlsym_next::known(&NEXT_OF_VERSION, c"dlvsym")
}

/// # Safety
/// As libc's.
// Beside the library's constructor, on whose way it is called.
#[unsafe(link_section = ".text.startup")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // RTLD_NEXT is -1, and RTLD_DEFAULT 0. Three words on the stack align it for the call.
    core::arch::naked_asm!(
        "lea rax, [rdi + 1]",
        "cmp rax, 1",
        "ja {by_handle}",
        "mov rax, [rip + {next}]",
        "test rax, rax",
        "jnz 2f",
        "push rdi",
        "push rsi",
        "push rax",
        "call {look_up}",
        "pop rcx",
        "pop rsi",
        "pop rdi",
        "2:",
        "jmp rax",
        by_handle = sym by_handle,
        next = sym NEXT,
        look_up = sym look_up,
    )
}

unsafe extern "C" fn by_handle(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: the caller's call as it stands; a name that was found is a string.
    unsafe {
        let next: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void =
            core::mem::transmute(look_up());
        let found = next(handle, name);
        ours_for(found, name).unwrap_or(found)
    }
}

/// # Safety
/// As libc's.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlvsym(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "call {by_version}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jnz 2f",
        "jmp [rip + {next}]",
        "2:",
        "ret",
        by_version = sym by_version,
        next = sym NEXT_OF_VERSION,
    )
}

/// Null: libc is to be asked by the caller itself.
unsafe extern "C" fn by_version(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;
    let next = look_up_of_version();
    if handle == libc::RTLD_NEXT {
        return core::ptr::null_mut();
    }
    // SAFETY: as above. The order of all libraries begins that of each.
    unsafe {
        let next = core::mem::transmute::<*mut c_void, Dlvsym>(next);
        let found = next(handle, name, version);
        match ours_for(found, name) {
            Some(ours) => ours,
            None if handle == libc::RTLD_DEFAULT => core::ptr::null_mut(),
            None => found,
        }
    }
}

/// Our function that goes on to this one of libc's.
///
/// # Safety
/// `name` is a string, if anything was found.
unsafe fn ours_for(found: *mut c_void, name: *const c_char) -> Option<*mut c_void> {
    if found.is_null() || !object::is_libcs(found) {
        return None;
    }
    // SAFETY: by the caller's contract.
    let name = unsafe { CStr::from_ptr(name) };
    let ours = Object::of(by_handle as *const c_void)?.function(name);
    (!ours.is_null() && dlsym_next::next(name) == found.cast_const()).then_some(ours.cast_mut())
}
