//! The process as its pager sees it: the state under one lock, the threads of ours, how it ends.

pub mod failure;
pub mod fork_stage;
pub mod lifecycle;
pub mod memory_ops;
pub mod outcome;
pub mod paging;
pub mod refusal;
pub mod services;
pub mod shared_pages;
pub mod state;
pub mod worker;
