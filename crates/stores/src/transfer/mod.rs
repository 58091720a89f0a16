//! Cutting batches into transfers, and buffers for those.

pub mod batch;
pub mod bounce;
