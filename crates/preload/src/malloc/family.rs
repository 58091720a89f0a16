//! The malloc family, by mimalloc and by maps of their own ([`mapped_block`]); failures and odd
//! arguments are answered as glibc does.
//!
//! The size of a request decides which of the two serves it. The owner of a block is asked of mimalloc's page map,
//! which knows its own addresses:
//!
//! - [`MAPPED_MIN`] bytes and more: a map of its own, unmapped when freed. It is the size
//!   at which glibc always does so too.
//! - A block that `realloc` grows to [`GROWING_MIN`] and more: also a map of its own, as it will likely grow again. A
//!   map moves by its page tables; a copy would have both blocks in memory at once.
//! - All else: mimalloc.
//!
//! A program that comes with another allocator as a library (jemalloc, say) keeps that ([`foreign_malloc`]): it may
//! use more of it than the malloc family, and mix both. Memory that it maps is managed all the same.
//!
//! `reallocarray` is left to glibc, which calls the `realloc` in force. That is the program's own where the program
//! defines the four functions which glibc's manual asks of a replacement, and `reallocarray` is not among them.

use core::ffi::{c_int, c_void};
use core::ptr;
use core::sync::atomic::AtomicU32;

use ebb_sys::futex;
use ebb_sys::heap::c;
use ebb_sys::memory::PAGE;
use ebb_sys::thread;

use crate::malloc::{foreign_malloc, mapped_block};
use crate::memory::calls;
use crate::symbols::errno::keeping_errno;
use ebb_pager::hooks;

/// Requests of this many bytes and more get a map of their own.
const MAPPED_MIN: usize = 32 << 20;

/// So do blocks that grow to this many bytes and more.
const GROWING_MIN: usize = 1 << 20;

/// The pager is told of each block of mimalloc's of this many bytes and more, before the program can fill it. Smaller
/// ones are told by the heartbeat (csrc/allocator.c).
const REPORTED_MIN: usize = 8 << 10;

/// The least that mimalloc is asked for: it aligns blocks of a single word to 8 bytes, all others to 16, as glibc does
/// and its manual promises.
const LEAST: usize = 9;

unsafe extern "C" {
    pub fn mi_malloc(size: usize) -> *mut c_void;
    pub fn mi_free(block: *mut c_void);
    fn mi_calloc(count: usize, size: usize) -> *mut c_void;
    fn mi_realloc(block: *mut c_void, size: usize) -> *mut c_void;
    fn mi_malloc_aligned(size: usize, align: usize) -> *mut c_void;
    fn mi_usable_size(block: *const c_void) -> usize;
    fn mi_collect(force: bool);
    fn mi_process_info(
        elapsed_ms: *mut usize,
        user_ms: *mut usize,
        system_ms: *mut usize,
        current_rss: *mut usize,
        peak_rss: *mut usize,
        current_commit: *mut usize,
        peak_commit: *mut usize,
        page_faults: *mut usize,
    );
    // csrc/allocator.c
    static mut ebb_mi_constructed: bool;
    static ebb_mi_early: bool;
    fn ebb_mi_finish_start();
    fn ebb_mi_start();
    fn ebb_mi_free(block: *mut c_void) -> bool;
    fn ebb_mi_owns(block: *const c_void) -> bool;
}

/// mimalloc's `mmap`: an arena.
///
/// # Safety
/// `mmap(2)`'s.
#[unsafe(no_mangle)]
unsafe extern "C" fn ebb_mi_reserve(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's call.
    calls::address(len, || unsafe {
        hooks::reserve(addr as usize, len, prot, flags, fd, offset)
    })
}

/// The program may fill so many bytes more.
fn admit(bytes: usize) {
    keeping_errno(|| hooks::admit(bytes));
}

/// mimalloc's heartbeat: so much of small blocks may have been handed out since the last.
#[unsafe(no_mangle)]
extern "C" fn ebb_mi_grows(bytes: usize) {
    admit(bytes);
}

/// A thread waits for a lock of mimalloc's while the word is `seen`. It may be woken in vain.
#[unsafe(no_mangle)]
extern "C" fn ebb_mi_wait(word: &AtomicU32, seen: u32) {
    futex::wait(word, seen, None, false);
}

#[unsafe(no_mangle)]
extern "C" fn ebb_mi_wake_one(word: &AtomicU32) {
    futex::wake(word, 1, false);
}

/// Called once, from the constructor; the functions work before it.
pub fn start() {
    // SAFETY: no other thread runs.
    unsafe {
        ebb_mi_constructed = true;
        if ebb_mi_early {
            ebb_mi_finish_start();
        }
    }
    foreign_malloc::find();
}

/// Called before the program starts a thread: the first thread starts mimalloc, if it has had no block yet.
pub fn start_before_threads() {
    // SAFETY: may be called at any time.
    unsafe { ebb_mi_start() };
}

/// Alignment of blocks for threads of our own.
const OWN_ALIGN: usize = 16;

/// C code on a thread of ours (libc's own, mostly) must not be given the program's memory, whose
/// faults that thread may have to serve.
#[inline(always)]
fn ours() -> bool {
    thread::is_ours()
}

// Out of line, so that the program's path saves no registers for it.

/// A zeroed block for a thread of ours, or null.
#[cold]
#[inline(never)]
fn own_block(size: usize, align: usize) -> *mut c_void {
    c::alloc(size, align).cast()
}

/// # Safety
/// A block of [`own_block`], given up, or null.
#[cold]
#[inline(never)]
unsafe fn free_own(block: *mut c_void) {
    if !block.is_null() {
        // SAFETY: by the caller's contract.
        unsafe { c::free(block.cast()) };
    }
}

/// Sets `errno` where an allocation failed.
#[inline(always)]
fn or_no_memory(block: *mut c_void) -> *mut c_void {
    if block.is_null() {
        set_errno(libc::ENOMEM);
    }
    block
}

#[cold]
fn set_errno(code: c_int) {
    // SAFETY: the location is this thread's.
    unsafe { *libc::__errno_location() = code };
}

/// # Safety
/// `malloc(3)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    if ours() {
        return own_block(size, OWN_ALIGN);
    }
    if let Some(foreign) = foreign_malloc::get() {
        // SAFETY: the caller's call.
        return unsafe { (foreign.malloc)(size) };
    }
    if size >= REPORTED_MIN {
        return large(size);
    }
    // SAFETY: any size is legal.
    or_no_memory(unsafe { mi_malloc(size.max(LEAST)) })
}

#[inline(never)]
fn large(size: usize) -> *mut c_void {
    or_no_memory(if size >= MAPPED_MIN {
        mapped_block::allocate(size, mapped_block::ALIGN_MIN)
    } else {
        admit(size);
        // SAFETY: any size is legal.
        unsafe { mi_malloc(size) }
    })
}

/// # Safety
/// `free(3)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut c_void) {
    if ours() {
        // SAFETY: blocks of our threads come from there.
        return unsafe { free_own(block) };
    }
    // SAFETY: the caller gives up a block of this allocator, or null.
    unsafe {
        if !ebb_mi_free(block) && !block.is_null() {
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
    if ours() {
        return count
            .checked_mul(size)
            .map_or(ptr::null_mut(), |n| own_block(n, OWN_ALIGN));
    }
    if let Some(foreign) = foreign_malloc::get() {
        // SAFETY: the caller's call.
        return unsafe { (foreign.calloc)(count, size) };
    }
    match count.checked_mul(size) {
        Some(bytes) if bytes < MAPPED_MIN => {
            if bytes >= REPORTED_MIN {
                admit(bytes);
            }
            // SAFETY: any size is legal.
            or_no_memory(unsafe { mi_calloc(1, bytes.max(LEAST)) })
        }
        Some(bytes) => or_no_memory(mapped_block::allocate(bytes, mapped_block::ALIGN_MIN)),
        None => or_no_memory(ptr::null_mut()),
    }
}

/// # Safety
/// `realloc(3)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    if ours() {
        return match block.is_null() {
            true => c::alloc(size, OWN_ALIGN),
            // SAFETY: blocks of our threads come from there.
            false => unsafe { c::realloc(block.cast(), size) },
        }
        .cast();
    }
    if let Some(foreign) = foreign_malloc::get() {
        // SAFETY: the caller's call; a block of ours came before theirs was found, and is given up.
        return unsafe {
            if block.is_null() || !ebb_mi_owns(block) {
                return (foreign.realloc)(block, size);
            }
            let moved = (foreign.malloc)(size);
            if !moved.is_null() {
                let len = mi_usable_size(block).min(size);
                ptr::copy_nonoverlapping(block.cast::<u8>(), moved.cast(), len);
                mi_free(block);
            }
            moved
        };
    }
    if block.is_null() {
        // The allocator may not have begun yet, and begins with a block.
        // SAFETY: a new block.
        return unsafe { malloc(size) };
    }
    // glibc frees and answers null, and programs count on it.
    if size == 0 {
        // SAFETY: the caller gives up the block.
        unsafe { free(block) };
        return ptr::null_mut();
    }
    // SAFETY: the caller names a block of this allocator; where it moves by hand,
    // both blocks hold the bytes copied, and the old one is given up.
    unsafe {
        let ours = ebb_mi_owns(block);
        if !ours && size >= GROWING_MIN {
            return or_no_memory(mapped_block::resize(block, size));
        }
        let old = malloc_usable_size(block);
        if ours && (size < GROWING_MIN || size <= old) && size < MAPPED_MIN {
            if size >= REPORTED_MIN {
                admit(size.saturating_sub(old));
            }
            return or_no_memory(mi_realloc(block, size.max(LEAST)));
        }
        let moved = if size >= GROWING_MIN {
            mapped_block::allocate(size, mapped_block::ALIGN_MIN)
        } else {
            malloc(size)
        };
        if !moved.is_null() {
            ptr::copy_nonoverlapping(block.cast::<u8>(), moved.cast(), old.min(size));
            free(block);
        }
        or_no_memory(moved)
    }
}

/// # Safety
/// `align` is a power of two.
unsafe fn aligned(align: usize, size: usize) -> *mut c_void {
    if ours() {
        return own_block(size, align.max(OWN_ALIGN));
    }
    if let Some(foreign) = foreign_malloc::get() {
        let mut block = ptr::null_mut();
        // SAFETY: a power of two, and at least that of a pointer.
        unsafe { (foreign.posix_memalign)(&mut block, align.max(size_of::<usize>()), size) };
        return block;
    }
    if size >= MAPPED_MIN {
        return mapped_block::allocate(size, align);
    }
    if size >= REPORTED_MIN {
        admit(size);
    }
    // SAFETY: by the caller's contract.
    unsafe { mi_malloc_aligned(size.max(LEAST), align) }
}

/// An alignment that is no power of two is rounded up to one, as in glibc.
///
/// # Safety
/// `memalign(3)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
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

/// # Safety
/// `valloc(3)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn valloc(size: usize) -> *mut c_void {
    // SAFETY: a power of two.
    unsafe { memalign(PAGE, size) }
}

/// # Safety
/// `pvalloc(3)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvalloc(size: usize) -> *mut c_void {
    match size.checked_next_multiple_of(PAGE) {
        // SAFETY: a power of two; at least a page, as glibc has it.
        Some(size) => unsafe { memalign(PAGE, size.max(PAGE)) },
        None => or_no_memory(ptr::null_mut()),
    }
}

/// # Safety
/// `malloc_usable_size(3)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    if block.is_null() {
        return 0;
    }
    // SAFETY: the caller names a block of this allocator.
    unsafe {
        if ebb_mi_owns(block) {
            return mi_usable_size(block);
        }
        match foreign_malloc::get() {
            Some(foreign) => (foreign.malloc_usable_size)(block),
            None => mapped_block::usable_size(block),
        }
    }
}

/// Gives free memory back: 1, as some always may be.
///
/// # Safety
/// `malloc_trim(3)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_trim(_pad: usize) -> c_int {
    // SAFETY: collects this thread's heap.
    unsafe { mi_collect(true) };
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
    let mut held = 0;
    let unused = ptr::null_mut();
    // SAFETY: null where a figure is not wanted; a plain struct of integers.
    let mut info: libc::mallinfo2 = unsafe {
        mi_process_info(
            unused, unused, unused, unused, unused, &mut held, unused, unused,
        );
        core::mem::zeroed()
    };
    info.arena = held;
    info.uordblks = held;
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

/// The names under which glibc's own parts and old programs reach the same functions.
mod aliases {
    use super::*;

    macro_rules! alias {
        ($($name:ident($($arg:ident: $kind:ty),*) -> $result:ty = $target:ident;)*) => {$(
            /// # Safety
            /// The function's without the prefix.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $kind),*) -> $result {
                // SAFETY: the caller's call as it stands.
                unsafe { $target($($arg),*) }
            }
        )*};
    }

    alias! {
        __libc_malloc(size: usize) -> *mut c_void = malloc;
        __libc_free(block: *mut c_void) -> () = free;
        __libc_calloc(count: usize, size: usize) -> *mut c_void = calloc;
        __libc_realloc(block: *mut c_void, size: usize) -> *mut c_void = realloc;
        __libc_memalign(align: usize, size: usize) -> *mut c_void = memalign;
        __libc_valloc(size: usize) -> *mut c_void = valloc;
        __libc_pvalloc(size: usize) -> *mut c_void = pvalloc;
        __posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int = posix_memalign;
    }
}
