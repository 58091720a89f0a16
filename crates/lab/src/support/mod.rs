//! Shared parts of experiments: reports and their output, simulated devices, the older allocators as
//! baselines, and measurements of time.

pub mod baselines;
pub mod report;
pub(crate) mod sim;
pub(crate) mod timing;
