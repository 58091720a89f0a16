//! The engine: virtual swap space, slot allocator, device choice, compressed pool,
//! shrinker, reclaim policy.
//!
//! It makes no system call, reads no clock and starts no thread: those come in through
//! the traits of [`env`]. So the same engine runs under the pager with real memory, in the
//! lab with simulated devices, under loom, and in seeded simulations that inject faults.
//!
//! # State of the process
//! There is none in a release build. Debug builds have two statics:
//!
//! | static | why it is one for the process |
//! |---|---|
//! | `locks::held::HELD`, `TAKEN` | the locks of a thread, whichever structures they belong to |
//! | `sync::simulated::SCHEDULER` | a lock is taken without a handle, and a simulation decides who has it |
#![forbid(unsafe_code)]

mod checksum;
pub mod codec;
pub mod counters;
pub mod entries;
pub mod env;
pub mod locks;
pub mod pool;
pub mod random;
pub mod shrinker;
pub mod slots;
pub mod swap;
pub mod sync;
pub mod types;

pub use checksum::{CHECKSUM_KEY_BYTES, Checksums};
pub use types::*;
