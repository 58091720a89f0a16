//! The unsafe floor: each kernel interface behind a narrow safe type.
//!
//! Memory calls go to the kernel directly, never through libc's symbols: the preload
//! library exports those names itself.

pub mod block;
pub mod link;
pub mod proc;
pub mod ring;
pub mod shm;
