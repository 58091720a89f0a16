//! Blocks of our own, by mimalloc and by maps of their own ([`mapped_block`]).
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
//! Not here: libc's names for this ([`super::family`]), and who serves them.

use core::ffi::{c_int, c_void};
use core::ptr;
use core::sync::atomic::AtomicU32;

use ebb_sys::futex;
use ebb_sys::heap::c;
use ebb_sys::thread;

use crate::malloc::mapped_block;
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
    fn mi_malloc(size: usize) -> *mut c_void;
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
    fn ebb_mi_begins(block: *const c_void) -> bool;
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
}

/// Whether there are blocks from before that.
pub fn any_early() -> bool {
    // SAFETY: written by the thread that makes the first block, before any other runs.
    unsafe { ebb_mi_early }
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
pub fn ours() -> bool {
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
pub fn or_no_memory(block: *mut c_void) -> *mut c_void {
    if block.is_null() {
        set_errno(libc::ENOMEM);
    }
    block
}

#[cold]
pub fn set_errno(code: c_int) {
    // SAFETY: the location is this thread's.
    unsafe { *libc::__errno_location() = code };
}

/// `malloc`.
#[inline(always)]
pub fn allocate(size: usize) -> *mut c_void {
    if ours() {
        return own_block(size, OWN_ALIGN);
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

/// Frees a block of mimalloc's or of a thread of ours. False: it is neither, nor null.
///
/// # Safety
/// The caller gives up the block.
#[inline(always)]
pub unsafe fn free_small(block: *mut c_void) -> bool {
    // SAFETY: blocks of our threads come from there; the rest by the caller's contract.
    unsafe {
        if ours() {
            free_own(block);
            return true;
        }
        ebb_mi_free(block) || block.is_null()
    }
}

/// `free`.
///
/// # Safety
/// A block of ours that the caller gives up, or null.
pub unsafe fn free(block: *mut c_void) {
    // SAFETY: by the caller's contract.
    unsafe {
        if !free_small(block) {
            mapped_block::free(block);
        }
    }
}

/// `calloc`.
#[inline(always)]
pub fn allocate_zeroed(count: usize, size: usize) -> *mut c_void {
    if ours() {
        return count
            .checked_mul(size)
            .map_or(ptr::null_mut(), |n| own_block(n, OWN_ALIGN));
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

/// `realloc`.
///
/// # Safety
/// A block of ours that the caller gives up where the answer is not null, or null.
#[inline(never)]
pub unsafe fn resize(block: *mut c_void, size: usize) -> *mut c_void {
    if ours() {
        return match block.is_null() {
            true => c::alloc(size, OWN_ALIGN),
            // SAFETY: blocks of our threads come from there.
            false => unsafe { c::realloc(block.cast(), size) },
        }
        .cast();
    }
    if block.is_null() {
        // The allocator may not have begun yet, and begins with a block.
        return allocate(size);
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
        let is_small = ebb_mi_owns(block);
        if !is_small && size >= GROWING_MIN {
            return or_no_memory(mapped_block::resize(block, size));
        }
        let old = usable_size(block);
        if is_small && (size < GROWING_MIN || size <= old) && size < MAPPED_MIN {
            if size >= REPORTED_MIN {
                admit(size.saturating_sub(old));
            }
            return or_no_memory(mi_realloc(block, size.max(LEAST)));
        }
        let moved = if size >= GROWING_MIN {
            mapped_block::allocate(size, mapped_block::ALIGN_MIN)
        } else {
            allocate(size)
        };
        if !moved.is_null() {
            ptr::copy_nonoverlapping(block.cast::<u8>(), moved.cast(), old.min(size));
            free(block);
        }
        or_no_memory(moved)
    }
}

/// An aligned block, or null.
///
/// # Safety
/// `align` is a power of two.
#[inline(never)]
pub unsafe fn allocate_aligned(align: usize, size: usize) -> *mut c_void {
    if ours() {
        return own_block(size, align.max(OWN_ALIGN));
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

/// Whether mimalloc has that address.
pub fn is_small(block: *const c_void) -> bool {
    // SAFETY: any address may be asked for.
    unsafe { ebb_mi_owns(block) }
}

/// Whether a block of mimalloc's begins there.
pub fn begins_small(at: *const c_void) -> bool {
    // SAFETY: any address may be asked for.
    unsafe { ebb_mi_begins(at) }
}

/// `malloc_usable_size`.
///
/// # Safety
/// A block of ours.
pub unsafe fn usable_size(block: *mut c_void) -> usize {
    // SAFETY: by the caller's contract.
    unsafe {
        match ebb_mi_owns(block) {
            true => mi_usable_size(block),
            false => mapped_block::usable_size(block),
        }
    }
}

/// Gives free memory back.
pub fn trim() {
    // SAFETY: collects this thread's heap.
    unsafe { mi_collect(true) };
}

/// Bytes that mimalloc holds from the system.
pub fn held_bytes() -> usize {
    let mut held = 0;
    let unused = ptr::null_mut();
    // SAFETY: null where a figure is not wanted.
    unsafe {
        mi_process_info(
            unused, unused, unused, unused, unused, &mut held, unused, unused,
        );
    }
    held
}
