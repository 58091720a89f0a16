//! The functions of the same names further down the search order: libc's own, as a rule.

use core::ffi::{CStr, c_void};
use core::mem::transmute_copy;
use core::sync::atomic::{AtomicPtr, Ordering};

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
        let mut at = self.at.load(Ordering::Relaxed);
        if at.is_null() {
            // SAFETY: the name ends in a null.
            at = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            if at.is_null() {
                return None;
            }
            self.at.store(at, Ordering::Relaxed);
        }
        // SAFETY: of a pointer's size, and the function of that type by `new`'s contract.
        Some(unsafe { transmute_copy::<*mut c_void, F>(&at) })
    }
}
