//! The malloc family by libc's names; odd arguments are answered as glibc does.
//!
//! Blocks are ours ([`blocks`]), unless a program comes with another allocator as a library (jemalloc, say). It keeps
//! that ([`foreign_malloc`]), as it may use more of it than the malloc family, and mix both. Memory that it maps is
//! managed all the same.
//!
//! That allocator may itself stand upon `__libc_malloc` and its kin. So those are ours and never ask for another, as
//! libc's own would not.
//!
//! `reallocarray` is left to glibc, which calls the `realloc` in force. That is the program's own where the program
//! defines the four functions which glibc's manual asks of a replacement, and `reallocarray` is not among them.

use core::ffi::{c_int, c_void};
use core::ptr;

use ebb_sys::memory::PAGE;

use crate::malloc::blocks::{self, or_no_memory, set_errno};
use crate::malloc::foreign_malloc::{self, Family};
use crate::malloc::mapped_block;

/// Called once, from the constructor; the functions work before it.
pub fn start() {
    blocks::start();
    foreign_malloc::find();
}

/// Another allocator that serves this thread.
#[inline(always)]
fn foreign() -> Option<&'static Family> {
    foreign_malloc::get().filter(|_| !blocks::ours())
}

/// One that stands upon ours, and knows all blocks but those of our threads.
#[inline(always)]
fn wrapper() -> Option<&'static Family> {
    foreign_malloc::wrapper().filter(|_| !blocks::ours())
}

/// # Safety
/// `malloc(3)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    match foreign() {
        // SAFETY: the caller's call, here and below.
        Some(foreign) => unsafe { (foreign.malloc)(size) },
        None => blocks::allocate(size),
    }
}

/// # Safety
/// `free(3)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut c_void) {
    // SAFETY: the caller gives up a block of the allocator in force, or one of ours from before it was found.
    unsafe {
        if let Some(wrapper) = wrapper() {
            return (wrapper.free)(block);
        }
        if !blocks::free_small(block) {
            match foreign_malloc::get() {
                Some(foreign) => (foreign.free)(block),
                None => mapped_block::free(block),
            }
        }
    }
}

/// # Safety
/// `free(3)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cfree(block: *mut c_void) {
    // SAFETY: as above.
    unsafe { free(block) }
}

/// # Safety
/// `calloc(3)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    match foreign() {
        // SAFETY: as above.
        Some(foreign) => unsafe { (foreign.calloc)(count, size) },
        None => blocks::allocate_zeroed(count, size),
    }
}

/// # Safety
/// `realloc(3)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: as above; a block of ours came before theirs was found, and is given up.
    unsafe {
        let Some(foreign) = foreign() else {
            return blocks::resize(block, size);
        };
        if wrapper().is_some() || block.is_null() || !blocks::is_small(block) {
            return (foreign.realloc)(block, size);
        }
        let moved = (foreign.malloc)(size);
        if !moved.is_null() {
            let len = blocks::usable_size(block).min(size);
            ptr::copy_nonoverlapping(block.cast::<u8>(), moved.cast(), len);
            blocks::free(block);
        }
        moved
    }
}

/// # Safety
/// `align` is a power of two.
unsafe fn aligned(align: usize, size: usize) -> *mut c_void {
    let Some(foreign) = foreign() else {
        // SAFETY: by the caller's contract.
        return unsafe { blocks::allocate_aligned(align, size) };
    };
    let mut block = ptr::null_mut();
    // SAFETY: a power of two, and at least that of a pointer.
    unsafe { (foreign.posix_memalign)(&mut block, align.max(size_of::<usize>()), size) };
    block
}

/// # Safety
/// `aligned` may be called with a power of two.
#[inline(never)]
unsafe fn memalign_by(
    aligned: unsafe fn(usize, usize) -> *mut c_void,
    align: usize,
    size: usize,
) -> *mut c_void {
    match align.max(size_of::<usize>()).checked_next_power_of_two() {
        // SAFETY: a power of two.
        Some(align) if align < isize::MAX as usize => or_no_memory(unsafe { aligned(align, size) }),
        _ => {
            set_errno(libc::EINVAL);
            ptr::null_mut()
        }
    }
}

/// # Safety
/// As above; `out` is a place for the answer.
#[inline(never)]
unsafe fn posix_memalign_by(
    aligned: unsafe fn(usize, usize) -> *mut c_void,
    out: *mut *mut c_void,
    align: usize,
    size: usize,
) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<usize>()) {
        return libc::EINVAL;
    }
    // SAFETY: a power of two.
    let block = unsafe { aligned(align, size) };
    if block.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller gives a place for the answer.
    unsafe { *out = block };
    0
}

/// At least a page, as glibc has it.
///
/// # Safety
/// As above.
#[inline(never)]
unsafe fn pvalloc_by(aligned: unsafe fn(usize, usize) -> *mut c_void, size: usize) -> *mut c_void {
    match size.checked_next_multiple_of(PAGE) {
        // SAFETY: a power of two.
        Some(size) => unsafe { memalign_by(aligned, PAGE, size.max(PAGE)) },
        None => or_no_memory(ptr::null_mut()),
    }
}

/// An alignment that is no power of two is rounded up to one, as in glibc.
///
/// # Safety
/// `memalign(3)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    // SAFETY: the caller's call, so in each one below.
    unsafe { memalign_by(aligned, align, size) }
}

/// # Safety
/// `aligned_alloc(3)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    // SAFETY: the same in the glibc that programs were built for.
    unsafe { memalign(align, size) }
}

/// # Safety
/// `posix_memalign(3)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    // SAFETY: as above.
    unsafe { posix_memalign_by(aligned, out, align, size) }
}

/// # Safety
/// `valloc(3)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn valloc(size: usize) -> *mut c_void {
    // SAFETY: as above.
    unsafe { memalign(PAGE, size) }
}

/// # Safety
/// `pvalloc(3)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvalloc(size: usize) -> *mut c_void {
    // SAFETY: as above.
    unsafe { pvalloc_by(aligned, size) }
}

/// glibc's wrappers know the blocks of glibc alone by their headers: what begins as a block of ours is told as such.
///
/// # Safety
/// `malloc_usable_size(3)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    if block.is_null() {
        return 0;
    }
    // SAFETY: the caller names a block of the allocator in force, or one of ours from before it was found.
    unsafe {
        match foreign_malloc::get() {
            Some(wrapper) if wrapper.is_upon_ours && !blocks::begins_small(block) => {
                (wrapper.malloc_usable_size)(block)
            }
            Some(foreign) if !blocks::is_small(block) => (foreign.malloc_usable_size)(block),
            _ => blocks::usable_size(block),
        }
    }
}

/// Gives free memory back: 1, as some always may be.
///
/// # Safety
/// `malloc_trim(3)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_trim(_pad: usize) -> c_int {
    blocks::trim();
    1
}

/// glibc's tunables mean nothing here; a program that sets one is told that all is well.
///
/// # Safety
/// None.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mallopt(_parameter: c_int, _value: c_int) -> c_int {
    1
}

/// Memory that mimalloc holds, told in the fields that have a meaning here: bytes held from the system, all counted
/// as in use.
///
/// # Safety
/// None.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mallinfo2() -> libc::mallinfo2 {
    // SAFETY: a plain struct of integers.
    let mut info: libc::mallinfo2 = unsafe { core::mem::zeroed() };
    info.arena = blocks::held_bytes();
    info.uordblks = info.arena;
    info
}

/// [`mallinfo2`] in the older struct, whose fields stop at 2 GiB.
///
/// # Safety
/// None.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mallinfo() -> libc::mallinfo {
    // SAFETY: none is needed; a plain struct of integers.
    let (wide, mut info): (_, libc::mallinfo) = unsafe { (mallinfo2(), core::mem::zeroed()) };
    info.arena = c_int::try_from(wide.arena).unwrap_or(c_int::MAX);
    info.uordblks = info.arena;
    info
}

/// The names under which glibc's own parts, old programs, and allocators of others reach our blocks.
mod libc_names {
    use super::*;

    macro_rules! ours_alone {
        ($($name:ident($($arg:ident: $kind:ty),*) -> $result:ty = $call:expr;)*) => {$(
            /// # Safety
            /// The function's without the prefix.
            #[unsafe(no_mangle)]
            #[allow(unused_unsafe)] // Not every one needs it.
            pub unsafe extern "C" fn $name($($arg: $kind),*) -> $result {
                // SAFETY: the caller's call as it stands, with a block of ours.
                unsafe { $call }
            }
        )*};
    }

    ours_alone! {
        __libc_malloc(size: usize) -> *mut c_void = blocks::allocate(size);
        __libc_free(block: *mut c_void) -> () = blocks::free(block);
        __libc_calloc(count: usize, size: usize) -> *mut c_void = blocks::allocate_zeroed(count, size);
        __libc_realloc(block: *mut c_void, size: usize) -> *mut c_void = blocks::resize(block, size);
        __libc_memalign(align: usize, size: usize) -> *mut c_void
            = memalign_by(blocks::allocate_aligned, align, size);
        __libc_valloc(size: usize) -> *mut c_void
            = memalign_by(blocks::allocate_aligned, PAGE, size);
        __libc_pvalloc(size: usize) -> *mut c_void = pvalloc_by(blocks::allocate_aligned, size);
        __posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int
            = posix_memalign_by(blocks::allocate_aligned, out, align, size);
    }
}
