//! Forks: the process is made quiescent and copied, and the child gets a pager of its own.

pub mod around_fork;
pub mod quiesce;
pub mod reset;
