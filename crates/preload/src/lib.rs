//! `libebb_preload.so`: what `LD_PRELOAD` puts into every program of a tree.
//!
//! It takes the place of libc's memory interface and hands it to the pager:
//!
//! - [`malloc`]: the malloc family, served by mimalloc, and by maps of their own where blocks are large.
//!   The `mmap` and `madvise` calls of both bind to the symbols of this library, so that memory is managed
//!   like the program's maps.
//! - [`memory`]: `mmap`, `munmap`, `mremap`, `madvise`, `mprotect`, `brk`, `mlock` and kin; io_uring.
//! - [`syscall`]: forks and memory calls by number.
//! - [`process`]: handlers around every fork, the environment of every exec, systemd's variables, the policy of
//!   `--require-managed`, stacks that the program gives its threads, robust mutexes, changes of user.
//! - [`symbols`]: libc's own functions of these names, `dlopen`, `dlsym`, texts of errors for the pager's threads.
//!
//! Each of these uses only those named after it, but `syscall`, which uses all.
//!
//! Protocol. The library's constructor runs before any other library's (`-z initfirst`). Its symbols may be called
//! earlier still, by the loader: each works from the first instruction of the process on. Memory of our own comes
//! from [`ebb_sys::heap`]; nothing here allocates from managed memory but `malloc` itself and what stands for the
//! program. No thread-local of Rust is used, as reaching one may allocate.
//!
//! Wrappers set `errno` on failure alone and leave it untouched otherwise.
//!
//! Not here: paging, which is the pager's part; programs that make system calls without libc (Go, static programs).
//!
//! # State of the process
//! The pager is one static of its own crate. Here state has no owner: C calls the functions by their names, and hands
//! them nothing but the arguments of libc.
//!
//! | static | why it is one for the process |
//! |---|---|
//! | each `DlsymNext`, `symbols::dlopen::NEXT`, `syscall::OF_ANOTHER` | a function of libc, looked up before a child of `vfork` needs it |
//! | `symbols::dlsym::NEXT`, `NEXT_OF_VERSION`, `symbols::dlsym_next::DLSYM`, `DLVSYM`, `symbols::object::LIBC` | libc is loaded once, and its functions are where they are |
//! | `HEAP` | the global allocator, which has no value |
//! | `start::CONSTRUCTOR` | the loader finds it by its section |
//! | `malloc::foreign_malloc::FOREIGN`, `WRAPPER` | `free` is called with an address alone |
//! | `memory::calls::BREAK` | the kernel has one break for the process, and `sbrk` counts from it |
//! | `process::environment::REMEMBERED`, `process::exec_policy::ASKED` | known to the constructor alone; any exec reads them |
//! | `process::robust_mutex::ANY` | mutexes are destroyed by whoever likes, mostly where there was no robust one |
//! | `process::fork::TURN`, `FORKER`, `HOLDS`, `SIGNALS` | handlers of a fork have no argument to pass on |
//! | `process::fork::WORDS` | the kernel writes there during a fork, in place of the program's words |
//! | `process::copied_vfork::WAITS`, `HELD`, `HELD_INODE` | a fork's thread waits behind a handler without an argument; a child finds its own |
//! | `process::fork::SINGLE_THREADED` | the address of a word of libc's |
//! | `memory::self_mem::LOW_BELOW`, `LOW_END` | a property of the address space, of which any call may learn |

mod malloc;
mod memory;
mod process;
mod start;
mod symbols;
mod syscall;

use ebb_sys::heap::InternalHeap;

#[global_allocator]
static HEAP: InternalHeap = InternalHeap;
