//! Memory calls of the program: libc's functions, rings that make such calls by themselves, and its
//! file in `/proc`.

pub mod calls;
pub mod io_uring;
pub mod self_mem;
