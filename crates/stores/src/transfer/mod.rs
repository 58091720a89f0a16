//! Cutting batches into transfers, and buffers for those.

pub mod batch;
pub mod bounce;
pub mod one_by_one;
