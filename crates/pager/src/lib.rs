//! The pager: joins the engine to the real memory of a real process.
//!
//! A page map (`map`) over the managed ranges (`ranges`) says of each page where it is. Service
//! threads (`service`) resolve page faults (`load`) and make room (`evict`) through the staging
//! area (`bays`), in the order of the reclaim queue (`queue`); a keeper thread (`keeper`) does the
//! rest. The preload library calls `hooks`; `fork` gives a forked child a pager of its own. One
//! lock guards what all of them know (`state`, where the lock protocol stands).

mod account;
mod appetite;
mod balance;
mod bays;
mod devices;
mod embed;
mod evict;
mod flushes;
mod fork;
mod generations;
pub mod hooks;
mod keeper;
mod load;
mod map;
mod pattern;
mod process;
mod queue;
mod ranges;
mod service;
mod sharing;
mod state;
