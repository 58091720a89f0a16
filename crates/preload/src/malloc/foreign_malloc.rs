//! Another allocator that the program comes with as a library, behind ours in the search order: linked to it,
//! or preloaded as the user wants it.
//!
//! It is found once, in the constructor. Blocks allocated before, by the loader and other constructors, are
//! mimalloc's and go back there: see [`super::family`]. An allocator that is part of the program itself stands before
//! ours and is never asked for here.
//!
//! One may stand upon ours, as glibc's own for debugging does: it asks for `__libc_malloc` by name. Its blocks may have
//! words of its own before them, in a block of ours, so whose a block is cannot be asked. It gets all of them. Where there
//! are blocks from before, it gets none.

use core::ffi::{CStr, c_int, c_void};
use core::mem::transmute_copy;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::malloc::blocks;
use crate::symbols::dlsym_next::{next, next_of_version};
use crate::symbols::object::{Object, is_libcs};

/// Its malloc family: functions of the C standard, POSIX and glibc.
pub struct Family {
    pub malloc: unsafe extern "C" fn(usize) -> *mut c_void,
    pub free: unsafe extern "C" fn(*mut c_void),
    pub calloc: unsafe extern "C" fn(usize, usize) -> *mut c_void,
    pub realloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    pub posix_memalign: unsafe extern "C" fn(*mut *mut c_void, usize, usize) -> c_int,
    pub malloc_usable_size: unsafe extern "C" fn(*mut c_void) -> usize,
    /// Flag: its blocks lie in blocks of ours.
    pub is_upon_ours: bool,
}

static FOREIGN: AtomicPtr<Family> = AtomicPtr::new(ptr::null_mut());

/// The same, where it stands upon ours.
static WRAPPER: AtomicPtr<Family> = AtomicPtr::new(ptr::null_mut());

/// The program's own allocator, if it has one.
#[inline(always)]
pub fn get() -> Option<&'static Family> {
    // SAFETY: null, or set once from a leaked box.
    unsafe { FOREIGN.load(Ordering::Relaxed).as_ref() }
}

/// The one that stands upon ours.
#[inline(always)]
pub fn wrapper() -> Option<&'static Family> {
    // SAFETY: as above.
    unsafe { WRAPPER.load(Ordering::Relaxed).as_ref() }
}

/// Looks for it. No thread but the caller's runs yet.
pub fn find() {
    // glibc's own for debugging has its functions under libc's version alone.
    let find = [next, next_of_version]
        .into_iter()
        .find(|find: &fn(&CStr) -> *const c_void| !is_libcs(find(c"malloc")));
    let Some(find) = find else {
        return;
    };
    let malloc = find(c"malloc");
    let Some(foreign) = Object::of(malloc) else {
        return;
    };
    let is_upon_ours = foreign.asks_for(c"__libc_malloc");
    if is_upon_ours && blocks::any_early() {
        return;
    }
    // All of it, or it cannot be what the program relies on.
    let of_foreign = |name| {
        let at = find(name);
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
                is_upon_ours,
            }
        })
    };
    if let Some(family) = family() {
        let family: *mut Family = Box::leak(Box::new(family));
        FOREIGN.store(family, Ordering::Relaxed);
        if is_upon_ours {
            WRAPPER.store(family, Ordering::Relaxed);
        }
    }
}

/// # Safety
/// `F` is the type of the C function there.
unsafe fn function<F: Copy>(at: *const c_void) -> F {
    const { assert!(size_of::<F>() == size_of::<*const c_void>()) };
    // SAFETY: of a pointer's size, and of that type by the caller's contract.
    unsafe { transmute_copy(&at) }
}
