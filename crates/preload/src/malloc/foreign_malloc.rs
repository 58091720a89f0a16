//! Another allocator that the program comes with as a library, behind ours in the search order: linked to it,
//! or preloaded as the user wants it.
//!
//! It is found once, in the constructor. Blocks allocated before, by the loader and other constructors, are
//! mimalloc's and go back there: see [`super::family`]. An allocator that is part of the program itself stands before
//! ours and is never asked for here.

use core::ffi::{c_int, c_void};
use core::mem::transmute_copy;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::symbols::dlsym_next::next;
use crate::symbols::object::{Object, is_libcs};

/// Its malloc family: functions of the C standard, POSIX and glibc.
pub struct Family {
    pub malloc: unsafe extern "C" fn(usize) -> *mut c_void,
    pub free: unsafe extern "C" fn(*mut c_void),
    pub calloc: unsafe extern "C" fn(usize, usize) -> *mut c_void,
    pub realloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    pub posix_memalign: unsafe extern "C" fn(*mut *mut c_void, usize, usize) -> c_int,
    pub malloc_usable_size: unsafe extern "C" fn(*mut c_void) -> usize,
}

static FOREIGN: AtomicPtr<Family> = AtomicPtr::new(ptr::null_mut());

/// The program's own allocator, if it has one.
#[inline(always)]
pub fn get() -> Option<&'static Family> {
    // SAFETY: null, or set once from a leaked box.
    unsafe { FOREIGN.load(Ordering::Relaxed).as_ref() }
}

/// Looks for it. No thread but the caller's runs yet.
pub fn find() {
    let malloc = next(c"malloc");
    if is_libcs(malloc) {
        return;
    }
    let Some(foreign) = Object::of(malloc) else {
        return;
    };
    // All of it, or it cannot be what the program relies on.
    let of_foreign = |name| {
        let at = next(name);
        foreign.contains(at).then_some(at)
    };
    let family = || {
        // SAFETY: functions of these names have these types.
        Some(unsafe {
            Family {
                malloc: function(malloc),
                free: function(of_foreign(c"free")?),
                calloc: function(of_foreign(c"calloc")?),
                realloc: function(of_foreign(c"realloc")?),
                posix_memalign: function(of_foreign(c"posix_memalign")?),
                malloc_usable_size: function(of_foreign(c"malloc_usable_size")?),
            }
        })
    };
    if let Some(family) = family() {
        FOREIGN.store(Box::leak(Box::new(family)), Ordering::Relaxed);
    }
}

/// # Safety
/// `F` is the type of the C function there.
unsafe fn function<F: Copy>(at: *const c_void) -> F {
    const { assert!(size_of::<F>() == size_of::<*const c_void>()) };
    // SAFETY: of a pointer's size, and of that type by the caller's contract.
    unsafe { transmute_copy(&at) }
}
