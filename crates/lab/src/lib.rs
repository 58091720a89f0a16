//! The laboratory: workloads, the older allocators as baselines, simulation, and their
//! tables and plots. One module an experiment, each with `ABOUT`, `Options` (whose default
//! is the experiment as published) and `run`, which gives a [`Report`].
#![forbid(unsafe_code)]

pub mod allocator;
pub mod corpus;
pub mod devices;
pub mod reclaim;
pub mod shrinker;
pub mod support;
pub mod threads;
pub mod vswap;

pub use support::report::{Plot, PlotError, Report, Series};
