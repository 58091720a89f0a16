//! The unsafe floor: everything that talks to the kernel in ways the standard library
//! does not wrap. Other crates forbid or narrowly confine unsafe code.

pub mod probe;
pub mod signal;
