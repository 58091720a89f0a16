//! `libebb_preload.so`: what `LD_PRELOAD` puts into every program of a tree.
//!
//! It takes the place of libc's memory interface and hands it to the pager:
//!
//! - [`malloc`]: the malloc family, served by mimalloc, and by [`mapped`] where blocks are
//!   large. Their `mmap` and `madvise` calls bind to the symbols of this library, so they are managed like the program's maps.
//! - [`memory`]: `mmap`, `munmap`, `mremap`, `madvise`, `mprotect`, `brk`, `mlock` and kin.
//! - [`syscall`]: forks and memory calls by number; [`rings`]: io_uring.
//! - [`dlopen`]: libraries that would look past this one.
//! - [`thread`]: `pthread_create`, as stacks that the program brings for its threads are not paged.
//! - [`text`]: texts of errors for tasks of ours.
//! - [`mutex`]: robust mutexes, to which the kernel stores.
//! - [`user`]: changes of user, which threads of ours follow.
//! - [`fork`]: handlers around every fork; [`exec`]: the environment of every exec; [`refuse`]: programs
//!   that shall not be started.
//!
//! Protocol. The library's constructor runs before any other library's (`-z initfirst`),
//! but its symbols may be called earlier still, by the loader: each works from the first
//! instruction of the process on. Memory of our own comes from [`ebb_sys::heap`]; nothing
//! here allocates from managed memory but `malloc` itself and what stands for the program.
//! No thread-local of Rust is used, as reaching one may allocate.
//!
//! Wrappers set `errno` on failure alone and leave it untouched otherwise.
//!
//! What it does not do: page anything, which is the pager's part; see into programs that
//! make system calls without libc (Go, static programs).

mod dlopen;
mod exec;
mod fork;
mod malloc;
mod mapped;
mod memory;
mod mutex;
mod next;
mod refuse;
mod rings;
mod start;
mod syscall;
mod target;
mod text;
mod theirs;
mod thread;
mod user;

use ebb_sys::heap::InternalHeap;

#[global_allocator]
static HEAP: InternalHeap = InternalHeap;

/// Runs a memory hook by libc's convention: `errno` changes on failure alone.
fn libc_result<T>(hook: impl FnOnce() -> Result<T, i32>) -> Result<T, ()> {
    // SAFETY: the location is this thread's and valid for its life.
    let errno = unsafe { &mut *libc::__errno_location() };
    let before = *errno;
    let result = hook();
    *errno = match result {
        Ok(_) => before,
        Err(code) => code,
    };
    result.map_err(drop)
}
