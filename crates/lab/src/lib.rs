//! The laboratory: workloads, the older allocators as baselines, simulation, and their
//! tables and plots. One module an experiment, each with `ABOUT`, `Options` (whose default
//! is the experiment as published) and `run`, which gives a [`Report`].
#![forbid(unsafe_code)]

pub mod bookkeeping;
pub mod corpus;
pub mod drain;
pub mod fill;
pub mod lifetimes;
pub mod mthp;
pub mod numa;
pub mod policy;
pub mod quiet;
mod report;
pub mod rivals;
mod rounds;
pub mod scaling;
pub mod scattered;
pub mod seeks;
pub mod shrinker;
mod sim;
pub mod tail;
pub mod vswap;

pub use report::{Plot, PlotError, Report, Series};
