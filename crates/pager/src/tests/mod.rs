//! Tests of the whole pager against a kernel in memory (`ebb_memory_kernel`).
//!
//! One thread plays all parts in turn: the program's threads, service, the keeper. So each test is the same
//! on every run. The engine, the state and a tree of one process are the real ones. A forked child is a
//! process of the kernel alone: its engine would be a copy that the system makes.

mod clean_copies;
mod closed;
mod crowd;
mod devices;
mod fault;
mod fork;
mod keeper;
pub mod machine;
mod moves;
mod pin;
mod refused;
mod syscalls;
