//! Calls after which the kernel goes on referring to the program's pages: what has left the program by
//! then would be sent as what it has become (`ebb_pager`'s `references`). So the bytes are copied, or
//! the call is refused as by a kernel that lacks it.

use core::ffi::{c_int, c_long, c_uint, c_void};

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

/// As a write, whose bytes are copied. No point of cancellation, where libc's is one.
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
    let (at, len) = (parts as c_long, count as c_long);
    let known = flags & !ALL == 0;
    // SAFETY: the caller answers for the call.
    let result = libc_result(|| unsafe {
        if known && hooks::wanted() && is_written_to(fd) {
            let wait = flags & libc::SPLICE_F_NONBLOCK == 0;
            match call(libc::SYS_pwritev2, [fd.into(), at, len, -1, 0, RWF_NOWAIT]) {
                // Full.
                Err(libc::EAGAIN) if wait => write_pages(fd, parts, count, wait),
                // A named pipe, or one that was spliced to.
                Err(libc::EOPNOTSUPP) => write_pages(fd, parts, count, wait),
                result => result,
            }
        } else {
            call(libc::SYS_vmsplice, [fd.into(), at, len, flags.into(), 0, 0])
        }
    });
    result.map_or(-1, |bytes| bytes as isize)
}

/// All flags of splices.
const ALL: c_uint =
    libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
const RWF_NOWAIT: c_long = libc::RWF_NOWAIT as c_long;

/// # Safety
/// That of the system call.
unsafe fn call(number: c_long, args: [c_long; 6]) -> Result<usize, i32> {
    // SAFETY: passed on to the caller.
    unsafe { raw::checked(number, args) }.map_err(|e| e.0)
}

/// Whether it is a pipe that takes what is spliced, and does not give it.
fn is_written_to(fd: c_int) -> bool {
    // SAFETY: calls without pointers.
    let (flags, size) = unsafe {
        let of = |what| libc::fcntl(fd, what);
        (of(libc::F_GETFL), of(libc::F_GETPIPE_SZ))
    };
    size >= 0 && flags >= 0 && flags & libc::O_ACCMODE != libc::O_RDONLY
}

/// Writes page by page, each where there is room for it: a splice waits for room for something, if
/// at all, and never for more.
///
/// # Safety
/// The parts are readable; what they name is the kernel's to check.
unsafe fn write_pages(
    fd: c_int,
    parts: *const libc::iovec,
    count: usize,
    wait: bool,
) -> Result<usize, i32> {
    let mut done = 0;
    for i in 0..count {
        // SAFETY: as many as `count` says.
        let part = unsafe { parts.add(i).read() };
        let mut at = 0;
        while at < part.iov_len {
            if (done > 0 || !wait) && has_room(fd, 0) != Ok(true) {
                return if done > 0 {
                    Ok(done)
                } else {
                    Err(libc::EAGAIN)
                };
            }
            let from = part.iov_base.wrapping_byte_add(at) as c_long;
            let len = (part.iov_len - at).min(memory::PAGE) as c_long;
            // SAFETY: the kernel says what it cannot read.
            match unsafe { call(libc::SYS_write, [fd.into(), from, len, 0, 0, 0]) } {
                Ok(bytes) => (at, done) = (at + bytes, done + bytes),
                // A splice does not ask whether the descriptor is one that never waits.
                Err(libc::EAGAIN) if done == 0 && wait => _ = has_room(fd, -1)?,
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(done)
}

/// Whether a page can be written without a wait, or would fail, within so many milliseconds.
fn has_room(fd: c_int, timeout: c_long) -> Result<bool, i32> {
    let mut asked = libc::pollfd {
        fd,
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: one entry, as we say.
    unsafe {
        call(
            libc::SYS_poll,
            [&raw mut asked as c_long, 1, timeout, 0, 0, 0],
        )
    }
    .map(|ready| ready > 0)
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
    let ring = libc_result(|| unsafe { call(libc::SYS_io_uring_setup, args) });
    if ring.is_ok() && hooks::wanted() {
        hooks::ring_made();
    }
    ring.map_or(-1, |fd| fd as c_long)
}
