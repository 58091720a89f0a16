//! Memory calls of the program: each system call together with its bookkeeping.

pub mod admit;
pub mod areas;
pub mod execute;
pub mod file_copy;
pub mod foreign_userfaultfd;
pub mod madvise;
pub mod mlock;
pub mod mmap;
pub mod mremap;
pub mod mremap_carry;
pub mod mremap_parts;
pub mod mremap_pieces;
pub mod pin;
pub mod user_change;
pub mod vfork_proxy;
