//! The pager: joins the engine to the real memory of a real process.
//!
//! Each folder uses only those named before it:
//!
//! | folder | what it is |
//! |---|---|
//! | [`budget`] | arithmetic of the budget: charge, split with the pool, requests to peers |
//! | [`map`] | where each page is, which addresses are managed, the order of accesses |
//! | [`reclaim`] | whose turn it is to leave, which pages threads hold, the staging area |
//! | [`devices`] | the swap space of a process and the devices under it |
//! | [`process`] | `Base` and `Context`: the state under one lock, and what all threads of ours share |
//! | [`eviction`] | `Reclaimer`, the way out: make room, capture, swap out, release frames |
//! | [`fault`] | `FaultService`, the way in: service threads, resolve, swap in, install; out of memory |
//! | [`pager`] | `Pager`, the whole as a value |
//! | [`syscalls`] | memory calls of the program, and of children that share its memory |
//! | [`fork`] | how a forked child comes to a pager of its own |
//! | [`keeper`] | `Keeper`, the thread for all that need not happen inside a fault or a call |
//! | [`hooks`] | the interface for the preload library |
//! | [`simulation`] | the interface for the simulator |
//! | [`Replay`] | the reclaim queue alone, for the lab |
//!
//! `Base`, `Context`, `Reclaimer`, `FaultService` and `Keeper` are layers: each owns its state, with private fields,
//! and derefs to the one under it. The state under the lock ([`process::state`]) is parts with private fields and a
//! `check` each. A part is plain data, as several change under one lock; a layer is what acts on them.

mod budget;
mod devices;
mod eviction;
mod fault;
mod fork;
pub mod hooks;
mod keeper;
mod map;
mod pager;
mod process;
mod reclaim;
pub mod simulation;
mod statics;
mod syscalls;
#[cfg(test)]
mod tests;

pub use map::page_map::UNIT;
pub use reclaim::replay::Replay;
