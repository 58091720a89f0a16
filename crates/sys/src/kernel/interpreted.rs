//! The system calls that tests make under Miri, which interprets no assembly.
//!
//! Miri has them in libc, and no more of each than is asked for here: memory comes where it likes, and is unmapped
//! as it was mapped. So a place that is asked for is always taken.
//!
//! Not here: calls on files, processes and memory of others. They fail with ENOSYS.

use std::ffi::{c_int, c_long, c_void};

const PRIVATE: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// As [`raw::call`](super::raw::call).
///
/// # Safety
/// That of the system call.
pub unsafe fn call(number: c_long, [a, b, c, d, ..]: [c_long; 6]) -> c_long {
    let (start, len) = (a as *mut c_void, b as usize);
    let fixed = c_long::from(libc::MAP_FIXED_NOREPLACE);
    // SAFETY: the caller answers for the call.
    let result = unsafe {
        match number {
            libc::SYS_mmap if d & fixed != 0 => return -c_long::from(libc::EEXIST),
            libc::SYS_mmap => libc::mmap(std::ptr::null_mut(), len, c as c_int, PRIVATE, -1, 0)
                .expose_provenance() as c_long,
            libc::SYS_munmap => libc::munmap(start, len).into(),
            libc::SYS_mremap if d == libc::MREMAP_MAYMOVE.into() => {
                libc::mremap(start, len, c as usize, libc::MREMAP_MAYMOVE).expose_provenance()
                    as c_long
            }
            libc::SYS_madvise if c == libc::MADV_DONTNEED.into() => {
                start.write_bytes(0, len);
                0
            }
            libc::SYS_madvise => 0,
            libc::SYS_futex => {
                let (word, timeout) = (a as *mut u32, d as *const libc::timespec);
                libc::syscall(number, word, b as c_int, c as c_int, timeout)
            }
            _ => return -c_long::from(libc::ENOSYS),
        }
    };
    match result {
        // SAFETY: `errno` of the calling thread.
        -1 => -c_long::from(unsafe { *libc::__errno_location() }),
        result => result,
    }
}
