//! Runs programs under memory limits, with and without `ebb` and the kernel's own swap, and reports the
//! outcome. It serves the tests of real programs, the demo and the benchmark.
//!
//! Does not judge: whether a killed run is a failure or the point of it, the caller knows.
#![forbid(unsafe_code)]

pub mod cgroup;
pub mod job;
pub mod kernel_swap;
mod standstill;
pub mod tested;
pub mod tools;
pub mod workloads;

/// Whether this process may do what only root may.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Bytes of a mebibyte.
pub const MIB: u64 = 1 << 20;

/// Memory that a program under `ebb run` may use over its budget: page cache of its files, kernel memory,
/// `ebb` itself. Part of the project's promise.
pub const SLACK: u64 = 48 * MIB;

/// Bytes over its budget that a tree may have for long ([`job::LASTING`]).
pub const LASTING_SLACK: u64 = 6 * MIB;

/// And by this for each process of a tree that has a hundred or more: what it allocates between two measurements. Where
/// more threads run than processors, all of them swap in at once, and each needs tables and buffers for it.
pub const LASTING_SLACK_OF_PROCESS: u64 = MIB / 8;
