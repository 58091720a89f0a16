//! Anonymous memory by raw system calls, and what is made of it.

pub mod futex_lock;
pub mod heap;
pub mod memory_file;
pub mod own;
pub mod pagemap;
mod region;
pub mod secret;
pub mod shm;
pub mod userfaultfd;

use crate::Errno;
pub use crate::kernel::PAGE;
use crate::kernel::raw;
use libc::{c_int, c_long};

/// Rounds up to whole pages; to as many as addresses have, what is more.
pub const fn page_up(bytes: usize) -> usize {
    bytes.saturating_add(PAGE - 1) & !(PAGE - 1)
}

/// Requires: as the system call.
/// `mmap`, raw. Requires: MAP_FIXED only over memory that the caller may replace.
pub unsafe fn mmap(
    addr: usize,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> Result<usize, Errno> {
    // SAFETY: passed on to the caller.
    unsafe {
        raw::checked(
            libc::SYS_mmap,
            [
                addr as c_long,
                len as c_long,
                prot as c_long,
                flags as c_long,
                fd as c_long,
                offset,
            ],
        )
    }
}

/// `munmap`, raw. Requires: nobody uses the range any more.
pub unsafe fn munmap(addr: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: passed on to the caller.
    unsafe {
        raw::checked(
            libc::SYS_munmap,
            [addr as c_long, len as c_long, 0, 0, 0, 0],
        )
    }
    .map(|_| ())
}

/// `mremap`, raw. Requires: as for `munmap` of the old range and MAP_FIXED of the new.
pub unsafe fn mremap(
    old: usize,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new: usize,
) -> Result<usize, Errno> {
    // SAFETY: passed on to the caller.
    unsafe {
        raw::checked(
            libc::SYS_mremap,
            [
                old as c_long,
                old_len as c_long,
                new_len as c_long,
                flags as c_long,
                new as c_long,
                0,
            ],
        )
    }
}

/// `mprotect`, raw. Requires: no Rust reference relies on the old protection.
pub unsafe fn mprotect(addr: usize, len: usize, prot: c_int) -> Result<(), Errno> {
    // SAFETY: passed on to the caller.
    unsafe {
        raw::checked(
            libc::SYS_mprotect,
            [addr as c_long, len as c_long, prot as c_long, 0, 0, 0],
        )
    }
    .map(|_| ())
}

/// `madvise`, raw. Requires: for advice that drops content, that nobody needs it.
pub unsafe fn madvise(addr: usize, len: usize, advice: c_int) -> Result<(), Errno> {
    // SAFETY: passed on to the caller.
    unsafe {
        raw::checked(
            libc::SYS_madvise,
            [addr as c_long, len as c_long, advice as c_long, 0, 0, 0],
        )
    }
    .map(|_| ())
}

/// `brk`, raw: the end of the heap after the call.
pub unsafe fn brk(addr: usize) -> usize {
    // SAFETY: passed on to the caller.
    unsafe { raw::call(libc::SYS_brk, [addr as c_long, 0, 0, 0, 0, 0]) as usize }
}

/// `mlock2`, raw; without flags `mlock`, which older kernels have too.
pub fn mlock(addr: usize, len: usize, flags: c_int) -> Result<(), Errno> {
    let number = match flags {
        0 => libc::SYS_mlock,
        _ => libc::SYS_mlock2,
    };
    let args = [addr as c_long, len as c_long, flags as c_long, 0, 0, 0];
    // SAFETY: locking changes no content.
    unsafe { raw::checked(number, args) }.map(|_| ())
}

/// `munlock`, raw.
pub fn munlock(addr: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: unlocking changes no content.
    unsafe {
        raw::checked(
            libc::SYS_munlock,
            [addr as c_long, len as c_long, 0, 0, 0, 0],
        )
    }
    .map(|_| ())
}

/// `mlockall`, raw.
pub fn mlockall(flags: c_int) -> Result<(), Errno> {
    // SAFETY: locking changes no content.
    unsafe { raw::checked(libc::SYS_mlockall, [flags as c_long, 0, 0, 0, 0, 0]) }.map(|_| ())
}

/// `munlockall`, raw.
pub fn munlockall() -> Result<(), Errno> {
    // SAFETY: as above.
    unsafe { raw::checked(libc::SYS_munlockall, [0; 6]) }.map(|_| ())
}

/// `pkey_mprotect`, raw. Requires: as `mprotect`.
pub unsafe fn pkey_mprotect(addr: usize, len: usize, prot: c_int, key: c_int) -> Result<(), Errno> {
    let args = [addr as c_long, len as c_long, prot.into(), key.into(), 0, 0];
    // SAFETY: passed on to the caller.
    unsafe { raw::checked(libc::SYS_pkey_mprotect, args) }.map(|_| ())
}

/// `process_madvise`, raw: how many bytes heard of it. Requires: as `madvise`, of `count` areas.
pub unsafe fn process_madvise(
    process: c_int,
    areas: *const libc::iovec,
    count: usize,
    advice: c_int,
    flags: u32,
) -> Result<usize, Errno> {
    let (areas, count, advice) = (areas as c_long, count as c_long, advice.into());
    let args = [process.into(), areas, count, advice, flags.into(), 0];
    // SAFETY: passed on to the caller.
    unsafe { raw::checked(libc::SYS_process_madvise, args) }
}

/// Reads memory of the calling process that may not be there, by the kernel.
///
/// # Errors
/// EFAULT: not all of it can be read. EPERM, ENOSYS: a filter of the program's refuses to do it so.
pub fn look_at_own(from: usize, to: &mut [u8]) -> Result<(), Errno> {
    // SAFETY: reads into the buffer, by the kernel.
    unsafe {
        transfer(
            libc::SYS_process_vm_readv,
            to.as_mut_ptr() as usize,
            from,
            to.len(),
        )
    }
}

/// Reads what a caller of the program's gave. Where a filter refuses the way that tells of bad addresses, as the
/// program itself would.
///
/// # Errors
/// EFAULT: not all of it can be read.
pub fn read_own(from: usize, to: &mut [u8]) -> Result<(), Errno> {
    match look_at_own(from, to) {
        Err(Errno(libc::EPERM | libc::ENOSYS)) => {
            // SAFETY: the caller of the program's answers for what it gave.
            unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to.as_mut_ptr(), to.len()) };
            Ok(())
        }
        result => result,
    }
}

/// Writes what a caller of the program's wants to be written; as for [`read_own`].
///
/// # Errors
/// EFAULT: not all of it can be written.
pub fn write_own(to: usize, from: &[u8]) -> Result<(), Errno> {
    // SAFETY: the caller's memory, or nobody's: what is written is what the program asked to be.
    let written = unsafe {
        transfer(
            libc::SYS_process_vm_writev,
            from.as_ptr() as usize,
            to,
            from.len(),
        )
    };
    match written {
        Err(Errno(libc::EPERM | libc::ENOSYS)) => {
            // SAFETY: the caller of the program's answers for what it gave.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to as *mut u8, from.len()) };
            Ok(())
        }
        result => result,
    }
}

/// Between a buffer of ours and memory of the process, by the kernel.
///
/// Requires: the buffer is valid for so many bytes, to be written where that is read to.
unsafe fn transfer(call: c_long, ours: usize, theirs: usize, len: usize) -> Result<(), Errno> {
    let area = |start: usize| libc::iovec {
        iov_base: start as *mut libc::c_void,
        iov_len: len,
    };
    let (ours, theirs) = (area(ours), area(theirs));
    let of = |area: &libc::iovec| (&raw const *area) as c_long;
    let process = c_long::from(std::process::id());
    // SAFETY: passed on to the caller; one area on each side.
    match unsafe { raw::checked(call, [process, of(&ours), 1, of(&theirs), 1, 0]) } {
        Ok(done) if done == len => Ok(()),
        Ok(_) => Err(Errno(libc::EFAULT)),
        Err(error) => Err(error),
    }
}

/// So many bytes of zeros from the global allocator, which takes no memory for them before they are written. None: it
/// has no addresses for them.
pub fn zeros(bytes: usize) -> Option<Box<[u8]>> {
    let layout = std::alloc::Layout::array::<u8>(bytes).ok()?;
    if bytes == 0 {
        return Some(Box::default());
    }
    // SAFETY: of a size that is not zero.
    let start = unsafe { std::alloc::alloc_zeroed(layout) };
    let start = std::ptr::NonNull::new(start)?;
    let all = std::ptr::NonNull::slice_from_raw_parts(start, bytes);
    // SAFETY: the allocator's, of this layout, all of it written with zeros, and nobody else's.
    Some(unsafe { Box::from_raw(all.as_ptr()) })
}

/// New private anonymous read-write memory at an address of the kernel's choice, not reserved
/// against the commit limit.
///
/// # Errors
/// Those of mmap(2); ENOMEM also if there are too many mappings of ours.
pub fn reserve(len: usize) -> Result<usize, Errno> {
    own::OWN.map(len)
}

/// The same; a forked child has no such memory.
///
/// # Errors
/// As [`reserve`].
pub fn reserve_alone(len: usize) -> Result<usize, Errno> {
    own::OWN.map_alone(len)
}

/// Gives up memory of [`reserve`] or [`reserve_alone`]. Requires: whole pages of it, which nobody uses any more.
pub unsafe fn release(start: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: passed on to the caller.
    unsafe { own::OWN.unmap(start, len) }
}

/// Has the processor bring these bytes into its caches; it goes on meanwhile.
pub fn prefetch(bytes: &[u8]) {
    /// Bytes of a cache line.
    const LINE: usize = 64;
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch has no effect that a program can see.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(target_arch = "aarch64")]
    for line in bytes.chunks(LINE) {
        // SAFETY: as above.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{}]", in(reg) line.as_ptr(), options(nostack, preserves_flags, readonly))
        };
    }
}

/// Returns the whole pages inside `bytes` to the system; they read as zeros afterwards.
pub fn give_back(bytes: &mut [u8]) {
    let (start, end) = whole_pages(bytes);
    if start < end {
        // SAFETY: the pages lie inside a mutable borrow of plain bytes, for which zeros are
        // as good a value as any.
        let _ = unsafe { madvise(start, end - start, libc::MADV_DONTNEED) };
    }
}

/// The same by libc's function, as any program does it: where the memory is paged, the pager sees
/// it. So not for our own use inside the preload library.
pub fn drop_content(bytes: &mut [u8]) {
    let (start, end) = whole_pages(bytes);
    if start < end {
        // SAFETY: as in `give_back`.
        unsafe { libc::madvise(start as *mut _, end - start, libc::MADV_DONTNEED) };
    }
}

/// Where the whole pages inside `bytes` begin and end.
fn whole_pages(bytes: &[u8]) -> (usize, usize) {
    let start = bytes.as_ptr() as usize;
    (page_up(start), (start + bytes.len()) & !(PAGE - 1))
}

/// Drops the content of private anonymous memory: runs of whole pages, (address, bytes), which read
/// as zeros afterwards. The processors that run other threads are told once for all, where the
/// kernel can do that for the caller's own memory (Linux 6.16).
///
/// Whether all of it went: not, if some is locked.
///
/// Requires: nobody needs the content.
pub unsafe fn drop_pages(parts: &[(usize, usize)]) -> bool {
    /// `PIDFD_SELF_THREAD`.
    const SELF: c_long = -10000;
    if (2..=PARTS).contains(&parts.len()) {
        let mut vectors = [const {
            libc::iovec {
                iov_base: std::ptr::null_mut(),
                iov_len: 0,
            }
        }; PARTS];
        for (vector, &(start, len)) in vectors.iter_mut().zip(parts) {
            *vector = libc::iovec {
                iov_base: start as *mut libc::c_void,
                iov_len: len,
            };
        }
        let all: usize = parts.iter().map(|(_, len)| len).sum();
        let (list, count) = (vectors.as_ptr() as c_long, parts.len() as c_long);
        let args = [SELF, list, count, libc::MADV_DONTNEED.into(), 0, 0];
        // SAFETY: the vectors live during the call; the rest is passed on to the caller.
        let done = unsafe { raw::checked(libc::SYS_process_madvise, args) };
        if done == Ok(all) {
            return true;
        }
    }
    parts.iter().fold(true, |all, &(start, len)| {
        // SAFETY: passed on to the caller.
        all & unsafe { madvise(start, len, libc::MADV_DONTNEED) }.is_ok()
    })
}

/// Runs that `drop_pages` drops with one call, at most.
const PARTS: usize = 64;
