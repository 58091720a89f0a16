//! libc's memory calls, handed to the pager.

use core::ffi::{c_int, c_long, c_ulong, c_void};
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

use ebb_pager::hooks;
use ebb_sys::memory::{PAGE, read_own};
use ebb_sys::userfaultfd::{UFFDIO_MOVE, UFFDIO_REGISTER, UFFDIO_UNREGISTER};
use ebb_sys::{Errno, raw};

use crate::memory::self_mem;
use crate::symbols::dlsym_next::DlsymNext;
use crate::symbols::errno::{keeping_errno, libc_result, not_there};

/// # Safety
/// `mmap(2)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller answers for the call, here and in each wrapper below.
    address(len, || unsafe {
        hooks::mmap(addr as usize, len, prot, flags, fd, offset)
    })
}

/// # Safety
/// `mmap(2)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the same function on a 64-bit system.
    unsafe { mmap(addr, len, prot, flags, fd, offset) }
}

/// # Safety
/// `munmap(2)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(addr: *mut c_void, len: usize) -> c_int {
    // SAFETY: as above.
    status(|| unsafe { hooks::munmap(addr as usize, len) })
}

/// libc declares the last argument variadic. The calling conventions of x86-64 and aarch64 pass it as if it were
/// declared, and it is read where the flags say it was given.
///
/// # Safety
/// `mremap(2)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new_addr: *mut c_void,
) -> *mut c_void {
    let placed = flags & (libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) != 0;
    let new_addr = if placed { new_addr as usize } else { 0 };
    // SAFETY: as above.
    address(new_len, || unsafe {
        hooks::mremap(old as usize, old_len, new_len, flags, new_addr)
    })
}

/// # Safety
/// `madvise(2)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int {
    // SAFETY: as above.
    status(|| unsafe { hooks::madvise(addr as usize, len, advice) })
}

/// Returns the error and leaves `errno` alone, as POSIX has it.
///
/// # Safety
/// `posix_madvise(3)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int {
    // Linux's MADV_DONTNEED discards data, which POSIX_MADV_DONTNEED must not.
    if advice == libc::POSIX_MADV_DONTNEED {
        return 0;
    }
    // SAFETY: as above.
    match keeping_errno(|| unsafe { hooks::madvise(addr as usize, len, advice) }) {
        Ok(()) => 0,
        Err(code) => code,
    }
}

/// # Safety
/// `process_madvise(2)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn process_madvise(
    process: c_int,
    areas: *const libc::iovec,
    count: usize,
    advice: c_int,
    flags: u32,
) -> isize {
    // SAFETY: as above.
    let heard =
        libc_result(|| unsafe { hooks::process_madvise(process, areas, count, advice, flags) });
    heard.map_or(-1, |bytes| bytes as isize)
}

/// # Safety
/// `mprotect(2)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mprotect(addr: *mut c_void, len: usize, prot: c_int) -> c_int {
    // SAFETY: as above.
    status(|| unsafe { hooks::mprotect(addr as usize, len, prot) })
}

/// Memory under a protection key is not paged.
///
/// # Safety
/// `pkey_mprotect(2)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pkey_mprotect(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    key: c_int,
) -> c_int {
    // SAFETY: as above.
    status(|| unsafe { hooks::pkey_mprotect(addr as usize, len, (prot, key)) })
}

/// The break of the last `brk` or `sbrk`; 0 before the first, when the kernel is asked.
static BREAK: AtomicUsize = AtomicUsize::new(0);

fn current_break() -> usize {
    match BREAK.load(Ordering::Relaxed) {
        0 => set_break(0),
        known => known,
    }
}

/// Asks for a break and answers the one there is.
pub(crate) fn set_break(wanted: usize) -> usize {
    // SAFETY: the program answers for what lies above a lower break; 0 only asks.
    let now = unsafe { hooks::brk_set(wanted) }.unwrap_or(BREAK.load(Ordering::Relaxed));
    BREAK.store(now, Ordering::Relaxed);
    self_mem::mapped_at(now, 0);
    now
}

/// # Safety
/// `brk(2)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brk(addr: *mut c_void) -> c_int {
    status(|| match set_break(addr as usize) {
        now if now < addr as usize => Err(libc::ENOMEM),
        _ => Ok(()),
    })
}

/// # Safety
/// `sbrk(3)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sbrk(increment: isize) -> *mut c_void {
    address(0, || {
        let old = current_break();
        if increment == 0 {
            return Ok(old);
        }
        let wanted = old.checked_add_signed(increment).ok_or(libc::ENOMEM)?;
        match set_break(wanted) {
            now if now == wanted => Ok(old),
            _ => Err(libc::ENOMEM),
        }
    })
}

/// # Safety
/// `mlock(2)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock(addr: *const c_void, len: usize) -> c_int {
    // SAFETY: as above.
    unsafe { mlock2(addr, len, 0) }
}

/// # Safety
/// `mlock2(2)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock2(addr: *const c_void, len: usize, flags: c_int) -> c_int {
    // SAFETY: as above.
    status(|| unsafe { hooks::mlock(addr as usize, len, flags) })
}

/// # Safety
/// `munlock(2)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munlock(addr: *const c_void, len: usize) -> c_int {
    // SAFETY: as above.
    status(|| unsafe { hooks::munlock(addr as usize, len) })
}

/// # Safety
/// `mlockall(2)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    let known = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;
    if flags & !known != 0 || flags & !libc::MCL_ONFAULT == 0 {
        return status(|| Err(libc::EINVAL));
    }
    // SAFETY: as above.
    status(|| unsafe { hooks::mlockall(flags) })
}

/// # Safety
/// `munlockall(2)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munlockall() -> c_int {
    // SAFETY: as above.
    status(|| unsafe { hooks::munlockall() })
}

type Ioctl = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;

// SAFETY: the type is that of the manual page; the third argument is passed as if it were declared.
static IOCTL: DlsymNext<Ioctl> = unsafe { DlsymNext::new(c"ioctl") };

type Prctl = unsafe extern "C" fn(c_int, c_ulong, c_ulong, c_ulong, c_ulong) -> c_int;

// SAFETY: as above, for what follows the first argument.
static PRCTL: DlsymNext<Prctl> = unsafe { DlsymNext::new(c"prctl") };

pub fn resolve() {
    IOCTL.get();
    PRCTL.get();
}

/// Memory that the program has a userfaultfd of its own for is not managed any more.
///
/// # Safety
/// `ioctl(2)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: the caller answers for the call.
    unsafe {
        if let Some(done) = memory_ioctl(fd, request, argument) {
            return done;
        }
        match IOCTL.get() {
            Some(next) => next(fd, request, argument),
            None => not_there(),
        }
    }
}

/// The part of an `ioctl` about memory that comes before the kernel's; its answer, if that was all.
///
/// # Safety
/// The arguments are those of an `ioctl`.
#[inline(always)]
pub(crate) unsafe fn memory_ioctl(
    fd: c_int,
    request: c_ulong,
    argument: *const c_void,
) -> Option<c_int> {
    const REGISTER: u32 = UFFDIO_REGISTER as u32;
    const UNREGISTER: u32 = UFFDIO_UNREGISTER as u32;
    const MOVE: u32 = UFFDIO_MOVE as u32;
    // The kernel looks at 32 bits, and some callers extend the sign.
    let before = match request as u32 {
        REGISTER | UNREGISTER => 0,
        // Where the pages go to is registered already; where they come from, those that are out are holes.
        MOVE => 1,
        _ => return None,
    };
    if argument.is_null() {
        return None;
    }
    let mut area = [0; 16];
    let at = argument.cast::<u64>().wrapping_add(before).addr();
    // The kernel says what is wrong with it.
    read_own(at, &mut area).ok()?;
    let word = |half: &[u8]| u64::from_ne_bytes(half.try_into().expect("a word"));
    let (start, len) = (word(&area[..8]), word(&area[8..]));
    let (start, end) = (start as usize, start.saturating_add(len) as usize);
    if request as u32 == UNREGISTER {
        // SAFETY: as above.
        return unsafe { unregister(fd, start, end) };
    }
    keeping_errno(|| hooks::release_to_program(start, end - start));
    None
}

/// Ends the registration of what the program has registered: it may name more than it began, and what is ours stays so.
/// None where all is the program's.
///
/// # Safety
/// The program asks for this.
unsafe fn unregister(fd: c_int, start: usize, end: usize) -> Option<c_int> {
    // The kernel refuses what does not begin and end with a page.
    if !hooks::pages() || !(start | end).is_multiple_of(PAGE) {
        return None;
    }
    let (mut at, mut ours, mut failed) = (start, false, Ok(()));
    while at < end {
        let Some((stop, managed)) = keeping_errno(|| hooks::managed_part(at, end)) else {
            return Some(status(|| Err(libc::EBUSY)));
        };
        ours |= managed;
        if !managed {
            let part = [at as u64, (stop - at) as u64];
            let argument = (&raw const part).expose_provenance() as c_long;
            let args = [fd.into(), UFFDIO_UNREGISTER as c_long, argument, 0, 0, 0];
            if !ours && stop == end {
                return None;
            }
            // SAFETY: as above.
            match unsafe { raw::checked(libc::SYS_ioctl, args) } {
                // A part without memory is refused, unless there is some beside it.
                Ok(_) | Err(Errno(libc::EINVAL)) => {}
                Err(Errno(error)) => failed = Err(error),
            }
        }
        at = stop;
    }
    Some(status(|| failed))
}

/// `prctl(2)`. Pages that the kernel merges lose the protection by which writes are seen: in a process that pages none
/// are merged, as by `madvise`.
///
/// # Safety
/// `prctl(2)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(
    option: c_int,
    a: c_ulong,
    b: c_ulong,
    c: c_ulong,
    d: c_ulong,
) -> c_int {
    if merges(option, a) {
        return 0;
    }
    if let Some(next) = PRCTL.of_another() {
        // SAFETY: the caller answers for the call, here and below.
        return unsafe { next(option, a, b, c, d) };
    }
    let args = [
        option.into(),
        a as c_long,
        b as c_long,
        c as c_long,
        d as c_long,
        0,
    ];
    // SAFETY: as above.
    let answered = libc_result(|| unsafe { raw::checked(libc::SYS_prctl, args) }.map_err(|e| e.0));
    answered.map_or(-1, |answer| answer as c_int)
}

/// Whether a `prctl` would have the kernel merge pages of a process that pages.
pub(crate) fn merges(option: c_int, on: c_ulong) -> bool {
    const SET_MEMORY_MERGE: c_int = 67;
    option == SET_MEMORY_MERGE && on != 0 && hooks::pages()
}

/// The address that a call mapped `len` bytes at.
pub(crate) fn address(len: usize, hook: impl FnOnce() -> Result<usize, i32>) -> *mut c_void {
    let start = libc_result(hook).inspect(|start| self_mem::mapped_at(*start, len));
    start.map_or(libc::MAP_FAILED, ptr::with_exposed_provenance_mut)
}

fn status(hook: impl FnOnce() -> Result<(), i32>) -> c_int {
    libc_result(hook).map_or(-1, |()| 0)
}
