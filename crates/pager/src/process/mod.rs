//! The process as its pager sees it: the state under one lock, the threads of ours, how it ends.

pub mod admission;
pub mod audit;
pub mod base;
pub mod context;
pub mod failure;
pub mod fork_stage;
pub mod heap_break;
pub mod lifecycle;
pub mod measure;
pub mod memory_ops;
pub mod outcome;
pub mod parked;
pub mod refusal;
pub mod registration_requests;
pub mod services;
pub mod shared_pages;
pub mod state;
pub mod transit;
pub mod user_changes;
pub mod vfork_calls;
pub mod worker;
