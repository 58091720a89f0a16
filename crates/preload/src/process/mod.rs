//! Calls that make, replace or end threads and processes, or change their user.

pub mod copied_vfork;
pub mod credentials;
pub mod environment;
pub mod exec;
pub mod exec_policy;
pub mod exec_target;
pub mod fork;
pub mod own_number;
pub mod pthread_create;
pub mod robust_mutex;
