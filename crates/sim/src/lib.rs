//! The simulator: pager and engine as they are, on a kernel, devices and threads that a seed decides about.
//!
//! A run is a function of its seed: threads, faults, failures of devices and refusals of the system come in an order that
//! chance gives, and chance is drawn from the seed. Programs know what each page of theirs must hold.
//!
//! | file | what it has |
//! |---|---|
//! | [`world`] | what all processes of a run share, in shared memory |
//! | [`trace`] | the events of a run |
//! | [`chance`] | decisions, each with a number |
//! | [`scheduler`] | which thread runs: coroutines, one at a time |
//! | [`life`] | whether program and helper are there, and how they end |
//! | [`vfork`] | children that share their parent's memory |
//! | [`process`] | a process: its pager, and how it begins and forks |
//! | [`threads`] | threads, time and chance for the kernel in memory (`ebb_memory_kernel`) |
//! | [`supervisor`] | the supervisor, in a process of its own |
//! | [`device`] | swap devices |
//! | [`content`], [`memory`], [`program`] | programs, and their memory as it should be |
//! | [`plan`] | what a run is like |
//! | [`agreement`] | whether the page map says what the kernel has |
//! | [`run`], [`campaign`], [`host`] | one run, and many |
//!
//! It needs debug assertions: release builds of the engine have no simulated locks.
#![cfg(debug_assertions)]

pub mod agreement;
pub mod campaign;
pub mod chance;
pub mod content;
pub mod device;
pub mod host;
pub mod life;
pub mod memory;
pub mod plan;
pub mod process;
pub mod program;
pub mod run;
pub mod scheduler;
pub mod supervisor;
pub mod threads;
pub mod trace;
pub mod vfork;
pub mod world;
