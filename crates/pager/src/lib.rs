//! The pager: joins the engine to the real memory of a real process.
//!
//! A page map (`map`) over the managed ranges (`ranges`) says of each page where it is. Service
//! threads (`service`) resolve page faults (`resolve`, `load`, `place`) and make room (`room`,
//! `capture`, `store`; `shortage` where there is none) through the staging area (`bays`), in the order
//! of the reclaim queue (`queue`); a keeper thread (`keeper`) does the rest. The preload library calls
//! `hooks`; `fork` gives a forked child a pager of its own, `errand` lets one that shares the memory have none. One lock guards what all of them know
//! (`state`, where the lock protocol stands).

mod account;
mod advice;
mod appetite;
mod attempts;
mod audit;
mod balance;
mod bays;
mod capture;
mod cede;
mod clean;
mod dates;
mod devices;
mod embed;
mod errand;
mod failure;
mod fork;
mod generations;
mod growth;
pub mod hooks;
mod keeper;
mod kernel;
mod load;
mod map;
mod pattern;
mod pinned;
mod place;
mod process;
mod queue;
mod ranges;
mod references;
mod refuge;
mod remap;
mod resolve;
mod room;
mod service;
mod sharing;
mod shortage;
mod state;
mod store;
mod user;
