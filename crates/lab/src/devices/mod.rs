//! Experiments on devices: their choice on NUMA machines, drains, seeks, scattered transfers.

pub mod drain;
pub mod numa;
pub mod scattered;
pub mod seeks;
