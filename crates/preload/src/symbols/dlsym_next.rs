//! The functions of the same names further down the search order: libc's own, as a rule.
//!
//! libc's `dlsym` finds them, and is itself found in libc's table of symbols. Its name leads to ours, or to that of another
//! library, which may not be ready before its constructor.

use core::ffi::{CStr, c_char, c_void};
use core::mem::transmute_copy;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::symbols::object::{is_libcs, libc_object};

/// A function of libc's, once looked up there.
struct Lookup {
    name: &'static CStr,
    at: AtomicPtr<c_void>,
}

impl Lookup {
    const fn new(name: &'static CStr) -> Self {
        let at = AtomicPtr::new(core::ptr::null_mut());
        Self { name, at }
    }

    /// Null only where libc is another.
    #[inline(never)]
    #[unsafe(link_section = ".text.startup")]
    fn get(&self) -> *mut c_void {
        let mut at = self.at.load(Ordering::Relaxed);
        if at.is_null()
            && let Some(libc) = libc_object()
        {
            at = libc.function(self.name).cast_mut();
            self.at.store(at, Ordering::Relaxed);
        }
        at
    }
}

// On a page that the loader writes to in any case.
#[unsafe(link_section = ".data")]
static DLSYM: Lookup = Lookup::new(c"dlsym");
#[unsafe(link_section = ".data")]
static DLVSYM: Lookup = Lookup::new(c"dlvsym");

/// libc's `dlsym`. RTLD_NEXT begins behind this library.
///
/// # Safety
/// `name` is a string, and this no handle of one that is closed.
#[unsafe(link_section = ".text.startup")]
pub unsafe fn libc_dlsym(handle: *mut c_void, name: &CStr) -> *const c_void {
    type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
    let at = DLSYM.get();
    if at.is_null() {
        return at;
    }
    // SAFETY: that function; the rest by the caller's contract.
    unsafe { transmute_copy::<*mut c_void, Dlsym>(&at)(handle, name.as_ptr()) }
}

/// The next function of that name, or null. Not seen: a function that another library has with libc's version of it alone.
#[inline(never)] // Each wrapper of ours has one.
#[unsafe(link_section = ".text.startup")]
pub fn next(name: &CStr) -> *const c_void {
    // SAFETY: no handle.
    unsafe { libc_dlsym(libc::RTLD_NEXT, name) }
}

/// The next one with the version that libc's functions of old have, or null.
#[unsafe(link_section = ".text.startup")]
pub fn next_of_version(name: &CStr) -> *const c_void {
    type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;
    const OLDEST: &CStr = c"GLIBC_2.2.5";
    let at = DLVSYM.get();
    if at.is_null() {
        return at;
    }
    // SAFETY: that function, and no handle.
    unsafe {
        let dlvsym = transmute_copy::<*mut c_void, Dlvsym>(&at);
        dlvsym(libc::RTLD_NEXT, name.as_ptr(), OLDEST.as_ptr())
    }
}

/// The same as [`next`], looked up once.
#[inline(always)]
pub fn known(at: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let mut found = at.load(Ordering::Relaxed);
    if found.is_null() {
        found = next(name).cast_mut();
        at.store(found, Ordering::Relaxed);
    }
    found
}

/// A function of libc that ours stands before. `F` is its type.
pub struct DlsymNext<F: Copy> {
    name: &'static CStr,
    at: AtomicPtr<c_void>,
    of: core::marker::PhantomData<F>,
}

// SAFETY: a name and an atomic; `F` is a function pointer type and no value of it is held.
unsafe impl<F: Copy> Sync for DlsymNext<F> {}

impl<F: Copy> DlsymNext<F> {
    /// # Safety
    /// `F` is the type of the C function of this name: `unsafe extern "C" fn`.
    pub const unsafe fn new(name: &'static CStr) -> Self {
        assert!(size_of::<F>() == size_of::<*mut c_void>());
        Self {
            name,
            at: AtomicPtr::new(core::ptr::null_mut()),
            of: core::marker::PhantomData,
        }
    }

    /// The function, or `None` where libc has none of the name. After
    /// [`resolve_all`] this reads one word: fit for the child of a vfork.
    pub fn get(&self) -> Option<F> {
        let at = self.address();
        // SAFETY: of a pointer's size, and the function of that type by `new`'s contract.
        (!at.is_null()).then(|| unsafe { transmute_copy::<*mut c_void, F>(&at) })
    }

    /// The function, if it is not libc's but another library's. As fit.
    pub fn of_another(&self) -> Option<F> {
        self.get().filter(|_| !is_libcs(self.address()))
    }

    fn address(&self) -> *mut c_void {
        known(&self.at, self.name)
    }
}
