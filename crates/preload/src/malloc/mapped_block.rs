//! Large blocks: each a map of its own, managed like any map of the program.
//!
//! ```text
//! base (aligned to SLICE)          block
//! | unused ........... | Header   | size bytes ... usable .... | end of the map
//! ```
//!
//! Invariants: `block = base + max(ALIGN_MIN, align)`, and the header ends at `block`. No memory of mimalloc shares
//! the slice of [`SLICE`] bytes in which `block` lies. So mimalloc's page map, which has one entry a slice, does not
//! know the block.
//!
//! A block grows by `mremap`: its pages move and are neither copied nor touched. A fresh
//! map is zero, and pages that are not touched cost nothing; so growth rounds up freely.
//!
//! Freed maps are not kept. They go back at once.

use core::ffi::c_void;
use core::ptr;

use crate::memory::calls::{mmap, mremap};
use crate::symbols::errno::keeping_errno;
use ebb_pager::hooks;
use ebb_sys::file;
use ebb_sys::memory::{self as raw, PAGE};

/// The least alignment of a block, and the room of its header.
pub const ALIGN_MIN: usize = 64;

/// mimalloc's unit of addresses (`MI_ARENA_SLICE_SIZE`).
const SLICE: usize = 64 << 10;

#[repr(C)]
struct Header {
    base: usize,
    /// Bytes of the map.
    len: usize,
    /// `base ^ len ^ block ^ SEAL`.
    check: usize,
}

const SEAL: usize = 0x6562_6274_6964_6521;

const _: () = assert!(size_of::<Header>() <= ALIGN_MIN);

fn header_of(block: *mut c_void) -> *mut Header {
    block.cast::<u8>().wrapping_sub(ALIGN_MIN).cast()
}

/// A zeroed block, or null. `align` is a power of two.
pub fn allocate(size: usize, align: usize) -> *mut c_void {
    let offset = align.max(ALIGN_MIN);
    let Some(len) = map_length(size, offset) else {
        return ptr::null_mut();
    };
    let base = reserve(len, align.max(SLICE));
    if base.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the map takes the place of the reservation, and is longer than the offset.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let at = mmap(base.cast(), len, protection, flags | libc::MAP_FIXED, -1, 0);
        if at == libc::MAP_FAILED {
            cancel(base, len);
            return ptr::null_mut();
        }
        seal(base.add(offset).cast(), base, len)
    }
}

/// Grows or shrinks a block, keeping its bytes; null, and the block as it was, where there
/// is no room.
///
/// # Safety
/// `block` came from this module and is given up where the answer is not null.
pub unsafe fn resize(block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: by the caller's contract.
    let (base, old_len) = unsafe { read(block) };
    let offset = block as usize - base as usize;
    let Some(exact) = map_length(size, offset) else {
        return ptr::null_mut();
    };
    let len = if exact <= old_len {
        exact
    } else {
        // Eight growths to a doubling at most, however small the caller's steps.
        exact.max(map_length(old_len + old_len / 8, 0).unwrap_or(exact))
    };
    if len == old_len {
        return block;
    }
    // SAFETY: the map is the block's own, and moves only onto a range just reserved.
    unsafe {
        // In place if it can be: shrinking always, growing if the addresses behind are free. That it cannot is no error,
        // which the wrapper would leave in `errno`.
        if keeping_errno(|| hooks::mremap(base as usize, old_len, len, 0, 0)).is_ok() {
            return seal(block, base, len);
        }
        let target = reserve(len, offset.max(SLICE));
        if target.is_null() {
            return ptr::null_mut();
        }
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let at = mremap(base.cast(), old_len, len, flags, target.cast());
        if at == libc::MAP_FAILED {
            // The kernel may have unmapped the reservation first, and another thread have mapped something there since.
            // At worst addresses are left that nobody uses.
            return ptr::null_mut();
        }
        seal(target.add(offset).cast(), target, len)
    }
}

/// # Safety
/// `block` came from this module and is given up.
pub unsafe fn free(block: *mut c_void) {
    // SAFETY: by the caller's contract.
    unsafe {
        let (base, len) = read(block);
        // `free` keeps `errno`. Refused: it stays, like what is locked.
        let _ = keeping_errno(|| hooks::munmap(base as usize, len));
    }
}

/// Bytes from the block to the end of its map.
///
/// # Safety
/// `block` came from this module.
pub unsafe fn usable_size(block: *mut c_void) -> usize {
    // SAFETY: by the caller's contract.
    let (base, len) = unsafe { read(block) };
    len - (block as usize - base as usize)
}

/// Length of a map with room for `size` bytes behind `offset`; `None` past what is
/// addressable.
fn map_length(size: usize, offset: usize) -> Option<usize> {
    size.checked_add(offset)?
        .checked_next_multiple_of(PAGE)
        .filter(|len| *len <= isize::MAX as usize)
}

/// A reservation at a multiple of `align`, or null: nothing but addresses, which the pager
/// first hears of when a map takes their place.
fn reserve(len: usize, align: usize) -> *mut u8 {
    let Some(padded) = len.checked_add(align) else {
        return ptr::null_mut();
    };
    // SAFETY: a fresh map; what is cut off it is ours.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let Ok(start) = raw::mmap(0, padded, libc::PROT_NONE, flags, -1, 0) else {
            return ptr::null_mut();
        };
        let start = start as *mut u8;
        let head = start.align_offset(align);
        let base = start.add(head);
        cancel(start, head);
        cancel(base.add(len), padded - head - len);
        base
    }
}

/// # Safety
/// The range is part of a reservation.
unsafe fn cancel(start: *mut u8, len: usize) {
    if len > 0 {
        // SAFETY: nothing but addresses of ours.
        let _ = unsafe { raw::munmap(start as usize, len) };
    }
}

/// Writes the header and answers the block.
///
/// # Safety
/// The room before `block` lies in its map.
unsafe fn seal(block: *mut c_void, base: *mut u8, len: usize) -> *mut c_void {
    let check = base as usize ^ len ^ block as usize ^ SEAL;
    let base = base as usize;
    // SAFETY: by the caller's contract; ALIGN_MIN aligned.
    unsafe { header_of(block).write(Header { base, len, check }) };
    block
}

/// The block's map. Ends the process, as glibc does, if the program names an address that
/// is no block: going on would unmap memory that is in use.
///
/// # Safety
/// `block` is an address that the program takes for a block.
unsafe fn read(block: *mut c_void) -> (*mut u8, usize) {
    if (block as usize).is_multiple_of(ALIGN_MIN) {
        // SAFETY: aligned; where the program is right it is a header of ours, and where it
        // is wrong and nothing is mapped, it dies here as it deserves.
        let header = unsafe { header_of(block).read() };
        if header.check == header.base ^ header.len ^ block as usize ^ SEAL {
            return (ptr::with_exposed_provenance_mut(header.base), header.len);
        }
    }
    invalid_pointer()
}

#[cold]
fn invalid_pointer() -> ! {
    let text = b"ebb: free() or realloc() of an address that malloc() did not give\n";
    file::write_standard_error(text);
    // SAFETY: ends the process.
    unsafe { libc::abort() }
}
