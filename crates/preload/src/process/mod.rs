//! What makes, replaces or ends threads and processes, or changes their user.

pub mod credentials;
pub mod exec;
pub mod exec_policy;
pub mod exec_target;
pub mod fork;
pub mod pthread_create;
pub mod robust_mutex;
