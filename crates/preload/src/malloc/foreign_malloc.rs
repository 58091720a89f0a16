//! Another allocator that the program comes with as a library, behind ours in the search order: linked to it,
//! or preloaded as the user wants it.
//!
//! It is found once, in the constructor. Blocks allocated before, by the loader and other constructors, are
//! mimalloc's and go back there: see [`super::family`]. An allocator that is part of the program itself stands before
//! ours and is never asked for here.

use core::ffi::{CStr, c_int, c_void};
use core::mem::transmute_copy;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

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
    let libc = object(libc::gnu_get_libc_version as *const c_void);
    let malloc = next(c"malloc");
    let foreign = object(malloc);
    if malloc.is_null() || foreign.is_none() || foreign == libc {
        return;
    }
    // All of it, or it cannot be what the program relies on.
    let of_foreign = |name| {
        let at = next(name);
        (!at.is_null() && object(at) == foreign).then_some(at)
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

fn next(name: &CStr) -> *const c_void {
    // SAFETY: the name ends in a null.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// Where the library or program that an address is in begins. Not by `dladdr`: that looks at all symbols of it.
fn object(at: *const c_void) -> Option<usize> {
    let mut search = Search {
        at: at as usize,
        found: None,
    };
    // SAFETY: the callback gets the structure that it is given here.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.found
}

struct Search {
    at: usize,
    found: Option<usize>,
}

// Beside the library's constructor, which calls it in every process.
#[unsafe(link_section = ".text.startup")]
unsafe extern "C" fn look(
    module: *mut libc::dl_phdr_info,
    _: libc::size_t,
    search: *mut c_void,
) -> c_int {
    // SAFETY: both are as `object` and libc pass them; libc's table has so many headers.
    let (module, search, headers) = unsafe {
        let headers = core::slice::from_raw_parts((*module).dlpi_phdr, (*module).dlpi_phnum.into());
        (&*module, &mut *search.cast::<Search>(), headers)
    };
    let base = module.dlpi_addr as usize;
    let has = headers.iter().any(|header| {
        let start = base.wrapping_add(header.p_vaddr as usize);
        header.p_type == libc::PT_LOAD && search.at.wrapping_sub(start) < header.p_memsz as usize
    });
    if has {
        search.found = Some(base);
    }
    has.into()
}

/// # Safety
/// `F` is the type of the C function there.
unsafe fn function<F: Copy>(at: *const c_void) -> F {
    const { assert!(size_of::<F>() == size_of::<*const c_void>()) };
    // SAFETY: of a pointer's size, and of that type by the caller's contract.
    unsafe { transmute_copy(&at) }
}
