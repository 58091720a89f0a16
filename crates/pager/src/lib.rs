//! The pager: joins the engine to real memory.

pub mod hooks;
