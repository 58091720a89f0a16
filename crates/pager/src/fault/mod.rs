//! The way in of a page: a fault is read, resolved, and served until its page is there.

pub mod fault_service;
pub mod install;
pub mod oom;
pub mod pressure;
pub mod protected;
pub mod registration;
pub mod resolve;
pub mod serve;
pub mod service;
pub mod swap_in;
