//! Calls after which the kernel goes on referring to the program's pages: what has left the program by
//! then would be sent as what it has become (`ebb_pager`'s `references`). So what is lent is a copy,
//! or the call is refused as by a kernel that lacks it.

use core::ffi::{c_int, c_long, c_uint, c_void};
use core::ptr;

use ebb_pager::hooks;
use ebb_sys::{memory, raw};

use crate::libc_result;
use crate::next::Next;

type SetSockOpt =
    unsafe extern "C" fn(c_int, c_int, c_int, *const c_void, libc::socklen_t) -> c_int;

// SAFETY: the type is that of the manual page.
static SETSOCKOPT: Next<SetSockOpt> = unsafe { Next::new(c"setsockopt") };

pub fn resolve() {
    SETSOCKOPT.get();
}

/// No point of cancellation, where libc's is one.
///
/// # Safety
/// `vmsplice(2)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmsplice(
    fd: c_int,
    parts: *const libc::iovec,
    count: usize,
    flags: c_uint,
) -> isize {
    // SAFETY: the caller answers for the call.
    let result = libc_result(|| unsafe { splice_copy(fd, parts, count, flags) });
    result.map_or(-1, |bytes| bytes as isize)
}

/// Splices a copy of as much as the pipe may take. The call is the program's own otherwise: it waits,
/// fails and comes back early as that would.
///
/// # Safety
/// That of the system call.
unsafe fn splice_copy(
    fd: c_int,
    parts: *const libc::iovec,
    count: usize,
    flags: c_uint,
) -> Result<usize, i32> {
    let call = |parts: *const libc::iovec, count: usize| {
        let (at, count) = (parts as c_long, count as c_long);
        // SAFETY: the caller answers for the call.
        unsafe {
            raw::checked(
                libc::SYS_vmsplice,
                [fd.into(), at, count, flags.into(), 0, 0],
            )
        }
        .map_err(|e| e.0)
    };
    let Some(room) = hooks::wanted().then(|| room_to_write(fd)).flatten() else {
        return call(parts, count);
    };
    let copy = Copy::new(room)?;
    // SAFETY: as above.
    match unsafe { copy.fill(parts, count) }? {
        0 => call(parts, count),
        len => call(&copy.part(len), 1),
    }
}

/// How much a pipe holds, if `fd` is one that is written to by such a call.
fn room_to_write(fd: c_int) -> Option<usize> {
    // SAFETY: calls without pointers.
    let (flags, room) = unsafe {
        (
            libc::fcntl(fd, libc::F_GETFL),
            libc::fcntl(fd, libc::F_GETPIPE_SZ),
        )
    };
    let writes = flags >= 0 && flags & libc::O_ACCMODE != libc::O_RDONLY;
    usize::try_from(room).ok().filter(|_| writes)
}

/// Memory that is not managed, for as long as a call takes; a pipe keeps the pages it refers to.
struct Copy {
    start: usize,
    len: usize,
}

impl Copy {
    fn new(len: usize) -> Result<Self, i32> {
        let start = memory::reserve(len).map_err(|e| e.0)?;
        Ok(Self { start, len })
    }

    fn part(&self, len: usize) -> libc::iovec {
        libc::iovec {
            iov_base: ptr::with_exposed_provenance_mut(self.start),
            iov_len: len,
        }
    }

    /// Copies as much as there is room for; how much. By a system call, which says EFAULT where the
    /// program's memory cannot be read.
    ///
    /// # Safety
    /// `parts` are as many as `count` says.
    unsafe fn fill(&self, parts: *const libc::iovec, count: usize) -> Result<usize, i32> {
        let into = self.part(self.len);
        let (own, into) = (std::process::id().into(), &raw const into as c_long);
        let args = [own, into, 1, parts as c_long, count as c_long, 0];
        // SAFETY: the memory is ours and as long as we say; the caller answers for the rest.
        unsafe { raw::checked(libc::SYS_process_vm_readv, args) }.map_err(|e| e.0)
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        // SAFETY: ours, and used no more.
        let _ = unsafe { memory::munmap(self.start, self.len) };
    }
}

/// Refuses what would have `send` take pages instead of copies (`MSG_ZEROCOPY`, which does nothing
/// without).
///
/// # Safety
/// `setsockopt(2)`'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: libc::socklen_t,
) -> c_int {
    let refused = level == libc::SOL_SOCKET && name == libc::SO_ZEROCOPY && hooks::wanted();
    match SETSOCKOPT.get() {
        // SAFETY: the caller's call as it stands.
        Some(next) if !refused => unsafe { next(fd, level, name, value, len) },
        _ => libc_result(|| Err(libc::ENOPROTOOPT)).map_or(-1, |()| 0),
    }
}

/// Tells the pager of a new ring, whose requests it cannot see.
///
/// # Safety
/// That of the system call.
pub unsafe fn io_uring_setup(entries: c_long, parameters: c_long) -> c_long {
    let args = [entries, parameters, 0, 0, 0, 0];
    // SAFETY: the caller answers for the call.
    let ring =
        libc_result(|| unsafe { raw::checked(libc::SYS_io_uring_setup, args).map_err(|e| e.0) });
    if ring.is_ok() && hooks::wanted() {
        hooks::ring_made();
    }
    ring.map_or(-1, |fd| fd as c_long)
}
