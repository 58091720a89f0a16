//! Arithmetic of the budget. Plain data: no lock, no clock, no system call.

pub mod age_samples;
pub mod charge;
pub mod generations;
pub mod kernel_memory;
pub mod offer;
pub mod peer_reclaim;
pub mod pool_split;
