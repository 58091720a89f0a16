//! The unsafe floor: each kernel interface behind a narrow safe type.
//!
//! Memory calls go to the kernel directly, never through libc's symbols: the preload
//! library exports those names itself.

pub mod block;
pub mod probe;
pub mod ring;
pub mod signal;
