//! The map of memory: where each page is, and which addresses are managed. Plain data under the lock.

pub mod access_pattern;
pub mod holders;
pub mod mask;
pub mod page_map;
pub mod ranges;
pub mod strides;
