//! Calls of the kernel that everything else here stands on.

pub mod clock;
pub mod file;
pub mod futex;
#[cfg(miri)]
mod interpreted;
pub mod random;
pub mod raw;
pub mod signal;
pub(crate) mod tasks;

/// Bytes of a page.
pub const PAGE: usize = 4096;
