//! Forks: the process is brought to rest, copied, and the child gets a pager of its own.

pub mod around_fork;
pub mod reset;
pub mod rest;
