//! Sizes of arenas, windows and their tables.

use crate::PAGE_SIZE;

/// Bytes of addresses of a window. Smaller ones would have more bookkeeping for each of their objects,
/// larger ones more of the kernel's page tables that are nearly empty.
#[cfg(not(loom))]
pub const WINDOW: usize = 256 << 10;
#[cfg(loom)]
pub const WINDOW: usize = 8 << 10;
/// Windows of an arena.
#[cfg(not(loom))]
pub const WINDOWS: usize = 128;
#[cfg(loom)]
pub const WINDOWS: usize = 2;

/// Entries of a chunk: as many as a window has whole pages.
pub const CHUNK: usize = WINDOW / PAGE_SIZE;
/// The most chunks that a window has.
pub const CHUNKS: usize = 4;
/// The most objects that a window has: a byte names one.
pub const OBJECTS: usize = CHUNKS * CHUNK;
