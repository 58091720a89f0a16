//! Experiments on the slot allocator: folios, fragmentation, cost, scaling, bookkeeping.

pub mod bookkeeping;
pub mod fill;
pub mod lifetimes;
pub mod mthp;
pub mod policy;
pub mod scaling;
pub mod tail;
