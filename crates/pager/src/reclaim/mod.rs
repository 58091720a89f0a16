//! The policy of reclaim: whose turn it is, who is exempt, where captured pages wait. Plain data.

pub mod attempts;
pub mod copy_score;
pub mod freeing;
pub mod hold_back;
pub mod memory_stall;
pub mod pages;
pub mod reclaim_queue;
pub mod recorder;
pub mod replay;
pub mod return_time;
pub mod staging;
pub mod unit_loads;
