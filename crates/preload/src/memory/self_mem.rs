//! Memory that a program writes through `/proc/self/mem`, as Julia does with code that it may otherwise only read.
//!
//! The kernel waits for nobody there: where a page is out, or protected so that a write to it is seen, it answers EIO. And
//! a page that is there it writes without asking anybody, though its content may just be on the way out. So what is to
//! be written is let go before, as for a userfaultfd of the program's own: it stays in RAM, and counts as what is not managed.
//!
//! Not here: reads; `pwritev`, and `write` after `lseek`; files of other processes' memory.

use core::ffi::{c_int, c_long, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use ebb_pager::hooks;
use ebb_sys::memory::{PAGE, page_up};
use ebb_sys::{Errno, proc, raw};

use crate::symbols::dlsym_next::DlsymNext;
use crate::symbols::errno::{libc_result, not_there};

type Pwrite = unsafe extern "C" fn(c_int, *const c_void, usize, i64) -> isize;

// SAFETY: the type is that of the manual page, and `off_t` has 64 bits.
static PWRITE: DlsymNext<Pwrite> = unsafe { DlsymNext::new(c"pwrite") };
// SAFETY: as above.
static PWRITE64: DlsymNext<Pwrite> = unsafe { DlsymNext::new(c"pwrite64") };

/// No file is as large. The system maps far above, and mostly has the heap there, too.
const HIGH: usize = 1 << 40;

/// The span of all memory that the program ever mapped below that: how far below it begins, and where it ends.
static LOW_BELOW: AtomicUsize = AtomicUsize::new(0);
static LOW_END: AtomicUsize = AtomicUsize::new(0);

/// Memory was mapped here.
pub(crate) fn mapped_at(start: usize, len: usize) {
    if start < HIGH {
        LOW_BELOW.fetch_max(HIGH - start, Relaxed);
        LOW_END.fetch_max(start.saturating_add(len), Relaxed);
    }
}

/// Whether memory of the program's may be at `start..end`. Else these are bytes of a file: each look at a descriptor would
/// take time, and a filter may end the program for it.
fn may_be_memory(start: usize, end: usize) -> bool {
    let low = HIGH - LOW_BELOW.load(Relaxed)..LOW_END.load(Relaxed);
    end > HIGH || start < low.end && end > low.start
}

/// How often memory is let go anew where the kernel says that a page is not there.
const TRIES: usize = 16;

/// A thread may be cancelled in this call, which unwinds. So there is no frame of ours around libc's function: it is jumped
/// to, once it is known which is to be called.
macro_rules! positioned_write {
    ($name:ident, $of_file:ident, $next:expr) => {
        /// # Safety
        /// `pwrite(2)`'s.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            fd: c_int,
            from: *const c_void,
            len: usize,
            at: i64,
        ) -> isize {
            // Five words on the stack align it for the call.
            core::arch::naked_asm!(
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "sub rsp, 8",
                "call {of_file}",
                "add rsp, 8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "jmp rax",
                of_file = sym $of_file,
            )
        }

        extern "C" fn $of_file(fd: c_int, _: *const c_void, len: usize, at: i64) -> Pwrite {
            match is_of_memory(fd, len, at) {
                true => to_memory,
                false => $next.unwrap_or(missing),
            }
        }
    };
}

positioned_write!(pwrite, for_pwrite, PWRITE.get());
// The same function on a 64-bit system, but where another library has one of each name.
positioned_write!(
    pwrite64,
    for_pwrite64,
    PWRITE64.of_another().or_else(|| PWRITE.get())
);

/// Whether a call writes this process's memory.
fn is_of_memory(fd: c_int, len: usize, at: i64) -> bool {
    let start = usize::try_from(at).ok();
    start.is_some_and(|start| may_be_memory(start, start.saturating_add(len))) && is_own_memory(fd)
}

/// # Safety
/// `pwrite(2)`'s, of memory.
unsafe extern "C" fn to_memory(fd: c_int, from: *const c_void, len: usize, at: i64) -> isize {
    // SAFETY: the caller answers for the call.
    let written = libc_result(|| unsafe { write_memory(fd, from, len, at as usize) });
    written.map_or(-1, |bytes| bytes as isize)
}

unsafe extern "C" fn missing(_: c_int, _: *const c_void, _: usize, _: i64) -> isize {
    not_there() as isize
}

/// Whether a descriptor is that of `/proc/self/mem`. One that a parent opened is of the parent's memory.
fn is_own_memory(fd: c_int) -> bool {
    let mut room = [MaybeUninit::uninit(); 32];
    let link = proc::path_of_fd(fd, &mut room).and_then(|link| core::str::from_utf8(link).ok());
    let number = link.and_then(|link| link.strip_prefix("/proc/")?.strip_suffix("/mem"));
    number.and_then(|number| number.parse().ok()) == Some(std::process::id())
}

/// The call. The kernel stops at the first page that it may not write; what lies behind is written by another call.
///
/// # Safety
/// `pwrite(2)`'s.
unsafe fn write_memory(
    fd: c_int,
    from: *const c_void,
    len: usize,
    at: usize,
) -> Result<usize, i32> {
    let (mut done, mut tries) = (0, 0);
    while done < len {
        let (from, at, left) = (from.wrapping_byte_add(done), at + done, len - done);
        let start = at & !(PAGE - 1);
        let end = page_up(at.saturating_add(left));
        hooks::release_written(start, end - start);
        let buffer = from.expose_provenance() as c_long;
        let args = [fd.into(), buffer, left as c_long, at as c_long, 0, 0];
        // SAFETY: the caller answers for the call.
        match unsafe { raw::checked(libc::SYS_pwrite64, args) } {
            Ok(written) if written > 0 => done += written,
            // The process begins to page just now, or nothing is mapped there.
            Err(Errno(libc::EIO)) if tries < TRIES => tries += 1,
            Err(Errno(error)) if done == 0 => return Err(error),
            _ => break,
        }
    }
    Ok(done)
}
