//! Memory calls of the program: libc's functions, and rings that make such calls by themselves.

pub mod calls;
pub mod io_uring;
