//! libc's symbols: the functions that ours stand before, and those replaced for the pager's own threads.

pub mod dlopen;
pub mod dlsym;
pub mod dlsym_next;
pub mod errno;
pub mod object;
pub mod strerror;
